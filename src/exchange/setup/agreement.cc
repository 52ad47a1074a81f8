#include "exchange/setup/agreement.h"

#include <fmt/format.h>

#include <exception>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "exchange/setup/configuration.h"
#include "exchange/setup/replies.h"
#include "traffic/choose.h"

namespace ferry::internal {

namespace {

// Runs `meet`, a call of the rendezvous. While this rank waits there, it moves messages between
// nodes and checks whether the group is broken. If the wait fails, the rendezvous only knows that a
// connection ended. So an error that a rank reported before is thrown instead; or else the cause
// that the ranks of this node see, since the rank that died may be the one that had to pass the
// report on.
template <typename Meet>
auto with_causes(GroupState& group, const Deadline& by, const Meet& meet) -> decltype(meet(by)) {
  Status said;
  const std::function<void()> look = [&group, &said] {
    group.progress();
    said = group.verdict();
    require_ok(said);
  };
  try {
    return meet(by.looking(look));
  } catch (const Error& error) {
    if (said.ok()) look();
    if (error.code() != Code::kPeerLost) throw;
    throw absence(group, error);
  }
}

// Between nodes all ranks pass a barrier first: a rank may still have to send messages of an
// exchange that it has destroyed, and it moves few messages while it waits in a rendezvous.
std::vector<std::string> all_gather_replies(GroupState& group, const std::string& mine,
                                            const Deadline& by) {
  if (!group.one_node()) {
    const std::chrono::nanoseconds left(by.remaining_ns());
    require_ok(group.barrier(left));
  }
  return with_causes(group, by, [&](const Deadline& looking) {
    return meeting_of(group, looking).all_gather(mine, looking);
  });
}

// In a view that lacks ranks, those that remain own the experts, unless the configuration says
// which ranks do.
ExchangeConfig config_in_view(const GroupState& group, ExchangeConfig config) {
  const std::vector<int>& members = group.view().members;
  const bool divided = !config.expert_rank.empty() || !config.expert_ranks.empty();
  if (!divided && config.tp_size == 1 && std::ssize(members) < group.size())
    config.expert_ranks = members;
  return config;
}

AlgorithmChoice choose(const GroupState& group, const ExchangeConfig& config) {
  if (config.algorithm != Algorithm::kAuto) return {config.algorithm, "the configuration says so"};
  return choose_algorithm(group.topology(), traffic_of(config, group.size()));
}

std::unique_ptr<const Setup> make_setup(GroupState& group, const ExchangeConfig& config) {
  const ExchangeConfig complete = complete_config(config_in_view(group, config), group.size());
  return std::make_unique<const Setup>(complete, group.topology(), group.rank(),
                                       choose(group, complete));
}

}  // namespace

GroupState& usable(const std::shared_ptr<GroupState>& group) {
  if (!group)
    throw Error(Code::kClosed, "cannot create an exchange: this Group is not a member of anything");
  require_ok(group->verdict());
  return *group;
}

void make_alike(GroupState& group, const Deadline& by, const std::function<std::string()>& make,
                const char* object) {
  std::string made;
  try {
    made = willing_reply(make());
  } catch (const Error& refusal) {
    refuse_setup(group, Error(refusal.code(), refusal.what(), group.rank()), by);
  } catch (const std::exception& failure) {  // memory for the setup itself
    refuse_setup(group, Error(Code::kSystem, failure.what(), group.rank()), by);
  }
  require_agreement(all_gather_replies(group, made, by), group.view().members, object);
}

std::shared_ptr<Segment> share_segment(GroupState& group, std::size_t bytes, const Deadline& by) {
  return with_causes(group, by, [&](const Deadline& looking) {
    return meeting_of(group, looking).share_segment(bytes, looking);
  });
}

std::unique_ptr<const Setup> agree_on_setup(GroupState& group, const ExchangeConfig& config,
                                            const Deadline& by) {
  std::unique_ptr<const Setup> setup;
  make_alike(group, by, [&] {
    setup = make_setup(group, config);
    return config_text(setup->config);
  });
  return setup;
}

void refuse_setup(GroupState& group, const Error& why, const Deadline& by) {
  try {
    all_gather_replies(group, refusal_reply(why), by);
  } catch (const Error& not_sent) {
    throw Error(not_sent.code(),
                fmt::format("{}; this rank had refused: {}", not_sent.what(), why.what()),
                not_sent.culprit());
  }
  throw why;
}

}  // namespace ferry::internal

#include "exchange/setup/agreement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "exchange/setup/configuration.h"
#include "exchange/setup/differences.h"
#include "exchange/setup/replies.h"
#include "traffic/choose.h"

namespace ferry::internal {

namespace {

// Between nodes all ranks pass a barrier first: a rank may still have to send messages of an
// exchange that it has destroyed, and it moves few messages while it waits in a rendezvous.
std::vector<std::string> all_gather_replies(GroupState& group, const std::string& mine,
                                            const Deadline& by) {
  if (!group.one_node()) {
    const std::chrono::nanoseconds left(by.remaining_ns());
    require_ok(group.barrier(left));
  }
  return gather_in_view(group, mine, by);
}

// The complete configuration of an exchange that `members` of a group make. In a view that lacks
// ranks, those that remain own the experts, unless the configuration says which ranks do, or has
// tp_size > 1.
ExchangeConfig config_of(const std::vector<int>& members, int size, ExchangeConfig config) {
  const bool divided = !config.expert_rank.empty() || !config.expert_ranks.empty();
  if (!divided && config.tp_size == 1 && std::ssize(members) < size) config.expert_ranks = members;
  return complete_config(std::move(config), size);
}

AlgorithmChoice choose(const GroupState& group, const ExchangeConfig& config) {
  if (config.algorithm != Algorithm::kAuto) return {config.algorithm, "the configuration says so"};
  return choose_algorithm(group.topology(), traffic_of(config, group.size()));
}

std::unique_ptr<const Setup> make_setup(const GroupState& group, const ExchangeConfig& complete) {
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
  std::shared_ptr<Segment> segment;
  meet_in_view(group, by, [&](Rendezvous& meeting, const Deadline& looking) {
    segment = meeting.share_segment(bytes, looking);
  });
  return segment;
}

std::unique_ptr<const Setup> agree_on_setup(GroupState& group, const ExchangeConfig& config,
                                            const Deadline& by) {
  std::unique_ptr<const Setup> setup;
  make_alike(group, by, [&] {
    setup = make_setup(group, config_of(group.view().members, group.size(), config));
    return config_text(setup->config);
  });
  return setup;
}

std::string terms_in_view(const GroupState& group, const Setup& setup) {
  return fmt::format("{}\n{}", fmt::join(group.view().members, " "), config_text(setup.config));
}

std::vector<int> makers_in(const std::string& terms) {
  std::istringstream makers(terms.substr(0, terms.find('\n')));
  return {std::istream_iterator<int>(makers), {}};
}

std::pair<std::unique_ptr<const Setup>, Offer> take_offered_setup(GroupState& group,
                                                                  const ExchangeConfig& config) {
  ExchangeConfig complete;
  std::vector<std::string> differing;
  const auto fit = [&](const std::string& terms) {
    const std::size_t end = std::min(terms.find('\n'), terms.size());
    complete = config_of(makers_in(terms), group.size(), config);
    differing.push_back(
        differences(config_text(complete), terms.substr(std::min(end + 1, terms.size()))));
    return differing.back().empty();
  };
  std::optional<Offer> offer = group.survival().take_offer(fit);
  if (!offer) {
    throw Error(Code::kInvalidArgument,
                fmt::format("there is no exchange with this configuration that rank {} may join in "
                            "view {}{}{}",
                            group.rank(), group.view().number, differing.empty() ? "" : ": ",
                            fmt::join(differing, "; another: ")),
                group.rank());
  }
  return {make_setup(group, complete), *std::move(offer)};
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

// How ranks that come late to a view, and those that join it on a node without votes, get to know
// its ranks: they ask, and a rank that has begun the view replies (ViewMessages).
#include <optional>
#include <vector>

#include "group/agreement_between_nodes.h"
#include "group/state.h"

namespace ferry::internal {

std::vector<std::byte> NodesAgreement::decision(GroupState& group, const View& view) {
  const NodesAgreement agreement(group, view.number);
  AgreementMessage message = agreement.promise(0);
  message.what = What::kDecided;
  message.members.assign(view.members.begin(), view.members.end());
  return message.bytes();
}

void NodesAgreement::ask(GroupState& group, std::uint64_t next, int member) {
  send(group, member, next, {.what = What::kHere});
}

std::optional<std::vector<int>> NodesAgreement::take_decision(GroupState& group,
                                                              std::uint64_t next) {
  for (const auto& [view, from, bytes] : taken(group)) {
    const auto message = AgreementMessage::read(bytes, group.size());
    if (view != next || !message || message->what != What::kDecided) continue;
    learn(group, next, *message);
    group.survival().set_known(message->objects);
    return std::vector<int>(message->members.begin(), message->members.end());
  }
  return std::nullopt;
}

}  // namespace ferry::internal

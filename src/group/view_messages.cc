#include "group/view_messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "base/bytes.h"
#include "group/agreement_between_nodes.h"
#include "group/state.h"

namespace ferry::internal {

namespace {

constexpr std::chrono::seconds kSilence{10};

}  // namespace

bool ViewMessages::unreachable(const GroupState& group, int rank) noexcept {
  const BetweenNodes& nodes = group.nodes_;
  return nodes.lost[rank].load(std::memory_order_acquire) ||    // partner: lost()
         nodes.farewell[rank].load(std::memory_order_acquire);  // partner: read_abort()
}

void ViewMessages::lose_silent_nodes(GroupState& group) {
  const Topology& topology = group.topology();
  const auto held = group.lock();
  std::set<int> silent;
  for (const int peer : group.messages().silent(kSilence)) silent.insert(topology.node_of(peer));
  lose(group, group.view().members, silent,
       fmt::format("its host has been silent for {} s", kSilence.count()));
}

void ViewMessages::lose_node_that_gave_up(GroupState& group, int rank) const {
  lose(group, members_, {group.topology().node_of(rank)},
       "its node gave up this view, as it reached too few ranks");
}

// `nodes`: their numbers in the topology.
void ViewMessages::lose(GroupState& group, const std::vector<int>& members,
                        const std::set<int>& nodes, const std::string& why) {
  for (const int rank : members) {
    if (nodes.contains(group.topology().node_of(rank)) && !unreachable(group, rank))
      group.lost(rank, why);
  }
}

// Messages of one rank come in the order in which it sent them, so all that follow kBeginsView are
// of that view.
bool ViewMessages::is_for_now(GroupState& group, int from, const MessageHead& head,
                              std::span<const std::byte> message) {
  const bool of_group = head.channel == 0;
  if (of_group && head.kind == GroupMessage::kListens) return true;
  if (of_group && head.kind == GroupMessage::kBeginsView) {
    sends_[from] = std::max(sends_[from], head.number);
    return false;
  }
  if (of_group && head.kind == GroupMessage::kAgreement) {
    keep_of_agreement({head.number, from, {message.begin() + sizeof head, message.end()}});
    return false;
  }
  const std::uint64_t view = sends_[from];
  if (view == reading_ && begun_) return true;
  if (view >= reading_ && of_group && head.kind == GroupMessage::kAcknowledgement) return true;
  if (view >= reading_) kept_.push_back({view, from, {message.begin(), message.end()}});
  // A rank that leaves says so in the view that it is in.
  if (view < reading_ && of_group && head.kind == GroupMessage::kAbort &&
      AbortWord::is_one(head.number, group.size()) &&
      AbortWord::code(head.number) == Code::kClosed) {
    if (group.nodes_.reached[from]) group.nodes_.to_acknowledge.push_back(from);
    group.nodes_.farewell[from].store(true, std::memory_order_release);  // partner: unreachable()
  }
  return false;
}

// A rank sends its last message of a kind again until it is answered, so the earlier ones may be
// dropped.
void ViewMessages::keep_of_agreement(Kept message) {
  std::erase_if(agreement_, [&](const Kept& earlier) { return are_alike(earlier, message); });
  agreement_.push_back(std::move(message));
}

bool ViewMessages::are_alike(const Kept& one, const Kept& other) {
  const auto kind = [](const Kept& kept) {
    return std::span(kept.message).first(!kept.message.empty());
  };
  return one.from == other.from && std::ranges::equal(kind(one), kind(other));
}

void ViewMessages::put_back(std::vector<Kept> later) {
  for (Kept& message : later) {
    const auto newer = [&](const Kept& kept) { return are_alike(kept, message); };
    if (std::ranges::none_of(agreement_, newer)) agreement_.push_back(std::move(message));
  }
}

void ViewMessages::hold(GroupState& group, const std::vector<Offer>& offers) {
  const auto held = group.lock();
  held_.clear();
  for (const Offer& offer : offers) {
    for (std::uint32_t i = 0; i < BetweenNodes::kChannelsOfObject; ++i)
      held_[static_cast<std::uint32_t>(offer.number) + i];
  }
}

bool ViewMessages::holds(std::uint32_t channel, int from, std::span<const std::byte> message) {
  const auto held = held_.find(channel);
  if (held == held_.end()) return false;
  held->second.push_back({reading_, from, {message.begin(), message.end()}});
  return true;
}

std::vector<ViewMessages::Kept> ViewMessages::take_held(std::uint32_t channel) {
  auto held = held_.extract(channel);
  return held.empty() ? std::vector<Kept>() : std::move(held.mapped());
}

void ViewMessages::send_view(GroupState& group, const std::vector<int>& peers) const {
  if (!begun_ || reading_ == 1) return;
  for (const int peer : peers) group.send(peer, GroupMessage::kBeginsView, reading_);
}

std::vector<ViewMessages::Kept> ViewMessages::take_agreement() {
  return std::exchange(agreement_, {});
}

void ViewMessages::answer_late_ranks(GroupState& group) {
  const bool left = group.verdict_.closed.load(std::memory_order_acquire);  // partner: leave()
  for (Kept& asked : take_agreement()) {
    const auto decided = decided_.find(asked.view);
    const bool known = decided != decided_.end();
    if (!known && !left) {
      if (asked.view >= reading_) agreement_.push_back(std::move(asked));
      continue;
    }
    const bool is_last = known && std::next(decided) == decided_.end();
    if (is_last && AgreementMessage::gives_up(asked.message))
      lose_node_that_gave_up(group, asked.from);
    if (!AgreementMessage::asks(asked.message)) continue;
    if (!group.nodes_.reached[asked.from]) group.connect({asked.from});
    if (known)
      group.send(asked.from, GroupMessage::kAgreement, asked.view, decided->second);
    else
      group.send(asked.from, GroupMessage::kAbort, AbortWord::make(Code::kClosed, group.rank()),
                 bytes_of(group.flags_->slot(group.rank()).report));
  }
}

void ViewMessages::end(GroupState& group, std::uint64_t next) noexcept {
  if (!group.messages_) return;
  const auto held = group.lock();
  reading_ = next;
  begun_ = false;
}

std::optional<Error> ViewMessages::begin_links(GroupState& group, const View& view) noexcept {
  std::vector<bool> is_member(group.size());
  for (const int rank : view.members) is_member[rank] = true;
  BetweenNodes& nodes = group.nodes_;
  nodes.forwarding = ForwardingTable(group.topology(), group.rank(), is_member, /*flat=*/true);
  std::optional<Error> failure;
  try {
    group.reach(nodes.forwarding, /*together=*/true);
  } catch (const Error& error) {
    failure = error;
  }
  const auto held = group.lock();
  nodes.to_acknowledge.clear();
  nodes.acknowledged.assign(nodes.acknowledged.size(), false);
  for (int peer = 0; peer < group.size(); ++peer) {
    if (group.here(peer)) continue;
    if (!is_member[peer]) group.messages().disregard(peer);
    if (is_member[peer] && nodes.reached[peer])
      group.send(peer, GroupMessage::kBeginsView, view.number);
  }
  return failure;
}

void ViewMessages::begin(GroupState& group, std::uint64_t view,
                         std::vector<std::byte> decided) noexcept {
  const auto held = group.lock();
  decided_[view] = std::move(decided);
  members_ = group.view().members;
  // Channels drop what they keep of the last view before they read messages of this one.
  for (const auto& [number, channel] : group.nodes_.channels) channel->go_on();
  begun_ = true;
  for (int node = 0; node < group.topology().num_nodes(); ++node) {
    const int first = group.topology().node_ranks(node)[0];
    if (!group.here(first) && NodesAgreement::gave_up(group, first, view))
      lose_node_that_gave_up(group, first);
  }
  for (Kept& kept : std::exchange(kept_, {})) {
    if (kept.view == view) group.read(kept.from, kept.message, /*kept=*/true);
    if (kept.view > view) kept_.push_back(std::move(kept));
  }
}

}  // namespace ferry::internal

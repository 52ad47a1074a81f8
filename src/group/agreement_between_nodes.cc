#include "group/agreement_between_nodes.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/clock.h"
#include "group/state.h"

namespace ferry::internal {

namespace {

// A message that has no answer is sent again after this time, or at once when it goes to another
// rank of the node than before. A ballot that was refused is followed by another one after it.
constexpr std::int64_t kAgainNs = 20'000'000;
constexpr std::int64_t kLookNs = 500'000'000;  // between two looks for hosts that are silent

// A ballot has the view, the number of the attempt and the rank that proposes. So ballots of
// different ranks differ, and those of a later view are larger.
constexpr int kViewShift = AbortWord::kViewShift, kRoundShift = 16;
constexpr std::uint64_t kRoundMask = (std::uint64_t{1} << (kViewShift - kRoundShift)) - 1;

constexpr std::uint64_t round_of(std::uint64_t ballot) {
  return ballot >> kRoundShift & kRoundMask;
}

// One word has a ballot or a view, and the half of GroupSlot::proposed that belongs to it.
constexpr std::uint64_t with_half(std::uint64_t value, int half) {
  return value << 1 | static_cast<std::uint64_t>(half);
}
constexpr int half_of(std::uint64_t word) { return static_cast<int>(word & 1); }

}  // namespace

NodesAgreement::NodesAgreement(GroupState& group, std::uint64_t next, std::vector<int> newcomers)
    : group_(group),
      next_(next),
      newcomers_(std::move(newcomers)),
      index_(group.topology().num_nodes()),
      node_of_(group.size()) {
  const Topology& topology = group.topology();
  std::vector<bool> has_vote(index_.size());
  for (const int rank : group.view().members) {
    const int node = topology.node_of(rank);
    if (!has_vote[node]) index_[node] = nodes_.size(), nodes_.emplace_back();
    has_vote[node] = true;
    nodes_[index_[node]].ranks.push_back(rank);
  }
  for (std::size_t node = 0; node < index_.size(); ++node)
    if (!has_vote[node]) index_[node] = nodes_.size();
  for (int rank = 0; rank < group.size(); ++rank) {
    const bool member = group.survival().has(rank);
    node_of_[rank] = member ? index_[topology.node_of(rank)] : nodes_.size();
  }
  mine_ = index_[topology.node_of(group.rank())];
}

// The lowest rank of this node that has come and is alive. Another one follows it only when its
// process has ended, or when it has left, so a node has one speaker at a time.
int NodesAgreement::speaker() const noexcept {
  for (const int rank : nodes_[mine_].ranks) {
    // Acquire: partner: decide_seat().
    const std::uint64_t seat = group_.flags_->slot(rank).seat.load(std::memory_order_acquire);
    if (seat == Seat::in(next_) && !group_.flags_->has_left(rank) &&
        group_.rendezvous_->alive(rank))
      return rank;
  }
  return -1;
}

bool NodesAgreement::decided() const noexcept {
  // Acquire: what the speaker stored before. Partner: decide().
  return slot().decided.load(std::memory_order_acquire) >> 1 == next_;
}

std::vector<int> NodesAgreement::members() const {
  const std::vector<std::int32_t> ranks =
      stored(half_of(slot().decided.load(std::memory_order_acquire)));
  return {ranks.begin(), ranks.end()};
}

std::vector<int> NodesAgreement::missing() const {
  std::vector<int> ranks;
  for (const Node& node : nodes_) {
    // Acquire: partner: decide_seat(). The speaker learned it, and this rank may be another one.
    const std::uint64_t seat =
        group_.flags_->slot(node.ranks[0]).seat.load(std::memory_order_acquire);
    const bool asked =
        proposer() == mine_ ? !Seat::decided(seat, next_) : &node == &nodes_[proposer()];
    const int rank = reachable(node);
    if (rank < 0 || !asked) continue;
    ranks.insert(ranks.end(), node.waits.begin(), node.waits.end());
    if (node.waits.empty()) ranks.push_back(rank);
  }
  if (ranks.empty()) ranks.push_back(group_.rank());  // the agreement itself takes too long
  return ranks;
}

void NodesAgreement::send_missing(const std::vector<int>& ranks) {
  take_messages([&](const AgreementMessage& asked) -> std::optional<AgreementMessage> {
    if (asked.what == What::kWaits || asked.what > What::kAccept) return std::nullopt;
    return AgreementMessage{.what = What::kWaits, .members = {ranks.begin(), ranks.end()}};
  });
}

Status NodesAgreement::step() {
  const std::lock_guard step(group_.survival().step());
  take_messages([this](const AgreementMessage& asked) { return reply(asked); });
  if (decided()) return {};
  const int without = outvoted_without(nodes_[mine_]);
  if (speaker() != group_.rank()) return without < 0 ? Status{} : minority(without);
  if (without >= 0) return give_up(without);  // an earlier speaker did, and ranks may know
  if (now_ns() >= look_ns_) {
    look_ns_ = now_ns() + kLookNs;
    ViewMessages::lose_silent_nodes(group_);
  }
  if (proposer() == mine_) return propose();
  phase_ = Phase::kIdle;
  Node& asked = nodes_[proposer()];
  if (now_ns() < send_ns_ && asked.sent_to == linked(asked)) return {};
  send_ns_ = now_ns() + kAgainNs;
  send(asked, {.what = What::kHere});
  return {};
}

Status NodesAgreement::propose() {
  if (phase_ == Phase::kIdle && now_ns() < retry_ns_) return {};
  if (phase_ == Phase::kIdle) begin_ballot();
  const auto vote = phase_ == Phase::kPreparing ? &Node::promised : &Node::accepted;
  if (all_or_gone(vote) && !enough(vote)) return give_up();
  if (phase_ == Phase::kPreparing && all_or_gone(vote)) {
    if (Status status = choose(); !status.ok() || phase_ == Phase::kIdle) return status;
  } else if (phase_ == Phase::kAccepting && enough(vote)) {
    decide(proposal_.members);
    proposal_.what = What::kDecided;
    for (Node& node : nodes_) send(node, proposal_);
    return {};
  }
  const bool again = now_ns() >= send_ns_;
  if (again) send_ns_ = now_ns() + kAgainNs;
  const auto awaited = phase_ == Phase::kPreparing ? &Node::promised : &Node::accepted;
  for (Node& node : nodes_)
    if (!(node.*awaited) && (again || node.sent_to != linked(node))) send(node, proposal_);
  return {};
}

void NodesAgreement::begin_ballot() {
  phase_ = Phase::kPreparing;
  ballot_ns_ = now_ns();
  // Relaxed: as in reply(). No ballot is used twice: this node has promised its earlier ones.
  const std::uint64_t promised = slot().promised.load(std::memory_order_relaxed);
  if (promised >> kViewShift == next_) round_ = std::max(round_, round_of(promised));
  ++round_;
  proposal_ = {.what = What::kPrepare,
               .ballot = next_ << kViewShift | (round_ & kRoundMask) << kRoundShift |
                         static_cast<std::uint64_t>(group_.rank())};
  for (Node& node : nodes_) node.promised = node.accepted = node.kept = false;
  send_ns_ = 0;
  take(mine_, *reply(proposal_));
}

// All nodes that can be reached have promised. If one of them has accepted a view, that view may be
// decided already, and the last such is proposed again. Otherwise the proposal has the ranks that
// have come, of nodes that reach each other.
Status NodesAgreement::choose() {
  const Node* last = nullptr;
  for (const Node& node : nodes_) {
    if (node.promised && node.promise.accepted > (last ? last->promise.accepted : 0)) last = &node;
  }
  if (!last && !keep_together() && ballot_ns_ < apart_ns_ + kApartNs) {
    phase_ = Phase::kIdle;
    retry_ns_ = now_ns() + kAgainNs;
    return {};
  }
  if (!last && !enough(&Node::kept)) return give_up();
  phase_ = Phase::kAccepting;
  proposal_.what = What::kAccept;
  proposal_.members.clear();
  if (last) proposal_.members = last->promise.members;
  for (const Node& node : nodes_) {
    for (const int rank : node.ranks) {
      const std::uint64_t seat = group_.flags_->slot(rank).seat.load(std::memory_order_acquire);
      if (!last && node.kept && seat == Seat::in(next_)) proposal_.members.push_back(rank);
    }
  }
  for (const int rank : newcomers_)
    if (!last && comes(rank)) proposal_.members.push_back(rank);
  std::ranges::sort(proposal_.members);
  AgreementMessage known = promise(proposal_.ballot);
  proposal_.seats = std::move(known.seats);
  proposal_.objects = std::move(known.objects);
  send_ns_ = 0;
  take(mine_, *reply(proposal_));
  return {};
}

// Whether a newcomer can be in the view that this node proposes.
bool NodesAgreement::comes(int newcomer) const noexcept {
  const std::size_t node = index_[group_.topology().node_of(newcomer)];
  const bool reached =
      node < nodes_.size() ? nodes_[node].kept : !ViewMessages::unreachable(group_, newcomer);
  const std::uint64_t seat = group_.flags_->slot(newcomer).seat.load(std::memory_order_acquire);
  return reached && seat == Seat::in(next_);
}

void NodesAgreement::send(Node& node, const AgreementMessage& message) {
  node.sent_to = linked(node);
  if (node.sent_to >= 0) send(group_, node.sent_to, next_, message);
}

void NodesAgreement::send(GroupState& group, int rank, std::uint64_t view,
                          const AgreementMessage& message) {
  if (group.here(rank)) return;
  const auto held = group.lock();
  try {
    if (!group.nodes_.reached[rank]) group.connect({rank});
    group.send(rank, GroupMessage::kAgreement, view, message.bytes());
  } catch (const Error& error) {
    group.lost(rank, error.what());
  }
}

std::vector<ViewMessages::Kept> NodesAgreement::taken(GroupState& group) {
  const auto held = group.lock();
  return group.survival().messages().take_agreement();
}

void NodesAgreement::take_messages(const Answer& answer) {
  std::vector<ViewMessages::Kept> later;
  for (const auto& [view, from, bytes] : taken(group_)) {
    const auto message = AgreementMessage::read(bytes, group_.size());
    if (!message || node_of_[from] == nodes_.size()) continue;
    if (view > next_) {
      later.push_back({view, from, bytes});
      if (message->what == What::kOutvoted) take(node_of_[from], *message);  // it waits for nobody
    }
    if (view + 1 == next_ && message->what == What::kOutvoted) {
      const auto held = group_.lock();
      group_.survival().messages().lose_node_that_gave_up(group_, from);
    }
    if (view != next_) continue;
    if (const auto answered = answer(*message))
      send(group_, from, next_, *answered);
    else
      take(node_of_[from], *message);
  }
  if (later.empty()) return;
  const auto held = group_.lock();
  group_.survival().messages().put_back(std::move(later));
}

// The answer of this node to a message; none: the message asks nothing that is answered now.
std::optional<AgreementMessage> NodesAgreement::reply(const AgreementMessage& message) {
  GroupSlot& mine = slot();
  if (speaker() != group_.rank())
    return message.asks() ? std::optional(AgreementMessage{.what = What::kUnlinked}) : std::nullopt;
  if (message.what == What::kHere && phase_ == Phase::kPreparing) {
    const std::vector<int> ranks = missing();
    return AgreementMessage{.what = What::kWaits, .members = {ranks.begin(), ranks.end()}};
  }
  if (message.what != What::kPrepare && message.what != What::kAccept) return std::nullopt;
  if (decided()) {
    AgreementMessage answer = promise(message.ballot);
    answer.what = What::kDecided;
    answer.members = stored(half_of(mine.decided.load(std::memory_order_relaxed)));
    return answer;
  }
  // Relaxed: speakers of this node follow each other, and the end of a process or the abort word of
  // a rank that left orders what they did.
  const std::uint64_t promised = mine.promised.load(std::memory_order_relaxed);
  const bool prepares = message.what == What::kPrepare;
  if (message.ballot < promised)
    return AgreementMessage{.what = What::kRefused, .ballot = promised};
  mine.promised.store(message.ballot, std::memory_order_release);
  if (prepares) return promise(message.ballot);
  learn(group_, next_, message);
  const int half = free_half();
  store(half, message.members);
  mine.accepted.store(with_half(message.ballot, half), std::memory_order_release);
  return AgreementMessage{.what = What::kAccepted, .ballot = message.ballot};
}

void NodesAgreement::take(std::size_t node, const AgreementMessage& message) {
  const bool current = phase_ != Phase::kIdle && message.ballot == proposal_.ballot;
  if (message.what != What::kUnlinked) nodes_[node].unlinked_ns = 0;
  switch (message.what) {
    case What::kPromise:
      if (!current || phase_ != Phase::kPreparing) break;
      learn(group_, next_, message);
      nodes_[node].promised = true;
      nodes_[node].promise = message;
      break;
    case What::kAccepted:
      if (current && phase_ == Phase::kAccepting) nodes_[node].accepted = true;
      break;
    case What::kRefused:
      round_ = std::max(round_, round_of(message.ballot));
      if (phase_ == Phase::kIdle || message.ballot <= proposal_.ballot) break;
      phase_ = Phase::kIdle;
      retry_ns_ = now_ns() + kAgainNs * (1 + static_cast<std::int64_t>(mine_));
      break;
    case What::kWaits: nodes_[node].waits = message.members; break;
    case What::kDecided:
      if (decided() || speaker() != group_.rank()) break;
      learn(group_, next_, message);
      decide(message.members);
      break;
    case What::kOutvoted: set_outvoted(nodes_[node], 0); break;
    case What::kUnlinked:
      if (nodes_[node].unlinked_ns == 0) nodes_[node].unlinked_ns = now_ns();
      break;
    default: break;
  }
}

// What this node has accepted, and all it knows of the ranks.
AgreementMessage NodesAgreement::promise(std::uint64_t ballot) const {
  AgreementMessage known{.what = What::kPromise, .ballot = ballot};
  if (has_accepted()) {
    const std::uint64_t accepted = slot().accepted.load(std::memory_order_acquire);
    known.accepted = accepted >> 1;
    known.members = stored(half_of(accepted));
  }
  std::vector<int> ranks = newcomers_;
  std::ranges::copy(group_.view().members, std::back_inserter(ranks));
  for (const int rank : ranks) {
    const GroupSlot& of_rank = group_.flags_->slot(rank);
    const std::uint64_t seat = of_rank.seat.load(std::memory_order_acquire);
    if (!Seat::decided(seat, next_)) continue;
    known.seats.push_back({seat, of_rank.barriers[next_ % 2].load(std::memory_order_relaxed),
                           of_rank.objects[next_ % 2].load(std::memory_order_relaxed), rank});
  }
  known.objects = group_.survival().prepared(next_);
  const std::vector<int> others = unlinked();
  for (const int rank : group_.view().members) {
    const bool ended = group_.flags_->has_left(rank) || !group_.rendezvous_->alive(rank);
    const bool cut =
        ViewMessages::unreachable(group_, rank) || std::ranges::count(others, rank) > 0;
    if (group_.here(rank) ? ended : cut) known.unreached.push_back(rank);
  }
  return known;
}

void NodesAgreement::learn(GroupState& group, std::uint64_t next, const AgreementMessage& message) {
  group.survival().store_prepared(next, message.objects);
  for (const auto& [seat, barriers, objects, number] : message.seats) {
    const int rank = static_cast<int>(number);
    const bool known = seat == Seat::in(next) || seat == Seat::outside(next);
    if (group.here(rank) || !known) continue;
    // Relaxed: published by the seat.
    GroupSlot& of_rank = group.flags_->slot(rank);
    of_rank.barriers[next % 2].store(barriers, std::memory_order_relaxed);
    of_rank.objects[next % 2].store(objects, std::memory_order_relaxed);
    group.flags_->decide_seat(rank, next, seat);
  }
}

bool NodesAgreement::has_accepted() const noexcept {
  return slot().accepted.load(std::memory_order_acquire) >> (kViewShift + 1) == next_;
}

int NodesAgreement::free_half() const noexcept {
  return has_accepted() ? 1 - half_of(slot().accepted.load(std::memory_order_relaxed)) : 0;
}

void NodesAgreement::store(int half, const std::vector<std::int32_t>& members) {
  // Relaxed: published by the word that names the half.
  for (int rank = 0; rank < group_.size(); ++rank)
    group_.flags_->slot(rank).proposed[half].store(Seat::outside(next_), std::memory_order_relaxed);
  for (const int rank : members)
    group_.flags_->slot(rank).proposed[half].store(Seat::in(next_), std::memory_order_relaxed);
}

std::vector<std::int32_t> NodesAgreement::stored(int half) const {
  std::vector<std::int32_t> members;
  for (int rank = 0; rank < group_.size(); ++rank) {
    const GroupSlot& of_rank = group_.flags_->slot(rank);
    if (of_rank.proposed[half].load(std::memory_order_relaxed) == Seat::in(next_))
      members.push_back(rank);
  }
  return members;
}

void NodesAgreement::decide(const std::vector<std::int32_t>& members) {
  const int half = free_half();
  store(half, members);
  // Release: the members, and what was learned. Partner: decided().
  slot().decided.store(with_half(next_, half), std::memory_order_release);
  group_.ring();
}

}  // namespace ferry::internal

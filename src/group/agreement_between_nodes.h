// NodesAgreement: how the nodes of a group agree on the ranks of the next view. Inside a node the
// seats decide which of its ranks come (survive.cc). Then one rank of each node, its speaker, takes
// part in an agreement of the nodes, which is Paxos for one value, the ranks of the view:
//
//   - Each node has votes, one for each of its ranks in the last view, living or dead. What it has
//     promised and accepted lies in the memory of the node, so it outlives the speaker.
//   - The speaker of the lowest node that can be reached proposes. Proposals have numbers, ballots.
//   - A view is decided when nodes with more than half of the votes have accepted one proposal, or
//     nodes with exactly half, among them the node of the lowest rank of the last view. So two
//     different views are never decided: two such sets of nodes have a node in common.
//   - A node that can be reached is waited for; a node that cannot be reached is left out. A node
//     that reaches too few votes gives up and says so, and from then on counts as one that cannot
//     be reached. Of two nodes that have lost a link between them one is left out.
//   - Ranks that are admitted to the view have no votes. Those that have a seat are in the view.
//
// docs/protocol.md, "Views", has the whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "ferry/status.h"
#include "group/agreement_message.h"
#include "group/shared_flags.h"
#include "group/survival.h"

namespace ferry::internal {

class GroupState;

class NodesAgreement {
 public:
  // `newcomers`: the ranks that the members admit to the view.
  NodesAgreement(GroupState& group, std::uint64_t next, std::vector<int> newcomers = {});

  // Goes on with the agreement. Call again and again when all seats of this node are decided. An
  // error: the nodes that can be reached have too few votes to go on.
  Status step();
  // Whether this node knows the ranks of the next view.
  bool decided() const noexcept;
  // Call when it is decided.
  std::vector<int> members() const;
  // While ranks of this node have not come: sends them to the nodes that ask.
  void send_missing(const std::vector<int>& ranks);
  // The ranks of other nodes for which this node waits, as far as it knows. Not empty.
  std::vector<int> missing() const;
  // What late ranks get as an answer in `view`, which this rank is about to begin.
  static std::vector<std::byte> decision(GroupState& group, const View& view);
  // Writes what a message says of ranks of other nodes to the memory of this node. Later messages
  // say the same: a rank prepares once for a view, and its seat is decided once.
  static void learn(GroupState& group, std::uint64_t next, const AgreementMessage& message);
  // On a newcomer of a node without votes: asks a member for the ranks of the view; takes the
  // reply, if it has come.
  static void ask(GroupState& group, std::uint64_t next, int member);
  static std::optional<std::vector<int>> take_decision(GroupState& group, std::uint64_t next);
  // Shows the speaker of this node a rank to which this rank has no link. Call before this rank
  // comes to view `next`, and while it waits for it.
  static void show_links(GroupState& group, std::uint64_t next) noexcept;
  // Whether the node whose lowest rank in the topology is `first` has said that it gave up `view`.
  static bool gave_up(const GroupState& group, int first, std::uint64_t view) noexcept;

 private:
  // A rank that has just died looks like one whose link is lost, until its own node has seen its
  // end. So a node is left out only by a ballot that began this long after the loss was seen: the
  // promises of an earlier ballot may be older than the death. Likewise a node counts as one that
  // cannot be reached only when its speaker has had no link to this rank for this long.
  static constexpr std::int64_t kApartNs = 100'000'000;

  using What = AgreementMessage::What;
  enum class Phase { kIdle, kPreparing, kAccepting };
  struct Node {
    std::vector<int> ranks = {};  // in the last view, ascending
    bool promised = false, accepted = false;
    bool kept = false;  // in the proposal
    AgreementMessage promise = {};
    std::vector<std::int32_t> waits = {};  // for these ranks, as it has said last
    int sent_to = -1;                      // the rank to which the last message went
    // Since when another rank than its speaker answers; 0: it does not.
    std::int64_t unlinked_ns = 0;
  };

  GroupSlot& slot() const noexcept { return slot_of_node(group_.rank()); }
  GroupSlot& slot_of_node(int rank) const noexcept;
  GroupSlot& slot(const Node& node) const noexcept;
  // -1: the node has not given up. Otherwise, for this node, a rank that it could not reach when it
  // gave up; for another node, 0.
  int outvoted_without(const Node& node) const noexcept;
  void set_outvoted(const Node& node, int without) noexcept;
  Status give_up();
  Status give_up(int without);
  int speaker() const noexcept;
  int linked(const Node& node) const noexcept;
  int reachable(const Node& node) const noexcept;
  std::size_t proposer() const noexcept;
  bool enough(bool Node::*vote) const noexcept;
  bool all_or_gone(bool Node::*vote) const noexcept;
  Status propose();
  void begin_ballot();
  Status choose();
  std::vector<int> unlinked() const;
  bool apart(const Node& one, const Node& other) const noexcept;
  bool keep_together() noexcept;
  void send(Node& node, const AgreementMessage& message);
  static void send(GroupState& group, int rank, std::uint64_t view,
                   const AgreementMessage& message);
  static std::vector<ViewMessages::Kept> taken(GroupState& group);  // the messages that have come
  using Answer = std::function<std::optional<AgreementMessage>(const AgreementMessage& asked)>;
  void take_messages(const Answer& answer);
  void take(std::size_t node, const AgreementMessage& message);
  std::optional<AgreementMessage> reply(const AgreementMessage& message);
  AgreementMessage promise(std::uint64_t ballot) const;
  bool comes(int newcomer) const noexcept;
  int free_half() const noexcept;
  void store(int half, const std::vector<std::int32_t>& members);
  void decide(const std::vector<std::int32_t>& members);
  bool has_accepted() const noexcept;
  std::vector<std::int32_t> stored(int half) const;
  Status minority(int without) const;

  GroupState& group_;
  const std::uint64_t next_;
  const std::vector<int> newcomers_;
  std::vector<Node> nodes_;           // with votes, by their lowest ranks
  std::vector<std::size_t> index_;    // [nodes of the topology], nodes_.size(): it has no vote
  std::vector<std::size_t> node_of_;  // [ranks of the last view], else nodes_.size()
  std::size_t mine_ = 0;
  Phase phase_ = Phase::kIdle;
  AgreementMessage proposal_;
  std::uint64_t round_ = 0;
  std::int64_t send_ns_ = 0, retry_ns_ = 0, look_ns_ = 0;
  std::int64_t apart_ns_ = 0;   // since when two nodes cannot reach each other
  std::int64_t ballot_ns_ = 0;  // when the ballot began
};

}  // namespace ferry::internal

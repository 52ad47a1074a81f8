// ViewMessages: between nodes each view has its own messages. A rank tells its peers when it begins
// a view, in the order of its other messages. When it comes to the next view it reads no more
// messages of the last one, and keeps those of the next one until that view begins.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "ferry/group.h"
#include "ferry/status.h"

namespace ferry::internal {

class GroupState;
struct MessageHead;
struct Offer;

class ViewMessages {
 public:
  // A message that is read later; or one of the agreement on a view, without its head.
  struct Kept {
    std::uint64_t view;
    int from;
    std::vector<std::byte> message;
  };

  explicit ViewMessages(int size) : sends_(size, 1) {}

  // Whether a rank of another node has said that it left, or its link is lost.
  static bool unreachable(const GroupState& group, int rank) noexcept;

  // During survive(): the ranks of nodes whose hosts are silent count as lost. A host that is gone,
  // or cut off, sends no error, and the network waits for it without limit.
  static void lose_silent_nodes(GroupState& group);
  // The ranks of the node of `rank` count as lost: the node gave up this view, which has begun with
  // its ranks. Call with the lock of the group.
  void lose_node_that_gave_up(GroupState& group, int rank) const;

  // These are for threads that have the lock of the group.
  // Whether a message is to be read now; else it is kept if it is read later.
  bool is_for_now(GroupState& group, int from, const MessageHead& head,
                  std::span<const std::byte> message);
  // False: this rank has come to the next view, which has not begun.
  bool begun() const noexcept { return begun_; }
  // Sends the number of its view to peers to which this rank has just connected.
  void send_view(GroupState& group, const std::vector<int>& peers) const;
  // The messages of the agreement that have come.
  std::vector<Kept> take_agreement();
  // Puts back messages of later views that were among them, unless newer ones have come.
  void put_back(std::vector<Kept> later);
  // A rank that asks for a view which has begun gets the ranks of that view: the rank that decided
  // the view may have died before it told all. To a rank that asks for a later view, a rank that
  // has left says so again: they may have exchanged no message before. The ranks of a node that
  // gave up the last view which this rank has begun count as lost.
  void answer_late_ranks(GroupState& group);

  // Collective among the members of this view: the lowest one says where they meet. Returns what it
  // says. Throws Error. (meeting.cc)
  static std::string pass_on_meeting(GroupState& group, const std::string& mine,
                                     const Deadline& by);

  // On a newcomer: whether the channel belongs to an object that it may join and has not joined. If
  // so, keeps the message.
  bool holds(std::uint32_t channel, int from, std::span<const std::byte> message);
  // The messages of such a channel, which is open now.
  std::vector<Kept> take_held(std::uint32_t channel);

  // These take the lock.
  // The objects of the offers are those that this rank may join in the view that begins.
  void hold(GroupState& group, const std::vector<Offer>& offers);
  // This rank comes to the next view: from now on it stores nothing for the last one, and reads no
  // memory for it.
  void end(GroupState& group, std::uint64_t next) noexcept;
  // This rank is about to begin the view: its links are to the ranks of the view, and what it sends
  // from now on is of that view. An error: a link cannot be made.
  std::optional<Error> begin_links(GroupState& group, const View& view) noexcept;
  // All objects of this rank have begun the view. `decided`: what late ranks get as an answer.
  void begin(GroupState& group, std::uint64_t view, std::vector<std::byte> decided) noexcept;

 private:
  static bool are_alike(const Kept& one, const Kept& other);
  static void lose(GroupState& group, const std::vector<int>& members, const std::set<int>& nodes,
                   const std::string& why);
  void keep_of_agreement(Kept message);

  std::uint64_t reading_ = 1;         // messages of this view are read
  bool begun_ = true;                 // false: they are kept until the view begins
  std::vector<std::uint64_t> sends_;  // [ranks] the view of the messages that now come from it
  std::vector<Kept> kept_;            // in order of arrival
  std::map<std::uint32_t, std::vector<Kept>> held_;  // by channel
  // At most one of a rank and a kind, also of a view to which this rank has not come yet.
  std::vector<Kept> agreement_;
  std::map<std::uint64_t, std::vector<std::byte>>
      decided_;               // by view: the text that says its ranks
  std::vector<int> members_;  // those of the last view in decided_
};

}  // namespace ferry::internal

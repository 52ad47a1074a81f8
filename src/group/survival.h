// Survival: the view of a group, and the objects that go on in the next view.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "bootstrap/rendezvous.h"
#include "ferry/group.h"
#include "ferry/status.h"
#include "group/view_messages.h"
#include "memory/segment.h"

namespace ferry::internal {

// What a newcomer needs to join an object that the members of its group have.
struct Offer {
  std::string terms;  // equal on all ranks
  std::shared_ptr<Segment> segment;
  // Names the object: the number of its first channel between nodes, else that of its segment.
  std::uint64_t number = 0;
  bool is_new = false;  // the segment: no member of this node has the object
};

// An object of a group, such as an exchange, that outlives a view.
class Lasting {
 public:
  virtual ~Lasting() = default;
  // This rank is about to come to view `next`, and makes no more calls in the last one. Writes to
  // memory of this rank what others read in renew().
  virtual void prepare(std::uint64_t next) noexcept = 0;
  // The view has begun: all its ranks have prepared, or lack the object. No rank is in a call of an
  // earlier view.
  virtual void renew(const View& view) noexcept = 0;

  virtual Offer offer() const = 0;
  // On one member of each node, while all members are in admit(): writes for the newcomer `rank`
  // what prepare() writes for a rank that has called nothing. Throws Error(kCapacity).
  virtual void make_place(int rank, std::uint64_t next) = 0;
  // Between nodes: what `rank` wrote in prepare() for `object`, which has this number on all ranks:
  // `number`, its last operation.
  struct Prepared {
    std::uint64_t number = 0;
    std::uint32_t object = 0, rank = 0;
  };
  // Appends what this node knows of its own ranks and of others.
  virtual void append_prepared(std::uint64_t next, std::vector<Prepared>& known) const = 0;
  // Writes what ranks of other nodes prepared to memory of this node. One rank of the node calls
  // it.
  virtual void store_prepared(std::uint64_t next, const std::vector<Prepared>& known) noexcept = 0;
};

class Survival {
 public:
  explicit Survival(int size);

  const View& view() const noexcept { return view_; }
  bool has(int rank) const noexcept { return is_member_[rank]; }
  // [ranks], to wait for those of the view; null: for all.
  const std::vector<bool>* waited() const noexcept {
    return view_.members.size() == is_member_.size() ? nullptr : &is_member_;
  }

  // The first view; on a newcomer the view of the members, to which it does not belong yet.
  void set_view(View view) noexcept;
  // From add() to remove() the object is renewed with each view.
  void add(Lasting* object);
  void remove(Lasting* object) noexcept;
  // The offers of the objects, in the order in which these were added.
  std::vector<Offer> offers();
  // Lasting::make_place() of the object with this segment, unless this rank has destroyed it.
  void make_place(const Segment& segment, int rank, std::uint64_t next);
  // On a newcomer, in the view in which it was admitted: offers that it has not taken.
  void set_open_offers(std::vector<Offer> offers);
  // On a newcomer of a node without members: what the ranks of other nodes have prepared for the
  // view.
  void set_known(std::vector<Lasting::Prepared> known) { known_ = std::move(known); }
  const std::vector<Lasting::Prepared>& known() const noexcept { return known_; }
  // Takes the first one whose terms fit; nothing: none does.
  std::optional<Offer> take_offer(const std::function<bool(const std::string& terms)>& fit);
  // Counts the objects that have a thread of their own, which reads the view. While there is one,
  // survive() and admit() refuse. Relaxed: they are made in a Making, which orders this before
  // next_view_held() looks.
  void hold(int change) noexcept { held_.fetch_add(change, std::memory_order_relaxed); }
  int held() const noexcept { return held_.load(std::memory_order_relaxed); }
  // An object of a broken group ends. If this rank has prepared for the next view, the others may
  // count on the object there: `depart` is called when the view begins, and lets their waits end.
  void depart_in_next_view(std::function<void()> depart) noexcept;

  // Where the ranks of a later view meet to make objects, without the lost ranks. It is made when
  // they meet for the first time; if that fails, it fails again until the next view.
  struct Meeting {
    std::uint64_t group = 0;  // a number that only the ranks of this group have
    std::unique_ptr<Rendezvous> place = {};
    std::optional<Error> failure = {};
  };
  Meeting& meeting() noexcept { return meeting_; }
  // Guarded by the lock of the group.
  ViewMessages& messages() noexcept { return messages_; }
  // `view`: the first view, or that of the last admission, with the ranks that met at the
  // rendezvous of the group to begin it. That view may begin with fewer of them.
  void set_met_for(View view) noexcept { met_for_ = std::move(view); }
  // Whether they are the ranks of this view.
  bool have_met() const noexcept {
    return met_for_.number == view_.number && met_for_.members == view_.members;
  }

  // Calls of this rank that make an object of the group, or have waited for a millisecond or more
  // and still wait. While there is one, survive() and admit() in another thread are refused.
  std::atomic<int>& num_calls() noexcept { return num_calls_; }
  // Whether a thread of this rank is in survive().
  std::atomic<bool>& surviving() noexcept { return surviving_; }
  // Held in each step of this rank in the agreement of nodes, and while it leaves: another thread
  // of the speaker may leave, and the next speaker goes on with what the last one has written.
  std::mutex& step() noexcept { return step_; }

  void prepare(std::uint64_t next) noexcept;
  void begin(View view) noexcept;
  // Lasting::append_prepared() and store_prepared() of all objects.
  std::vector<Lasting::Prepared> prepared(std::uint64_t next);
  void store_prepared(std::uint64_t next, const std::vector<Lasting::Prepared>& known) noexcept;

 private:
  View view_, met_for_;
  std::vector<bool> is_member_;  // [ranks]
  Meeting meeting_;
  ViewMessages messages_;
  std::vector<Lasting::Prepared> known_;
  std::atomic<int> held_{0}, num_calls_{0};
  std::atomic<bool> surviving_{false};
  std::mutex step_;
  std::mutex mutex_;
  // Guarded by the mutex.
  std::uint64_t prepared_ = 0;  // the last view for which this rank prepared
  std::vector<Lasting*> objects_;
  std::vector<std::function<void()>> departures_;
  std::vector<Offer> open_offers_;
};

class GroupState;

// How a rank goes to the next view, whether ranks are lost (survive.cc) or come back (admit.cc,
// admit_between_nodes.cc).
class NextView {
 public:
  // This rank gets ready for the view, and makes no more calls in the last one.
  static void prepare(GroupState& group, std::uint64_t next) noexcept;
  // The view begins: all its ranks are ready. `offers`: those that a newcomer may take in it.
  static void begin(GroupState& group, View view, std::vector<Offer> offers = {}) noexcept;

  // On members and newcomers: they begin the view of an admission together. Throws Error if it does
  // not begin. `offers`: on a member, those that the admission counts. `invited`: as in
  // Rendezvous::among().
  static void enter(GroupState& group, const Admission& admission, std::vector<Offer> offers,
                    BootstrapCollectives* invited, const Deadline& by);
  // Throws Error if a member is lost: while ranks meet, no connection shows the loss of a rank that
  // has not come.
  static void look_for_loss(GroupState& group);
  // Ends the view if the link to one of its ranks is lost, and returns the loss. A link to a rank
  // that has left does not count: the rank may have left because another one was lost.
  static Status end_by_lost_link(GroupState& group);
  static std::optional<Error> loss_in(GroupState& group);  // what look_for_loss() throws
  // Whether this rank has come to the view.
  static bool has_come(const GroupState& group, std::uint64_t view) noexcept;
  static std::uint64_t last_admission(const GroupState& group) noexcept;
  // Makes the group on a newcomer that has met the others at `meeting`.
  static std::shared_ptr<GroupState> newcomer(std::unique_ptr<Rendezvous> meeting,
                                              const Admission& admission,
                                              const GroupOptions& options,
                                              const GroupOrigin& origin, const Deadline& by);

 private:
  static void enter_on_one_node(GroupState& group, const Admission& admission,
                                std::vector<Offer> offers, BootstrapCollectives* invited,
                                const Deadline& by);
  static void enter_between_nodes(GroupState& group, const Admission& admission,
                                  std::vector<Offer> offers, BootstrapCollectives* invited,
                                  const Deadline& by);
  // On a member: meets the others anew, and passes on the memory of the group.
  static std::unique_ptr<Rendezvous> meet(GroupState& group, const Admission& admission,
                                          BootstrapCollectives* invited, const Deadline& by);
  // Collective: the members pass on `offers`, which are empty on newcomers.
  static void pass_on(std::vector<Offer>& offers, const Admission& admission, Rendezvous& meeting,
                      const Deadline& by);
  static void make_places(GroupState& group, const Admission& admission,
                          const std::vector<Offer>& offers);
  // These are for several nodes (admit_between_nodes.cc).
  static void begin_memory(GroupState& group, const Admission& admission, Rendezvous& all,
                           const Deadline& by);
  static void link(GroupState& group, const Admission& admission, Rendezvous& all,
                   const Deadline& by);
  static void replace(GroupState& group, int rank, const std::string& job_and_address);
  static void come_as_member(GroupState& group, const Admission& admission,
                             std::unique_ptr<Rendezvous> meeting, const Deadline& by);
  static void take_seats(GroupState& group, const Admission& admission) noexcept;
  // On a member: it comes to the next view, and begins it when the nodes have agreed on its ranks.
  // `failure`: why this rank does not know that all others come, too (survive.cc).
  static Status settle(GroupState& group, const Admission& admission, const Status& failure,
                       std::chrono::nanoseconds limit) noexcept;
  static void come_as_newcomer(GroupState& group, const Admission& admission,
                               std::vector<Offer> offers, const Deadline& by);
  static bool has_seat(GroupState& group, const Admission& admission);
  static std::vector<int> await_decision(GroupState& group, const Admission& admission,
                                         const Deadline& by);
};

// A call of this rank that makes an object of a group, which takes several meetings of one view.
// Such a call, and survive() or admit() in another thread, refuse each other.
class Making {
 public:
  // Throws Error while survive() or admit() runs. Without a group it does nothing.
  explicit Making(std::shared_ptr<GroupState> group);
  ~Making();
  Making(const Making&) = delete;
  Making& operator=(const Making&) = delete;

 private:
  std::shared_ptr<GroupState> group_;
};

// Call where this rank could not meet the others because one was lost; `why` is the error of the
// call. Returns the cause, and shows it to the others, which may find this rank dead later.
Error absence(GroupState& group, const Error& why);

// Collective: where the ranks of the view meet to make objects. Throws Error if they do not meet.
Rendezvous& meeting_of(GroupState& group, const Deadline& by);
// Runs `call` with that rendezvous. If it fails, the error names the cause, if a rank of the group
// has reported it or is lost (meeting.cc).
void meet_in_view(GroupState& group, const Deadline& by,
                  const std::function<void(Rendezvous&, const Deadline&)>& call);
// Returns the text of each member, by its place in the view.
std::vector<std::string> gather_in_view(GroupState& group, const std::string& mine,
                                        const Deadline& by);

// An error while this rank has what does not outlive the view: a call in another thread, or
// exchanges of CUDA ranks. survive() and admit() then change nothing.
Status next_view_held(GroupState& group);

// Group::fence().
Status fence(GroupState& group, int rank) noexcept;

// The verdict of the group for an object that was made in a view and does not outlive it.
Status verdict_in(GroupState& group, std::uint64_t view, const char* object) noexcept;

}  // namespace ferry::internal

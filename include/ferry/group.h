// Group: the ranks that exchange tokens, as threads of one process, or as processes of one host or
// of several.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ferry/export.h"
#include "ferry/status.h"
#include "ferry/topology.h"

namespace ferry {

namespace internal {
class GroupState;
}

// A caller's own all-gather, called while the group is made: once, or twice if the ranks are on
// several hosts. Every rank gives `bytes` bytes at `mine`. When it returns true, `all` has the
// bytes of all ranks, in rank order.
using AllGather = std::function<bool(const void* mine, void* all, std::size_t bytes)>;

struct GroupOptions {
  // The deadline of each call of the group and of its exchanges: the join, the creation of an
  // exchange, a barrier, a dispatch, a half. All waits of the call together end by then. In a
  // barrier and in operations, time in which this rank did not run, or moved rows, counts for at
  // most a tenth of a second.
  std::chrono::nanoseconds deadline = std::chrono::seconds(100);
  // Called every few milliseconds of a wait, by the waiting thread; true ends the wait as a
  // deadline does, and this rank is the culprit. For programs with signals of their own (Python's
  // Ctrl-C). Must not throw.
  std::function<bool()> interrupted = {};
  // Distinguishes groups that the same ranks create at the same time; equal on all ranks of one
  // group.
  std::string name = {};
  // Levels of the group, such as "host:2,rank:4" (Topology::parse), equal on all ranks; empty:
  // FERRY_TOPOLOGY, else the hosts that are found. Ranks of different hosts in it use the network
  // even if they could share memory.
  std::string topology = {};
  // This process takes the place of a rank that the view of a running group lacks. The call
  // that joins waits, at the address of that group, until its members call Group::admit(). Between
  // hosts the address is the group's port on the first host that still has ranks. This process
  // needs the version, build, user and FERRY_SECRET of the members. Also set, for
  // from_environment(), by FERRY_NEWCOMER=1, which `ferry launch --restart` gives to a rank that it
  // starts again. The first view of a newcomer has a number above 1.
  bool newcomer = false;
  // The ranks that the group begins with, ascending and equal on all of them; empty: all. Its first
  // view lacks the others, which may come later: a process whose rank is not one of `members` is a
  // newcomer. Between hosts the topology says on which host each absent rank will be. Also set, for
  // from_environment(), by FERRY_GROUP_SIZE, the size of a group that begins with the ranks of the
  // job. Only for processes that meet at an address.
  std::vector<int> members = {};
};

// How a group was found: the launcher in the environment, and the reason.
struct GroupOrigin {
  std::string launcher;  // "torchrun", "openmpi", "hydra", "pmix", "slurm", "address", "threads",
                         // "callback"
  std::string reason;    // such as "RANK=3 and WORLD_SIZE=8 are set"
  // Where a process can take the place of a rank that the view lacks: an address for
  // Group::connect(), with the same size and GroupOptions::name. Empty for threads, and for several
  // hosts that met by an all-gather without FERRY_SECRET.
  std::string address = {};
};

// The ranks that a group consists of now. A group begins with view 1, of all ranks or of
// GroupOptions::members. Each Group::survive() and Group::admit() begins the next view. Ranks keep
// their numbers.
struct View {
  std::uint64_t number = 1;
  std::vector<int> members = {};  // ascending
};

// One rank's membership. Copies share it. barrier(), all_gather(), survive(), admit() and the
// functions that make a Group, except threads(), are collective: every rank calls them in the same
// order. All other calls are local.
class FERRY_EXPORT Group {
 public:
  Group() = default;  // not a member of a group; every call except destroy() throws or fails

  // Ranks as processes, of one host or of several. Reads, in this order: FERRY_ADDR (with
  // FERRY_RANK, FERRY_SIZE), torchrun, Open MPI, Hydra (MPICH), PMIx, Slurm. Throws Error when none
  // is found, naming the variables of all of them. The ranks of a job that spans hosts meet at
  // FERRY_ADDR=tcp://host:port, with any launcher. Without it the host is MASTER_ADDR or Slurm's
  // first host, and the port FERRY_PORT, MASTER_PORT + 1, or with Slurm one that follows from the
  // numbers of job and step. Such a job needs FERRY_SECRET as connect() does.
  static Group from_environment(const GroupOptions& options = {});

  // Ranks as processes that agree on `address`. tcp://host:port, where rank 0 can be reached: ranks
  // of any hosts. They prove to each other that they know the same FERRY_SECRET, 16 or more
  // characters, without sending it. Rank 0 listens on all interfaces, or on those that
  // FERRY_SOCKET_IFNAME names. Any other text, of 1 to 64 bytes: ranks of one host and user.
  static Group connect(const std::string& address, int rank, int size,
                       const GroupOptions& options = {});

  // Ranks as processes, of one host or of several, that already have an all-gather (MPI, a store, a
  // torch process group). Across hosts they prove that they know FERRY_SECRET, if it is set. Else
  // rank 0 draws a secret, which is sent in clear in the all-gather.
  static Group from_all_gather(int rank, int size, const AllGather& all_gather,
                               const GroupOptions& options = {});

  // Ranks as threads of this process: element i is for the thread that is rank i.
  static std::vector<Group> threads(int size, const GroupOptions& options = {});

  int rank() const;
  int size() const;
  const GroupOrigin& origin() const;
  // The topology of the options, else that of the ranks' hosts: two levels, "host" and "rank".
  const Topology& topology() const;

  // Waits until every rank has called it.
  [[nodiscard]] Status barrier() noexcept;

  // Gathers `bytes` (equal on all ranks) from every rank, in rank order, into `all` of size() *
  // bytes. The bytes of a rank that the view lacks are 0.
  [[nodiscard]] Status all_gather(const void* mine, std::size_t bytes, void* all) noexcept;

  // False after a rank died, departed, or missed a deadline: the view is over. survive() begins the
  // next view, or a new group is needed.
  bool usable() const noexcept;

  // The view that this rank is in. Not to be called while survive() runs.
  const View& view() const;

  // Collective among the ranks of the view that live, when the group is broken or one of them wants
  // to end the view. Ends the view, and begins the next one, without the ranks that died or left.
  // No other call of this rank on the group or its exchanges may be in progress; kInvalidArgument
  // if another thread is seen to wait in one, makes an exchange or is in survive(). Operations in
  // flight end with an error; exchanges go on, with their memory. Exchanges and collectives that
  // are made later are of the ranks of the view; unless the configuration places the experts, these
  // ranks own them. A rank that is alive is waited for until the deadline (0: that of the group),
  // then the error is kTimeout, with its number, and the call may be repeated. Between nodes, a
  // node of which no rank can be reached is left behind, and the nodes that go on had more than
  // half of the ranks of the view, or half and the lowest one; otherwise the error is kPeerLost,
  // and a new group is needed. kClosed: the others went on without this rank.
  [[nodiscard]] Status survive(std::chrono::nanoseconds deadline = {}) noexcept;

  // Ends the process of a rank (SIGKILL) that is alive and does not come to survive(), such as one
  // that is stuck or stopped: survive() does not begin a view without it, as it shares the memory
  // of the others. Local; returns when the process has ended, or kTimeout at the group's deadline.
  // kInvalidArgument: the group is usable; or the rank is this one, a thread of this process, of
  // another host, or not in the view. kSystem: the kernel refuses. Ok for a process that has ended.
  [[nodiscard]] Status fence(int rank) noexcept;

  // Collective among the ranks of the view, between two operations, while the group is usable: lets
  // processes take the places of `ranks`, which the view lacks; empty: of all that it lacks. They
  // join with GroupOptions::newcomer. Waits until a process has come for each of them, and begins
  // the next view, which has them. All or nothing: where it ends with an error, this view goes on
  // on all ranks, and the call may be repeated. kPeerRejected: no process came for a rank in time
  // (0: the deadline of the group), or it died. kPeerLost: a member died, and the view is over.
  // Between nodes, a newcomer that dies when all are ready may be missing in the next view, which
  // begins all the same: kPeerRejected. Operations in flight end. Exchanges that all members have
  // go on: the newcomers join them (Exchange::join). Only for processes.
  [[nodiscard]] Status admit(std::span<const int> ranks = {},
                             std::chrono::nanoseconds deadline = {}) noexcept;

  // Leaves the group. Local, returns at once. Ranks that later wait for this one get kPeerLost at
  // once. Received rows and handles stay valid. The last copy's destructor does the same. No other
  // call of this rank may be moving rows if the other ranks may call survive().
  void destroy() noexcept;

  // Only for ferry's own modules.
  const std::shared_ptr<internal::GroupState>& state() const noexcept { return state_; }

 private:
  friend class internal::GroupState;
  explicit Group(std::shared_ptr<internal::GroupState> state) : state_(std::move(state)) {}
  std::shared_ptr<internal::GroupState> state_;
};

// Runs body(group of rank i) on `size` threads and waits for all; rethrows the first exception, by
// rank.
FERRY_EXPORT void run_threads(int size, const std::function<void(Group)>& body,
                              const GroupOptions& options = {});

// The environment variables of a place in a job, such as RANK, as names and values.
using Place = std::vector<std::pair<std::string, std::string>>;

// Waits until this process has a place in its job. Returns nothing, at once, unless the process is
// a spare, which `ferry launch --spares` starts before a rank is lost (FERRY_SPARE=1). A spare
// waits until it gets the place of a lost rank; each later call returns that place again. The
// environment stays as it is. Group::from_environment calls this function; a program that reads
// such variables itself, or whose libraries do, calls it before. The wait has no deadline: the
// launcher kills a spare that no rank needs, and the kernel does when the launcher dies. Throws
// Error: kInterrupted when `interrupted` returns true, kClosed when the launcher gives no place.
FERRY_EXPORT Place await_place(const std::function<bool()>& interrupted = {});

}  // namespace ferry

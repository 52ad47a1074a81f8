// GroupState: the implementation of Group. It owns the rendezvous, the flags that all ranks of a
// group share, and the verdict when the group breaks. Exchanges use it to wait for ranks, to wake
// ranks and to agree with them.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/environment.h"
#include "bootstrap/rendezvous.h"
#include "ferry/group.h"
#include "ferry/topology.h"
#include "group/shared_flags.h"
#include "group/survival.h"
#include "network/message_channel.h"
#include "topology/forwarding_table.h"

namespace ferry::internal {

struct Await;
struct Seen;
class CallTime;
class CountedWait;

// The first bytes of every message between nodes.
struct MessageHead {
  std::uint32_t channel;  // 0: the group, else that of an exchange
  std::uint8_t kind;      // a number that the channel defines
  // For an exchange: the level at which the message crosses, since its reader passes it on at the
  // levels further in, and the rank that it is about.
  std::uint8_t level = 0;
  std::uint16_t source = 0;
  std::uint64_t number;  // number of the operation
};
static_assert(Topology::kMostRanks <= 65536);

// The kinds of messages of a group.
struct GroupMessage {
  enum : std::uint8_t {
    kBarrier,
    kAbort,
    kAcknowledgement,
    kListens,
    kBeginsView,  // later messages of this rank are of that view (view_messages.h)
    kAgreement,
    kMeeting  // where the members of this view meet (meeting.cc)
  };
};

// A message that has come; valid while it is read.
struct InMessage {
  int from;
  MessageHead head;
  std::span<const std::byte> body;
};

// Channel: through it a group passes messages of other nodes to the owner of the channel, such as
// an exchange. The owner sets `holds` and `done` in each go_on(); GroupState sets `kept_open`.
// Guarded by the lock of the group.
struct Channel {
  // Reads one message, in the order in which they come. It sends nothing.
  std::function<void(const InMessage&)> read;
  // Sends the replies to messages that were read, and messages that waited for room or for other
  // ranks. True if something was sent.
  std::function<bool()> go_on;
  struct Awaited {
    std::vector<int> owing;     // peers that have not sent data for which others wait
    std::vector<int> expected;  // peers with more messages, which no awaited flag shows
  };
  // Computed when this rank gives up, to choose the rank that its error names.
  std::function<Awaited()> awaited;
  bool holds = false;                    // keeps messages that others wait for
  bool done = false;                     // no rank needs the channel any more
  std::shared_ptr<void> kept_open = {};  // its owner, until it is done (GroupState::keep_open)
};

// The state of a group's messages between nodes. Guarded by `mutex`, except the members that are
// atomic or are set when the group is made.
struct BetweenNodes {
  explicit BetweenNodes(int size)
      : addresses(size),
        reached(size),
        acknowledged(size),
        listens(size),
        lost(size),
        farewell(size) {}

  // The threads that move messages. Before the group is made and after its end none does: messages
  // wait in the network then.
  struct Progress {
    mutable std::mutex mutex;
    // Threads that wait for the mutex. The progress thread takes the mutex after them.
    mutable std::atomic<int> waiting{0};
    bool open = false;
    bool own_thread = false;  // FERRY_PROGRESS=thread
    std::jthread thread;
  };
  Progress progress;
  std::vector<std::string> addresses;       // [ranks]
  ForwardingTable forwarding;               // of all ranks
  std::vector<bool> reached, acknowledged;  // [ranks]
  std::vector<int> to_acknowledge;  // ranks whose abort word was read since the last progress
  std::vector<bool> listens;        // [ranks] waits for messages of this rank
  std::map<std::uint32_t, Channel*> channels;
  static constexpr std::uint32_t kChannelsOfObject = 2;  // the most of one exchange or Collectives
  std::uint32_t num_objects = 0;                         // with channels, so far
  std::uint32_t last_channel = 0;
  std::uint64_t want_sent = 0;
  // Raised to want_sent when everything has been sent (await_sent).
  std::atomic<std::uint64_t> sent{0};
  // [ranks] whether its link is lost; whether it has sent that it departed. Set with release, read
  // with acquire. Cleared when another process takes the place of the rank.
  std::vector<std::atomic<bool>> lost, farewell;
  std::map<int, std::string> why_lost;
};

// The reason why calls on this group end with an error from now on.
struct GroupVerdict {
  std::mutex mutex;
  Status status;  // set once, guarded by the mutex
  // `status` is set. Release in break_group, acquire in verdict().
  std::atomic<bool> broken{false};
  std::atomic<bool> closed{false};  // this rank left; release in leave, acquire in verdict()
};

class GroupState {
 public:
  // `by`: the deadline of the join.
  GroupState(std::unique_ptr<Rendezvous> rendezvous, const GroupOptions& options,
             GroupOrigin origin, const Deadline& by, const TransportFactory& make = ucx_transport);
  // For tests: one rank of a group that meets in some other way, and threads over another network.
  static Group join(std::unique_ptr<Rendezvous> rendezvous, const GroupOptions& options,
                    const GroupOrigin& origin, const Deadline& by, const TransportFactory& make);
  static std::vector<Group> threads(int size, const GroupOptions& options,
                                    const TransportFactory& make);
  ~GroupState();

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  const GroupOrigin& origin() const noexcept { return origin_; }
  Rendezvous& rendezvous() const noexcept { return *rendezvous_; }  // of Survival::set_met_for()
  std::chrono::nanoseconds default_deadline() const noexcept { return options_.deadline; }
  Deadline deadline(std::chrono::nanoseconds limit = {}) const noexcept {  // 0: the default
    return Deadline::after(limit.count() > 0 ? limit : options_.deadline, &options_.interrupted);
  }

  // Whether the ranks of this machine, each with so many threads, exceed its allowed processors.
  bool crowded(int workers) const noexcept { return num_neighbours_ * workers > num_cpus_; }
  const Topology& topology() const noexcept { return topology_; }
  bool one_node() const noexcept { return topology_.num_nodes() == 1; }
  // [ranks] the place of each among the ranks of this node; -1: it is of another node.
  const std::vector<int>& local_ranks() const noexcept { return local_ranks_; }
  bool here(int rank) const noexcept { return local_ranks_[rank] >= 0; }

  Status barrier() noexcept { return barrier(options_.deadline); }
  Status barrier(std::chrono::nanoseconds limit) noexcept;
  Status all_gather(const void* mine, std::size_t bytes, void* all) noexcept;

  // The one wait loop (wait.cc): returns when every awaited flag is up, the group breaks, or the
  // deadline passes. Throws only what Await::meanwhile throws. `counts`: others see this rank wait
  // (blame.h); false for a thread beside that of its calls. `call`: counts several waits as one.
  Status wait(const Await& await, bool counts = true, CountedWait* call = nullptr);
  // Waits for half a second at most until `rank`, which has destroyed what `await` is about, leaves
  // the group or ends, and then breaks the group. Ok: the rank did neither.
  Status await_end(Await await, int rank);

  // Wakes the ranks of this node that sleep, or one of them. Call it after raise().
  void ring() noexcept { flags_->ring(node_ranks_); }
  void ring(int rank) noexcept { flags_->ring({&rank, 1}); }
  RankCounters& counters() noexcept { return flags_->counters(); }  // of this rank
  // For groups of several nodes (between_nodes.cc). On one node only progress() may be called.
  bool progress() { return messages_ && !nodes_.progress.own_thread && move_messages(); }
  bool move_messages();  // reads messages and sends what waits. True when something moved
  // Held while messages are read. Messages may be sent with it held.
  [[nodiscard]] std::unique_lock<std::mutex> lock() const;
  MessageChannel& messages() const noexcept { return *messages_; }
  // Connects to the mates of a table, and to ranks that send here. Call before messages to a mate.
  void reach(const ForwardingTable& forwarding, bool together);
  // Call on all ranks before one opens channels of an object, so that their numbers are equal.
  void begin_channels() noexcept;
  // On a newcomer that joins an object, before and after it opens its channels.
  void begin_channels_at(std::uint64_t first) noexcept;
  void release_channel(std::uint32_t number);
  std::uint32_t open_channel(Channel* channel);  // messages for a closed channel are dropped
  void close_channel(std::uint32_t number) noexcept;
  void keep_open(std::uint32_t number, std::shared_ptr<void> owner);
  // True when a rank gave up, ended, left the view or cannot be reached. `sends_here`: it sends to
  // this rank, and its last messages may come after others have said that it departed.
  bool ended(int peer, bool sends_here) const noexcept;
  const ForwardingTable& forwarding() const noexcept { return nodes_.forwarding; }  // of all ranks
  // Waits until messages to `mates` are sent. Call before a return to the caller, who may compute.
  Status await_sent(Await await, const std::vector<bool>& mates);

  bool aborted() const noexcept { return reporter() >= 0; }  // some rank has given up on the group
  // Ok while the group is usable. The first error has the code, phase and culprit of the report.
  Status verdict() noexcept;
  bool usable() const noexcept;
  Status death_here() const noexcept;  // kPeerLost if a rank of this node died unreported; else ok
  void leave() noexcept;
  // Breaks the group for all ranks: a call failed inside ferry on this one.
  Status fail(const std::string& text) noexcept { return break_group(Code::kBroken, rank_, text); }
  Status survive(std::chrono::nanoseconds limit) noexcept;                            // survive.cc
  Status admit(std::span<const int> ranks, std::chrono::nanoseconds limit) noexcept;  // admit.cc
  const View& view() const noexcept { return survival_.view(); }
  Survival& survival() noexcept { return survival_; }
  const Survival& survival() const noexcept { return survival_; }

  std::string name_of(int rank) const;  // "rank 2 (pid 4711)"
  // FERRY_LOG: prints a line with rank, host and pid when `level` is wanted.
  void log(LogLevel level, const std::string& text) const noexcept;

 private:
  bool receive_and_send();
  void read(int from, std::span<const std::byte> message, bool kept = false);
  void read_barrier(int from, std::uint64_t number, std::span<const std::byte> piece);
  void lost(int peer, const std::string& why);
  bool raise_sent();
  void live(const std::stop_token& ending);
  void begin_progress();
  void end_progress();
  void join_nodes(const TransportFactory& make, const Deadline& by);
  void await_links(const std::optional<Error>& failure, const Deadline& by);  // await_links.cc
  std::string missing_links();
  bool all_sent() const;
  void send(int peer, std::uint8_t kind, std::uint64_t number,
            std::span<const std::byte> body = {});
  void send_abort(std::uint64_t word) noexcept;
  void send_abort_to_listeners();
  void connect(const std::vector<int>& peers);
  void read_abort(int from, std::uint64_t word, std::span<const std::byte> report);
  Status arrive(std::span<const std::byte> piece, CallTime& time) noexcept;
  std::string how_far(const Await& await, const std::vector<int>& missing) const;
  const char* state_of(int rank, Code code) const noexcept;
  Seen look(const Await& await, const std::vector<int>& missing) const;
  int gone_culprit(const Await& await, const std::vector<int>& missing) const;
  bool is_blamed_while_waiting(const Await& await, std::uint64_t word) const noexcept;
  std::vector<int> waits_here(const Await& await, int missing);
  std::vector<int> waits_since(const std::vector<std::vector<std::uint64_t>>& waited) const;
  int owing(bool lost) const;
  bool gone(const Await& await, int rank) const noexcept;
  void linger() noexcept;

  friend class ViewChange;
  friend class NextView;
  friend class NodesAgreement;
  friend class ViewMessages;
  GroupState(std::unique_ptr<Rendezvous> rendezvous, const GroupOptions& options,
             GroupOrigin origin);  // without flags
  std::string view_is_over(Code code, int culprit) const;
  int reporter() const noexcept;  // the lowest rank that gave up, whose report is used; -1: none
  bool departed(int rank) const noexcept;
  Status give_up(const Await& await, Code code, int culprit);
  Status break_group(Code code, int culprit, const std::string& text) noexcept;
  Status check(const Await& await) noexcept;
  void sleep_until_rung(const Await& await, int peer, std::int64_t waited_ns) noexcept;
  std::uint64_t meet_neighbours(Rendezvous& meeting, const Deadline& by);
  void account(const Await& await, int peer, std::int64_t ns) noexcept;
  std::vector<int> missing_ranks(const Await& await) const;

  std::unique_ptr<Rendezvous> rendezvous_;
  GroupOptions options_;
  GroupOrigin origin_;
  int rank_, size_;
  Topology topology_;
  std::vector<int> node_ranks_;  // the ranks of the view that are of this node, ascending
  std::vector<int> local_ranks_;
  int num_cpus_ = 1, num_neighbours_ = 1;
  LogLevel log_level_ = LogLevel::kNone;

  std::optional<SharedFlags> flags_;          // empty while the group is made
  std::unique_ptr<MessageChannel> messages_;  // null on one node
  BetweenNodes nodes_;
  GroupVerdict verdict_;
  Survival survival_;
};

}  // namespace ferry::internal

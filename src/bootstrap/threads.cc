// Rendezvous of the threads of one process. They share a board under a mutex, on which each rank
// writes its text.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <utility>

#include "base/check.h"
#include "bootstrap/agree.h"
#include "bootstrap/rendezvous.h"
#include "ferry/status.h"

namespace ferry::internal {
namespace {

using Texts = std::vector<std::string>;

struct Failure {
  Code code;
  std::string text;
  int culprit;

  [[noreturn]] void raise() const { throw Error(code, text, culprit); }
};

// The state that the ranks share. There is one gather at a time; the next one begins after the last
// rank has called this one. A place is an index of `ranks`.
struct Board {
  explicit Board(std::vector<int> those)
      : ranks(std::move(those)), texts(ranks.size()), came(ranks.size()), departed(ranks.size()) {}

  std::vector<int> missing() const {
    std::vector<int> missing;
    for (std::size_t place = 0; place < ranks.size(); ++place) {
      if (!came[place]) missing.push_back(ranks[place]);
    }
    return missing;
  }

  // The first missing rank that will never call, or -1.
  int lost() const {
    for (std::size_t place = 0; place < ranks.size(); ++place) {
      if (!came[place] && departed[place]) return ranks[place];
    }
    return -1;
  }

  const std::vector<int> ranks;
  std::mutex mutex;
  std::condition_variable changed;
  Texts texts;
  std::vector<bool> came, departed;
  std::size_t num_came = 0;
  std::shared_ptr<const Texts> gathered;  // the result of the last complete gather
  std::uint64_t num_gathers = 0;
  // Once set, all ranks throw this failure in all later calls. Each thread throws an Error of its
  // own, because ThreadSanitizer cannot see the reference count of an exception's text.
  std::optional<Failure> failure;
  // [nodes] The first rank offers them. They stay until all ranks have taken theirs.
  std::vector<std::shared_ptr<Segment>> segments;
  std::size_t num_taken = 0;
  std::map<std::string, std::weak_ptr<Board>> others;  // the boards of among(), by name
};

class ThreadRendezvous final : public Rendezvous {
 public:
  ThreadRendezvous(std::shared_ptr<Board> board, int rank, const std::vector<int>& nodes)
      : Rendezvous(rank, nodes, board->ranks),
        board_(std::move(board)),
        place_(static_cast<std::size_t>(std::ranges::find(ranks(), rank) - ranks().begin())) {
    FERRY_CHECK(place_, <, ranks().size());
  }

  ~ThreadRendezvous() override {
    const std::lock_guard lock(board_->mutex);
    board_->departed[place_] = true;
    board_->changed.notify_all();
  }

  Texts all_gather(std::string_view mine, Deadline deadline) override {
    std::unique_lock lock(board_->mutex);
    if (board_->failure) board_->failure->raise();
    const std::uint64_t gather = board_->num_gathers;
    FERRY_CHECK(board_->came[place_], ==, false);
    FERRY_CHECK(board_->num_came, <, ranks().size());
    board_->texts[place_] = mine;
    board_->came[place_] = true;
    if (++board_->num_came == ranks().size()) {
      finish_gather();
    } else {
      wait_for_others(lock, gather, deadline);
    }
    FERRY_CHECK(board_->gathered->size(), ==, ranks().size());
    return *board_->gathered;
  }

  std::shared_ptr<Segment> share_segment(std::size_t bytes, Deadline deadline) override {
    check_same_bytes(all_gather(std::to_string(bytes), deadline), ranks());
    check_no_problem(all_gather(place_ == 0 ? offer_segments(bytes) : "", deadline), ranks());
    // The first rank offers other segments only after all ranks have made their next call. So these
    // stay until all ranks have taken theirs.
    const std::lock_guard lock(board_->mutex);
    const int node = nodes()[static_cast<std::size_t>(rank())];
    FERRY_CHECK(static_cast<std::size_t>(node), <, board_->segments.size());
    FERRY_CHECK(board_->num_taken, <, ranks().size());
    std::shared_ptr<Segment> segment = board_->segments[static_cast<std::size_t>(node)];
    FERRY_CHECK(segment->bytes(), ==, bytes);
    if (++board_->num_taken == ranks().size()) {  // the board must not keep the segments alive
      board_->segments.clear();
      board_->num_taken = 0;
    }
    return segment;
  }

  bool alive(int) noexcept override { return true; }
  int kill(int) noexcept override { return EPERM; }
  int pid(int) const noexcept override { return getpid(); }

  // The first rank that calls this makes the new board, and the others find it. They gather there
  // at once. The board does not show that a rank left before it came; Deadline::look() does.
  std::unique_ptr<Rendezvous> among(const std::vector<int>& members, const MeetingPlace& place,
                                    Deadline deadline) override {
    auto made = std::make_unique<ThreadRendezvous>(board_of(members, place.name), rank(), nodes());
    made->all_gather("", deadline);
    return made;
  }

  bool admits() const noexcept override { return false; }
  std::unique_ptr<BootstrapCollectives> await_newcomers(Admission&, Deadline) override { refuse(); }
  std::unique_ptr<Rendezvous> among(const Admission&, BootstrapCollectives*, Deadline) override {
    refuse();
  }
  std::shared_ptr<Segment> pass_on(std::shared_ptr<Segment>, std::size_t, Deadline) override {
    refuse();
  }

 private:
  [[noreturn]] static void refuse() {
    throw Error(Code::kInvalidArgument, "threads cannot take the places of lost ranks");
  }

  std::shared_ptr<Board> board_of(const std::vector<int>& members, const std::string& name) {
    const std::lock_guard lock(board_->mutex);
    std::erase_if(board_->others, [](const auto& other) { return other.second.expired(); });
    std::weak_ptr<Board>& found = board_->others[name];
    std::shared_ptr<Board> board = found.lock();
    if (!board) found = board = std::make_shared<Board>(members);
    FERRY_CHECK(board->ranks.size(), ==, members.size());
    return board;
  }

  void finish_gather() {
    board_->gathered = std::make_shared<const Texts>(std::move(board_->texts));
    board_->texts.assign(ranks().size(), {});
    board_->came.assign(board_->came.size(), false);
    board_->num_came = 0;
    ++board_->num_gathers;
    board_->changed.notify_all();
  }

  void wait_for_others(std::unique_lock<std::mutex>& lock, std::uint64_t gather,
                       Deadline deadline) {
    while (board_->num_gathers == gather) {
      if (board_->failure) board_->failure->raise();
      if (const int lost = board_->lost(); lost >= 0) {
        fail({Code::kPeerLost,
              fmt::format("rank {} left the group while rank {} waited for it", lost, rank()),
              lost});
      }
      if (deadline.passed()) {
        const std::vector<int> missing = board_->missing();
        fail(ended(deadline, rank(),
                   {Code::kTimeout,
                    fmt::format("{} of {} did not come before the deadline of rank {}",
                                rank_list(missing), ranks().size(), rank()),
                    missing[0]}));
      }
      deadline.look([&](const Error& why) { fail(why); });
      constexpr int kLookMs = 50;  // the deadline may be interrupted, so it is tested this often
      board_->changed.wait_for(lock, std::chrono::milliseconds(deadline.remaining_ms(kLookMs)));
    }
  }

  [[noreturn]] void fail(const Error& why) {
    board_->failure = Failure{why.code(), why.what(), why.culprit()};
    board_->changed.notify_all();
    board_->failure->raise();
  }

  // Offers a segment for each node. Returns the error text if the kernel refuses one, else an empty
  // text.
  std::string offer_segments(std::size_t bytes) {
    try {
      std::vector<std::shared_ptr<Segment>> segments;
      for (int node = 0; node < num_nodes(nodes()); ++node)
        segments.push_back(Segment::create(bytes));
      const std::lock_guard lock(board_->mutex);
      FERRY_CHECK(board_->segments.size(), ==, 0U);  // all ranks have taken the earlier ones
      board_->segments = std::move(segments);
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  }

  std::shared_ptr<Board> board_;
  std::size_t place_;
};

}  // namespace

std::vector<std::unique_ptr<Rendezvous>> thread_rendezvous(const std::vector<int>& nodes) {
  const int size = static_cast<int>(nodes.size());
  check_rank(0, size);
  std::vector<int> everybody(nodes.size());
  std::iota(everybody.begin(), everybody.end(), 0);
  const auto board = std::make_shared<Board>(std::move(everybody));
  std::vector<std::unique_ptr<Rendezvous>> ranks;
  ranks.reserve(nodes.size());
  for (int rank = 0; rank < size; ++rank)
    ranks.push_back(std::make_unique<ThreadRendezvous>(board, rank, nodes));
  return ranks;
}

}  // namespace ferry::internal

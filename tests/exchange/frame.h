// The frame of the exchange tests: N ranks as threads or as real processes run one body; a rank
// fails by throwing, and the test reports the errors of all ranks.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <ostream>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "ferry/exchange.h"
#include "ferry/group.h"
#include "network/transport.h"

namespace ferry::test {

enum class Mode { kThreads, kProcesses };
const char* mode_name(Mode mode);
inline void PrintTo(Mode mode, std::ostream* stream) {
  *stream << mode_name(mode);
}  // for GoogleTest

// What a rank throws when something is not as it must be.
class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

void require(bool condition, const std::string& what);
void require_ok(const Status& status, const std::string& what);
// `part`s must all occur in the message, whatever the case of letters.
void require_status(const Status& status, Code code, const std::vector<std::string>& parts,
                    const std::string& what);
// The Error that the action must throw.
Status error_of(const std::function<void()>& action);
bool contains(const std::string& text, const std::string& part);

// What require_equal and require_same_bytes compare: a text, or a function that returns it and is
// called only when something differs, as texts of every row cost more than their comparison.
template <typename What>
std::string text_of(const What& what) {
  if constexpr (std::is_invocable_v<What>) {
    return what();
  } else {
    return what;
  }
}

template <typename T, typename What>
void require_equal(std::span<const T> seen, std::span<const T> expected, const What& what) {
  if (seen.size() != expected.size())
    throw Failure(text_of(what) + ": " + std::to_string(seen.size()) + " elements instead of " +
                  std::to_string(expected.size()));
  for (std::size_t i = 0; i < seen.size(); ++i) {
    if (seen[i] == expected[i]) continue;
    throw Failure(text_of(what) + ": element " + std::to_string(i) + " is " +
                  std::to_string(seen[i]) + " instead of " + std::to_string(expected[i]));
  }
}

// Bit for bit; the message names the byte.
template <typename What>
void require_same_bytes(const void* seen, const void* expected, std::size_t bytes,
                        const What& what) {
  if (bytes == 0 || std::memcmp(seen, expected, bytes) == 0) return;
  const auto* const a = static_cast<const unsigned char*>(seen);
  const auto* const b = static_cast<const unsigned char*>(expected);
  const std::size_t at = std::mismatch(a, a + bytes, b).first - a;
  throw Failure(text_of(what) + ": byte " + std::to_string(at) + " of " + std::to_string(bytes) +
                " is " + std::to_string(a[at]) + " instead of " + std::to_string(b[at]));
}

// What became of one rank.
struct RankEnd {
  std::string failure;  // empty: the body returned
  int signal = 0;       // processes: what killed it
  bool hung = false;    // processes: still running when the frame gave up
};

using Body = std::function<void(Group)>;

// `options` on the nodes of the test, unless they name a topology.
GroupOptions on_test_nodes(GroupOptions options, int num_ranks);

// While it lives, ranks of groups that the frame makes use these transports between nodes. A
// process that comes back (ProcessRanks::come_back) does not use them.
class FrameTransports {
 public:
  explicit FrameTransports(internal::TransportFactory make_transport);
  ~FrameTransports();
  FrameTransports(const FrameTransports&) = delete;
  FrameTransports& operator=(const FrameTransports&) = delete;
};

// Ranks as processes that the test can look at, signal and wait for.
class ProcessRanks {
 public:
  ProcessRanks(int size, const GroupOptions& options, const Body& body);
  ~ProcessRanks();  // kills what still runs
  ProcessRanks(const ProcessRanks&) = delete;
  ProcessRanks& operator=(const ProcessRanks&) = delete;

  int size() const { return static_cast<int>(pids_.size()); }
  pid_t pid(int rank) const { return pids_[rank]; }
  const std::string& address() const { return address_; }
  void send_signal(int rank, int signal) const;
  // Starts another process for a rank that was killed: it takes the place of the rank in its group,
  // and runs the body then.
  void come_back(int rank, GroupOptions options, const Body& body);
  // Waits for all ranks. A rank that has not ended when `patience` is over is killed and marked as
  // hung.
  std::vector<RankEnd> wait(std::chrono::milliseconds patience);

 private:
  [[noreturn]] static void run_child(int rank, int size, const std::string& address,
                                     const GroupOptions& options, const Body& body, int pipe);
  void start(int rank, int size, const GroupOptions& options, const Body& body);
  std::string address_;
  std::vector<pid_t> pids_;
  std::vector<int> pipes_;
};

std::vector<RankEnd> run_ranks_to_end(Mode mode, int size, const GroupOptions& options,
                                      const Body& body);

// Runs the body on every rank and adds a test failure for each rank that failed, with `context`
// (the seed).
void run_ranks(Mode mode, int size, const Body& body, const std::string& context = "",
               const GroupOptions& options = {});
void expect_all_well(const std::vector<RankEnd>& ends, const std::string& context);

// Read from the environment: how much larger or smaller the long tests are (FERRY_STRESS=0.1 for
// sanitizers).
double stress_scale();

// Whether this program runs ten times slower, and keeps memory of its own.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace ferry::test

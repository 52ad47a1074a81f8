// Runs ranks as threads or forked processes, and collects the errors of each for the test.
#include "frame.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <thread>

#include "group/join.h"
#include "group/state.h"
#include "nodes.h"

namespace ferry::test {
namespace {

using Clock = std::chrono::steady_clock;

internal::TransportFactory& frame_transports() {
  static internal::TransportFactory make_transport = internal::ucx_transport;
  return make_transport;
}

// Whether a FrameTransports lives.
bool& transports_are_chosen() {
  static bool chosen = false;
  return chosen;
}

Group connect(const std::string& address, int rank, int size, const GroupOptions& options) {
  if (!transports_are_chosen()) return Group::connect(address, rank, size, options);
  const auto by = internal::Deadline::after(options.deadline);
  return internal::GroupState::join(
      internal::process_rendezvous(address, rank, internal::split_nodes(options, size), by),
      options, {"address", "a test", address}, by, frame_transports());
}

// "" when the body returns.
std::string failure_of(const std::function<void()>& body) {
  try {
    body();
    return "";
  } catch (const Failure& failure) {
    // The message of a call that wrongly succeeded is empty.
    return *failure.what() ? failure.what() : "a requirement without a text does not hold";
  } catch (const std::exception& error) {
    return std::string("threw: ") + error.what();
  }
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  return text;
}

std::vector<RankEnd> run_as_threads(int size, const GroupOptions& options, const Body& body) {
  std::vector<Group> groups =
      internal::GroupState::threads(size, on_test_nodes(options, size), frame_transports());
  std::vector<RankEnd> ends(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&body, &end = ends[rank], group = std::move(groups[rank])]() mutable {
      end.failure = failure_of([&] { body(std::move(group)); });
    });
  }
  for (std::thread& thread : threads) thread.join();
  return ends;
}

// Everything that a rank wrote before it closed its end, or before `give_up`.
std::string read_to_end(int pipe, Clock::time_point give_up, bool& hung) {
  std::string text;
  char buffer[4096];
  while (true) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(give_up - Clock::now()).count();
    pollfd waited{pipe, POLLIN, 0};
    const int ready = poll(&waited, 1, static_cast<int>(std::max<std::int64_t>(left, 0)));
    if (ready < 0 && errno == EINTR) continue;
    hung = ready == 0;
    const ssize_t count = ready > 0 ? read(pipe, buffer, sizeof(buffer)) : 0;
    if (count <= 0) return text;
    text.append(buffer, static_cast<std::size_t>(count));
  }
}

}  // namespace

FrameTransports::FrameTransports(internal::TransportFactory make_transport) {
  frame_transports() = std::move(make_transport);
  transports_are_chosen() = true;
}
FrameTransports::~FrameTransports() {
  frame_transports() = internal::ucx_transport;
  transports_are_chosen() = false;
}

const char* mode_name(Mode mode) { return mode == Mode::kThreads ? "threads" : "processes"; }

Status error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return {error.code(), error.what(), error.culprit()};
  }
  throw Failure("no error");
}

bool contains(const std::string& text, const std::string& part) {
  return lower(text).find(lower(part)) != std::string::npos;
}

void require(bool condition, const std::string& what) {
  if (!condition) throw Failure(what);
}

void require_ok(const Status& status, const std::string& what) {
  if (!status.ok()) throw Failure(what + ": " + code_name(status.code()) + ": " + status.message());
}

void require_status(const Status& status, Code code, const std::vector<std::string>& parts,
                    const std::string& what) {
  const std::string seen = std::string(code_name(status.code())) + " \"" + status.message() + "\"";
  require(status.code() == code, what + ": " + seen + " instead of " + code_name(code));
  for (const std::string& part : parts) {
    require(contains(status.message(), part), what + ": no \"" + part + "\" in " + seen);
  }
}

GroupOptions on_test_nodes(GroupOptions options, int num_ranks) {
  if (options.topology.empty()) options.topology = test_nodes(num_ranks).topology;
  return options;
}

ProcessRanks::ProcessRanks(int size, const GroupOptions& options, const Body& body)
    : pids_(size, -1), pipes_(size, -1) {
  static int groups_made = 0;
  address_ = "test-" + std::to_string(getpid()) + "-" + std::to_string(groups_made++);
  for (int rank = 0; rank < size; ++rank) start(rank, size, options, body);
}

void ProcessRanks::start(int rank, int size, const GroupOptions& options, const Body& body) {
  int ends[2];
  if (pipe(ends) != 0) throw Failure("no pipe");
  const pid_t child = fork();
  if (child < 0) throw Failure("no process");
  if (child == 0) {
    close(ends[0]);
    for (const int other : pipes_) {
      if (other >= 0) close(other);
    }
    run_child(rank, size, address_, options, body, ends[1]);
  }
  close(ends[1]);
  pids_[rank] = child;
  pipes_[rank] = ends[0];
}

void ProcessRanks::come_back(int rank, GroupOptions options, const Body& body) {
  close(pipes_[rank]);
  pipes_[rank] = -1;
  waitpid(pids_[rank], nullptr, 0);
  options.newcomer = true;
  start(rank, size(), options, body);
}

void ProcessRanks::run_child(int rank, int size, const std::string& address,
                             const GroupOptions& options, const Body& body, int pipe) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const std::string failure =
      failure_of([&] { body(connect(address, rank, size, on_test_nodes(options, size))); });
  // What the body says is short enough for the pipe's buffer.
  const ssize_t written = write(pipe, failure.data(), failure.size());
  _exit(failure.empty() && written == 0 ? 0 : 1);
}

ProcessRanks::~ProcessRanks() {
  for (std::size_t rank = 0; rank < pids_.size(); ++rank) {
    if (pids_[rank] > 0) {
      kill(pids_[rank], SIGKILL);
      waitpid(pids_[rank], nullptr, 0);
    }
    if (pipes_[rank] >= 0) close(pipes_[rank]);
  }
}

void ProcessRanks::send_signal(int rank, int signal) const { kill(pids_[rank], signal); }

std::vector<RankEnd> ProcessRanks::wait(std::chrono::milliseconds patience) {
  const Clock::time_point give_up = Clock::now() + patience;
  std::vector<RankEnd> ends(pids_.size());
  for (int rank = 0; rank < size(); ++rank) {
    ends[rank].failure = read_to_end(pipes_[rank], give_up, ends[rank].hung);
    if (ends[rank].hung) kill(pids_[rank], SIGKILL);
    int status = 0;
    waitpid(pids_[rank], &status, 0);
    pids_[rank] = -1;
    ends[rank].signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    if (WIFEXITED(status) && WEXITSTATUS(status) != 0 && ends[rank].failure.empty()) {
      ends[rank].failure = "exited with " + std::to_string(WEXITSTATUS(status));
    }
  }
  return ends;
}

std::vector<RankEnd> run_ranks_to_end(Mode mode, int size, const GroupOptions& options,
                                      const Body& body) {
  if (mode == Mode::kThreads) return run_as_threads(size, options, body);
  return ProcessRanks(size, options, body).wait(std::chrono::minutes(5));
}

void expect_all_well(const std::vector<RankEnd>& ends, const std::string& context) {
  for (std::size_t rank = 0; rank < ends.size(); ++rank) {
    const RankEnd& end = ends[rank];
    if (end.failure.empty() && end.signal == 0 && !end.hung) continue;
    ADD_FAILURE() << context << " rank " << rank << ": " << (end.hung ? "hung " : "")
                  << (end.signal != 0 ? std::string("killed by ") + strsignal(end.signal) + " "
                                      : "")
                  << end.failure;
  }
}

void run_ranks(Mode mode, int size, const Body& body, const std::string& context,
               const GroupOptions& options) {
  expect_all_well(run_ranks_to_end(mode, size, options, body), context);
}

double stress_scale() {
  const char* const text = std::getenv("FERRY_STRESS");
  return text == nullptr ? 1.0 : std::atof(text);
}

}  // namespace ferry::test

// Starts rank processes and threads, and waits for their end; see ranks.h.
#include "tools/bench/ranks.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "tools/bench/cores.h"
#include "tools/bench/memory.h"

namespace ferry::bench {
namespace {

// How long the other ranks may take to notice that a rank has ended.
constexpr std::int64_t kPatienceNs = 5'000'000'000;

// The reason of a rank's failure. The rank writes it, and the process that started the rank reads
// it.
struct Failure {
  enum class Cause : std::uint8_t {
    kNone,
    kAlone,
    kOfAnother
  };  // kOfAnother: the rank failed because a peer had ended
  Cause cause = Cause::kNone;
  std::array<char, 1000> message = {};

  void set(Cause new_cause, std::string_view text) noexcept {
    cause = new_cause;
    const std::size_t length = std::min(text.size(), message.size() - 1);
    std::memcpy(message.data(), text.data(), length);
    message[length] = '\0';
  }
};

bool is_of_another(Code code) noexcept {
  return code == Code::kPeerLost || code == Code::kTimeout || code == Code::kBroken ||
         code == Code::kPeerRejected;
}

template <typename Body>
void catch_failure(Failure& failure, const Body& body) noexcept {
  try {
    body();
  } catch (const Error& error) {
    failure.set(is_of_another(error.code()) ? Failure::Cause::kOfAnother : Failure::Cause::kAlone,
                error.what());
  } catch (const std::exception& error) {
    failure.set(Failure::Cause::kAlone, error.what());
  }
}

void pin_rank(const Options& options, int rank) {
  if (options.pin) pin_to(allowed_cores(), rank * options.shape.workers, options.shape.workers);
}

[[noreturn]] void run_child(const Options& options, const std::string& address, int rank,
                            Failure& failure, const std::function<void(Group)>& body) {
  catch_failure(failure, [&] {
    pin_rank(options, rank);
    body(Group::connect(address, rank, options.ranks, options.group_options()));
  });
  _exit(failure.cause == Failure::Cause::kNone ? 0 : 1);
}

std::vector<pid_t> start_processes(const Options& options, SharedArray<Failure>& failures,
                                   const std::function<void(Group)>& body) {
  static int run = 0;
  const pid_t parent = getpid();
  const std::string address = fmt::format("bench-{}-{}", parent, ++run);
  std::vector<pid_t> children;
  for (int rank = 0; rank < options.ranks; ++rank) {
    const pid_t child = fork();
    if (child < 0) {
      for (const pid_t started : children) kill(started, SIGKILL);
      for (const pid_t started : children) waitpid(started, nullptr, 0);
      throw std::runtime_error(
          fmt::format("cannot start rank {} of {}: {}", rank, options.ranks, std::strerror(errno)));
    }
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);  // the parent died before the line above
      run_child(options, address, rank, failures[static_cast<std::size_t>(rank)], body);
    }
    children.push_back(child);
  }
  return children;
}

// Records the end of a rank that has written no message.
void note_end(int status, bool killed_here, Failure& failure) {
  if (WIFSIGNALED(status) && killed_here) {
    failure.set(Failure::Cause::kOfAnother, "still waited for a rank that had ended");
  } else if (WIFSIGNALED(status)) {
    failure.set(Failure::Cause::kAlone, fmt::format("killed by signal {} ({})", WTERMSIG(status),
                                                    strsignal(WTERMSIG(status))));
  } else if (WEXITSTATUS(status) != 0 && failure.cause == Failure::Cause::kNone) {
    failure.set(Failure::Cause::kAlone, fmt::format("left with exit code {}", WEXITSTATUS(status)));
  }
}

void kill_all(const std::vector<pid_t>& running) {
  for (const pid_t rank : running) {
    if (rank != 0) kill(rank, SIGKILL);
  }
}

// Runs ranks as processes. A rank ends by itself when a rank of its group has failed. If the failed
// rank had not joined the group yet, the others would wait for it until their deadline, so they are
// killed after kPatienceNs.
void run_processes(const Options& options, SharedArray<Failure>& failures,
                   const std::function<void(Group)>& body) {
  std::vector<pid_t> running = start_processes(options, failures, body);
  std::int64_t kill_at_ns = 0;  // 0: no rank has ended too early
  bool killed_here = false;
  for (std::size_t left = running.size(); left > 0;) {
    int status = 0;
    const pid_t ended = waitpid(-1, &status, kill_at_ns == 0 ? 0 : WNOHANG);
    const auto found = std::find(running.begin(), running.end(), ended);
    if (ended <= 0 || found == running.end()) {
      if (kill_at_ns != 0 && internal::now_ns() > kill_at_ns) {
        killed_here = true;
        kill_all(running);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      continue;
    }
    note_end(status, killed_here, failures[static_cast<std::size_t>(found - running.begin())]);
    *found = 0;
    --left;
    if (status != 0 && kill_at_ns == 0) kill_at_ns = internal::now_ns() + kPatienceNs;
  }
}

void run_as_threads(const Options& options, SharedArray<Failure>& failures,
                    const std::function<void(Group)>& body) {
  const auto run = [&](Group group) {
    const int rank = group.rank();
    catch_failure(failures[static_cast<std::size_t>(rank)], [&] {
      pin_rank(options, rank);
      body(std::move(group));
    });
  };
  run_threads(options.ranks, run, options.group_options());
}

// Returns the group of this process, which exists as long as the process.
Group& launched_group(const Options& options) {
  static Group group = Group::from_environment(options.group_options());
  return group;
}

}  // namespace

void join_launched(Options& options) {
  if (options.mode != Mode::kEnvironment) return;
  const Group& group = launched_group(options);
  options.ranks = group.size();
  options.rank = group.rank();
}

void run_ranks(const Options& options, const std::function<void(Group)>& body) {
  if (options.mode == Mode::kEnvironment) {
    pin_rank(options, options.rank);
    return body(launched_group(options));
  }
  SharedArray<Failure> failures(static_cast<std::size_t>(options.ranks));
  if (options.mode == Mode::kProcesses) {
    run_processes(options, failures, body);
  } else {
    run_as_threads(options, failures, body);
  }
  for (const Failure::Cause cause : {Failure::Cause::kAlone, Failure::Cause::kOfAnother}) {
    for (std::size_t rank = 0; rank < failures.size(); ++rank) {
      if (failures[rank].cause != cause) continue;
      throw std::runtime_error(fmt::format("rank {}: {}", rank, failures[rank].message.data()));
    }
  }
}

}  // namespace ferry::bench

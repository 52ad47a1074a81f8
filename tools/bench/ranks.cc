// Owns the life of rank processes and threads; see ranks.h.
#include "bench/ranks.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "bench/cores.h"
#include "bench/memory.h"

namespace ferry::bench {
namespace {

// Where a rank leaves the reason of its failure, readable by the process that started it.
struct Failure {
  enum class Cause : std::uint8_t {
    kNone,
    kAlone,
    kOfAnother
  };  // kOfAnother: it only noticed that a peer is gone
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
  if (options.pin) pin_to(allowed_cores(), rank * options.workers, options.workers);
}

[[noreturn]] void run_child(const Options& options, const std::string& address, int rank,
                            Failure& failure, const std::function<void(Group)>& body) {
  catch_failure(failure, [&] {
    pin_rank(options, rank);
    body(Group::connect(address, rank, options.ranks));
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

void run_processes(const Options& options, SharedArray<Failure>& failures,
                   const std::function<void(Group)>& body) {
  const std::vector<pid_t> children = start_processes(options, failures, body);
  for (std::size_t rank = 0; rank < children.size(); ++rank) {
    int status = 0;
    while (waitpid(children[rank], &status, 0) < 0 && errno == EINTR) {
    }
    Failure& failure = failures[rank];
    if (WIFSIGNALED(status)) {
      failure.set(Failure::Cause::kAlone, fmt::format("killed by signal {} ({})", WTERMSIG(status),
                                                      strsignal(WTERMSIG(status))));
    } else if (WEXITSTATUS(status) != 0 && failure.cause == Failure::Cause::kNone) {
      failure.set(Failure::Cause::kAlone,
                  fmt::format("left with exit code {}", WEXITSTATUS(status)));
    }
  }
}

void run_as_threads(const Options& options, SharedArray<Failure>& failures,
                    const std::function<void(Group)>& body) {
  run_threads(options.ranks, [&](Group group) {
    const int rank = group.rank();
    catch_failure(failures[static_cast<std::size_t>(rank)], [&] {
      pin_rank(options, rank);
      body(std::move(group));
    });
  });
}

}  // namespace

void run_ranks(const Options& options, const std::function<void(Group)>& body) {
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

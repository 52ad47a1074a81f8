// Runs the trials of `ferry doctor`. Calls the kernel, and ferry's own modules for the facilities
// that they use.
#include <fmt/format.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>

#include "bootstrap/socket.h"
#include "ferry/group.h"
#include "memory/segment.h"
#include "tools/doctor/findings.h"

namespace ferry::tools {
namespace {

constexpr std::size_t kTrialBytes = 2 * internal::Segment::kHugePage;
constexpr int kCollapse = 25;  // MADV_COLLAPSE of Linux 6.1, which headers of Debian 12 lack

// Throws the error of a trial, with the reason of the failure.
[[noreturn]] void fail(const char* what) {
  throw Error(Code::kSystem, fmt::format("{}: {}", what, std::strerror(errno)));
}

std::string try_segment() {
  const auto segment = internal::Segment::create(kTrialBytes);
  if (!segment->commit(0, kTrialBytes)) throw Error(Code::kSystem, "memory for 4 MiB was refused");
  std::memset(segment->data(), 1, kTrialBytes);
  return "4 MiB in a memfd, mapped and written";
}

std::string try_collapse() {
  const auto segment = internal::Segment::create(kTrialBytes);
  // The kernel collapses only ranges that have a page.
  for (std::size_t at = 0; at < kTrialBytes; at += internal::Segment::kHugePage)
    segment->data()[at] = std::byte{1};
  if (madvise(segment->data(), kTrialBytes, kCollapse) != 0) fail("MADV_COLLAPSE");
  return "4 MiB of shared memory collapsed to huge pages";
}

std::string try_futex() {
  std::uint32_t word = 1;
  const timespec soon{0, 1'000'000};
  // This is not FUTEX_WAIT_PRIVATE, because ranks sleep on an address in shared memory.
  if (syscall(SYS_futex, &word, FUTEX_WAIT, 1, &soon, nullptr, 0) == 0 || errno != ETIMEDOUT)
    fail("futex");
  return "a wait of 1 ms ended in time";
}

std::string try_pidfd() {
  const internal::Descriptor self(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
  if (!self) fail("pidfd_open");
  return "the end of a process is seen at once";
}

std::string trial_address() { return fmt::format("doctor-{}", getpid()); }

std::string try_socket() {
  const std::string name = internal::socket_name(trial_address(), 1);
  const internal::Descriptor listener = internal::listen_at(name);
  if (!listener) throw Error(Code::kSystem, "the name @" + name + " is taken");
  const internal::Descriptor client = internal::connect_to(name);
  const internal::Descriptor accepted = internal::accept_from(listener);
  if (!client || !accepted) fail("connect");
  const internal::Credentials peer = internal::credentials_of(accepted);
  if (peer.pid != getpid() || peer.uid != geteuid())
    throw Error(Code::kSystem, "SO_PEERCRED does not name the process that connected");
  return "connected, and the kernel names the peer";
}

// Runs one of two ranks, which form a group and gather their numbers.
void play_rank(const std::string& address, int rank) {
  const GroupOptions options{.deadline = std::chrono::seconds(5)};
  Group group = Group::connect(address, rank, 2, options);
  const std::int32_t mine = rank;
  std::int32_t found[2] = {-1, -1};
  require_ok(group.all_gather(&mine, sizeof mine, found));
  if (found[0] != 0 || found[1] != 1) {
    throw Error(Code::kSystem,
                fmt::format("gathered {} and {} instead of 0 and 1", found[0], found[1]));
  }
}

std::string try_group() {
  const std::string address = trial_address();
  const pid_t peer = fork();
  if (peer < 0) fail("fork");
  if (peer == 0) {
    try {
      play_rank(address, 1);
    } catch (const std::exception&) {
      _exit(1);  // rank 0 reports the reason
    }
    _exit(0);
  }
  int status = 0;
  try {
    play_rank(address, 0);
  } catch (...) {
    kill(peer, SIGKILL);
    waitpid(peer, &status, 0);
    throw;
  }
  waitpid(peer, &status, 0);
  return "two processes formed a group and exchanged a number";
}

Trial run_trial(std::string name, bool needed, const std::function<std::string()>& body) {
  Trial trial;
  trial.name = std::move(name);
  trial.needed = needed;
  try {
    trial.detail = body();
    trial.ok = true;
  } catch (const std::exception& error) {
    trial.detail = error.what();
  }
  return trial;
}

}  // namespace

std::vector<Trial> try_kernel() {
  return {run_trial("memfd", true, try_segment),      run_trial("huge pages", false, try_collapse),
          run_trial("futex", true, try_futex),        run_trial("pidfd", false, try_pidfd),
          run_trial("unix socket", true, try_socket), run_trial("group", true, try_group)};
}

}  // namespace ferry::tools

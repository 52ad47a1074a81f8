// Watches processes with pidfds, or through /proc if there are none.
#include "network/liveness.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/check.h"

namespace ferry::internal {
namespace {

// Whether there are enough descriptors. Pidfds may take a quarter of those that the process may
// open, because the program needs some, too.
bool descriptors_suffice(std::size_t num) noexcept {
  rlimit limit{};
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 && num * 4 <= limit.rlim_cur;
}

Descriptor open_pidfd(pid_t pid) noexcept {
  return Descriptor(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));  // close-on-exec by default
}

// Reads the start time, field 22 of /proc/<pid>/stat. Returns 0 if it cannot be read, or if the
// process is a zombie. Neither allocates nor throws.
std::uint64_t start_time_of(pid_t pid) noexcept {
  char path[32];
  std::snprintf(path, sizeof(path), "/proc/%d/stat", pid);
  const Descriptor file(open(path, O_RDONLY | O_CLOEXEC));
  if (!file) return 0;
  char text[512];
  const ssize_t bytes = read(file.fd(), text, sizeof(text) - 1);
  if (bytes <= 0) return 0;
  text[bytes] = 0;
  // The name is in parentheses and may hold any characters. The state follows the last closing
  // parenthesis.
  const char* rest = std::strrchr(text, ')');
  char state = 0;
  unsigned long long start_time = 0;
  const int read_fields =
      rest == nullptr
          ? 0
          : std::sscanf(
                rest + 1,
                " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
                &state, &start_time);
  return read_fields == 2 && state != 'Z' && state != 'X' ? start_time : 0;
}

}  // namespace

Liveness::Liveness(const std::vector<pid_t>& pids) {
  const bool with_pidfds = descriptors_suffice(pids.size());
  processes_.reserve(pids.size());
  for (const pid_t pid : pids) {
    FERRY_CHECK(pid, >, 0);  // pid_in() refuses others; 0 and -1 mean groups of processes
    Process process{pid, with_pidfds ? open_pidfd(pid) : Descriptor(), 0};
    if (!process.pidfd) process.start_time = start_time_of(pid);
    processes_.push_back(std::move(process));
  }
}

bool Liveness::alive(int rank) const noexcept {
  const Process& process = processes_[static_cast<std::size_t>(rank)];
  if (process.pidfd) {
    pollfd ended{process.pidfd.fd(), POLLIN, 0};
    return poll(&ended, 1, 0) <= 0;
  }
  if (::kill(process.pid, 0) != 0 && errno == ESRCH) return false;
  return process.start_time == 0 || start_time_of(process.pid) == process.start_time;
}

// A pidfd that is opened now may be of another process with the same pid, so alive() looks after it
// is open. From then on it belongs to one process.
int Liveness::kill(int rank) const noexcept {
  const Process& process = processes_[static_cast<std::size_t>(rank)];
  const Descriptor opened = process.pidfd ? Descriptor() : open_pidfd(process.pid);
  const int pidfd = process.pidfd ? process.pidfd.fd() : opened.fd();
  if (!alive(rank)) return ESRCH;
  return syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, nullptr, 0) == 0 ? 0 : errno;
}

}  // namespace ferry::internal

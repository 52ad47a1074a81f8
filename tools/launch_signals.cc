// Blocks signals and reads them from a signalfd; see launch_signals.h.
#include "launch_signals.h"

#include <fmt/format.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "ferry/status.h"

namespace ferry::tools {

LaunchSignals::LaunchSignals() {
  sigset_t watched;
  sigemptyset(&watched);
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCHLD, SIGTSTP})
    sigaddset(&watched, signal);
  signals_ = internal::Descriptor(signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_) throw Error(Code::kSystem, fmt::format("signalfd: {}", std::strerror(errno)));
  sigaddset(&watched,
            SIGTTIN);  // a launcher in the background must not be stopped by reading its terminal
  sigprocmask(SIG_BLOCK, &watched, &old_mask_);
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGCHLD, SIG_DFL);  // where a caller ignores it, nobody learns how ranks ended
}

int LaunchSignals::next() {
  signalfd_siginfo info;
  const ssize_t got = read(signals_.fd(), &info, sizeof info);
  return got == static_cast<ssize_t>(sizeof info) ? static_cast<int>(info.ssi_signo) : 0;
}

}  // namespace ferry::tools

// The signals that a launcher waits for, as a descriptor for poll(2). Called by launch_job.cc and
// launch_hosts.cc.
#pragma once

#include <signal.h>

#include "bootstrap/socket.h"

namespace ferry::tools {

class LaunchSignals {
 public:
  // Blocks those that are passed on to ranks, SIGCHLD and SIGTSTP; ignores SIGPIPE. Throws
  // ferry::Error.
  LaunchSignals();

  int fd() const noexcept { return signals_.fd(); }
  // The next signal that came; 0: none is left.
  int next();
  // The mask that ranks get: the one from before.
  const sigset_t& old_mask() const noexcept { return old_mask_; }

  static bool asks_to_end(int signal) noexcept {
    return signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT;
  }

 private:
  sigset_t old_mask_{};
  internal::Descriptor signals_;
};

}  // namespace ferry::tools

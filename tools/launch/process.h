// Starts one rank, or the ssh to a host: pipes, process group, death with the launcher, exec. And
// the signals that a launcher waits for.
#pragma once

#include <signal.h>
#include <sys/resource.h>
#include <sys/types.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "base/descriptor.h"

namespace ferry::tools {

enum class ChildInput {
  kNothing,    // /dev/null
  kInherited,  // the launcher's own
  kPiped,      // from Child::in
};

// What is the same for all children of a launch.
struct ChildSetup {
  std::vector<std::string> program;  // looked up in PATH, and its arguments
  bool pipe_output = true;           // false: the launcher's own stdout and stderr
  sigset_t signal_mask{};            // as it was before the launcher blocked its signals
  rlimit descriptor_limit{};         // as it was before the launcher raised it
};

// The launcher's ends of the pipes do not block.
struct Child {
  pid_t pid = -1;  // also its process group
  internal::Descriptor in, out, err;
};

// The program cannot be started; exit_code is what a shell would return (127: not found, 126:
// found, not runnable).
class SpawnError : public std::runtime_error {
 public:
  SpawnError(int exit_code, const std::string& message)
      : std::runtime_error(message), exit_code_(exit_code) {}
  int exit_code() const noexcept { return exit_code_; }

 private:
  int exit_code_;
};

// Returns once the program runs (exec has succeeded). The child gets SIGKILL when the launcher
// dies.
Child spawn(const ChildSetup& setup, const std::vector<std::string>& environment, ChildInput input);

// The signals that a launcher waits for, as a descriptor for poll(2).
class LaunchSignals {
 public:
  // Blocks those that are passed on to ranks, SIGCHLD and SIGTSTP; ignores SIGPIPE. Throws
  // ferry::Error.
  LaunchSignals();

  int fd() const noexcept { return signals_.fd(); }
  // The next pending signal; 0: none.
  int next();
  // The mask from before, which ranks get.
  const sigset_t& old_mask() const noexcept { return old_mask_; }

  static bool asks_to_end(int signal) noexcept {
    return signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT;
  }

 private:
  sigset_t old_mask_{};
  internal::Descriptor signals_;
};

// "exited with code 3", "was killed by signal 9 (SIGKILL)".
std::string describe_end(int status);
// What a shell makes of it: 128 + number for a signal.
int shell_code(int status);

}  // namespace ferry::tools

// Starts a rank, or the ssh to a host: its pipes, its process group and its exec. The child is
// killed when the launcher dies. LaunchSignals holds the signals that a launcher waits for.
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
  kInherited,  // the launcher's stdin
  kPiped,      // a pipe, whose other end is Child::in
};

// The settings that are the same for all children of a launch.
struct ChildSetup {
  std::vector<std::string> program;  // a name that is looked up in PATH, and its arguments
  bool pipe_output = true;           // false: the child writes to the launcher's stdout and stderr
  sigset_t signal_mask{};            // the mask before the launcher blocked its signals
  rlimit descriptor_limit{};         // the limit before the launcher raised it
};

// A child that was started. The launcher's ends of its pipes do not block.
struct Child {
  pid_t pid = -1;  // also the number of its process group
  internal::Descriptor in, out, err;
};

// Thrown when the program cannot be started. `exit_code` is the code that a shell would return: 127
// if the program was not found, 126 if it cannot be run.
class SpawnError : public std::runtime_error {
 public:
  SpawnError(int exit_code, const std::string& message)
      : std::runtime_error(message), exit_code_(exit_code) {}
  int exit_code() const noexcept { return exit_code_; }

 private:
  int exit_code_;
};

// Starts a child, and returns once exec has succeeded. The child gets SIGKILL when the launcher
// dies.
Child spawn(const ChildSetup& setup, const std::vector<std::string>& environment, ChildInput input);

// The signals that a launcher waits for, as a descriptor for poll(2).
class LaunchSignals {
 public:
  // Blocks SIGCHLD, SIGTSTP and the signals that are passed on to ranks, and ignores SIGPIPE.
  // Throws ferry::Error.
  LaunchSignals();

  int fd() const noexcept { return signals_.fd(); }
  // Takes the next pending signal. Returns 0 if there is none.
  int next();
  // The signal mask before the constructor changed it. Ranks start with it.
  const sigset_t& old_mask() const noexcept { return old_mask_; }

  static bool asks_to_end(int signal) noexcept {
    return signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT;
  }

 private:
  sigset_t old_mask_{};
  internal::Descriptor signals_;
};

// Describes an end as in "exited with code 3" or "was killed by signal 9 (SIGKILL)".
std::string describe_end(int status);
// The exit code that a shell reports for this status: 128 + number for a signal.
int shell_code(int status);

}  // namespace ferry::tools

// What the launcher of several hosts says to the agent on each of them, through the agent's input:
// first a task, then orders, a line each; the end of the input means that the launcher is gone. And
// what the agent says back, in lines of its stderr that no rank can write, as ranks' lines begin
// with their number. Called by launch_hosts.cc (writes) and launch_agent.cc (reads).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "launch_environment.h"

namespace ferry::tools {

// A secret must not be seen in a list of processes, so all of it travels here.
struct Task {
  std::string host;       // as the launcher's messages call it
  std::string directory;  // to work in
  LaunchIdentity identity;
  HostShare share;
  std::vector<std::string> environment;  // NAME=value, all of it
  std::vector<std::string> program;
};

std::string encode(const Task& task);

// Orders.
inline constexpr std::string_view kOrderSignal = "signal ";  // and a number
inline constexpr std::string_view kOrderTerminate = "terminate";
// Answers.
inline constexpr std::string_view kAnswerFailed = "ferry agent failed: ";  // and what
inline constexpr std::string_view kAnswerEnded = "ferry agent ended: ";    // and "failed stopped"

class Orders {
 public:
  explicit Orders(int fd) : fd_(fd) {}

  // The task that comes first. Waits for it. Throws ferry::Error when it does not come, or comes
  // from another version.
  Task task();

  // For poll(2): negative once the launcher is gone.
  int fd() const noexcept { return fd_; }
  // The orders that came. `ready`: poll has seen something, so reading does not wait.
  std::vector<std::string> read(bool ready);

 private:
  bool receive();  // false at the end

  int fd_;
  std::string pending_;
};

}  // namespace ferry::tools

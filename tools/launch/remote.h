// The other hosts of a launch: the text of --hosts, what the launcher sends to an agent on each
// host, and the agent.
//
// The launcher writes to the agent's input: first a task, then orders, a line each; the end of the
// input means that the launcher has ended. The agent reports in lines of its stderr; the line of a
// rank cannot be taken for a report, because it begins with the number of the rank.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tools/launch/environment.h"

namespace ferry::tools {

struct HostRanks {
  std::string target;  // for ssh: NAME or USER@NAME
  int num_ranks = 0;

  std::string name() const { return target.substr(target.find('@') + 1); }
};

// Reads "a:4,user@b:4". Throws std::invalid_argument naming the part that is wrong.
std::vector<HostRanks> parse_hosts(std::string_view text);

// What ranks on one host need. The secret is part of it, because lists of processes and their
// arguments are public: it travels through the agent's input only.
struct Task {
  std::string host;       // its name in messages; empty: the host of the launcher
  std::string directory;  // to work in
  LaunchIdentity identity;
  HostShare share;
  std::vector<std::string> environment;  // NAME=value, all of it
  std::vector<std::string> program;      // and its arguments
};

std::string encode(const Task& task);

// What reaches other hosts, unless --ssh says otherwise.
inline constexpr const char* kSsh = "ssh -o BatchMode=yes -o ConnectTimeout=10";

// For the shell of a host: starts this program there.
std::string command_there(const std::string& arguments);

// Orders.
inline constexpr std::string_view kOrderSignal = "signal ";  // and a number
inline constexpr std::string_view kOrderTerminate = "terminate";
// Reports of an agent.
inline constexpr std::string_view kReportFailed = "ferry agent failed: ";  // and what
inline constexpr std::string_view kReportEnded = "ferry agent ended: ";    // and "failed stopped"

// The agent's side of its input.
class Orders {
 public:
  explicit Orders(int fd) : fd_(fd) {}

  // Waits for the task that comes first. Throws ferry::Error when it does not come, or comes from
  // another version.
  Task task();

  // For poll(2): negative once the launcher has ended.
  int fd() const noexcept { return fd_; }
  // The orders that came. `ready`: poll has seen something, so reading does not wait.
  std::vector<std::string> read(bool ready);

 private:
  bool receive();  // false at the end

  int fd_;
  std::string pending_;
};

// The agent: reads a task from the input and runs its ranks. Returns the exit code.
int run_agent();

}  // namespace ferry::tools

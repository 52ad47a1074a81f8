// The other hosts of a launch: the text of --hosts, the task that the launcher sends to an agent on
// each host, and the agent.
//
// The launcher writes a task to the agent's input, then one line for each order. The end of the
// input means that the launcher has ended. The agent writes its reports to its stderr, a line each.
// A line of a rank cannot be read as a report, because it begins with the number of the rank.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tools/launch/environment.h"

namespace ferry::tools {

struct HostRanks {
  std::string target;  // the argument of ssh: NAME or USER@NAME
  int num_ranks = 0;

  std::string name() const { return target.substr(target.find('@') + 1); }
};

// Reads "a:4,user@b:4". Throws std::invalid_argument that names the wrong part.
std::vector<HostRanks> parse_hosts(std::string_view text);

// All that an agent needs to start the ranks of its host. The secret is part of it and travels
// through the agent's input only, because every user of a host can read the arguments of processes.
struct Task {
  // The name of the host in messages; empty on the host of the launcher.
  std::string host;
  std::string directory;  // the working directory of the ranks
  LaunchIdentity identity;
  HostShare share;
  std::vector<std::string> environment;   // the whole environment, as NAME=value
  std::vector<std::string> program;       // the name of the program and its arguments
  int most_restarts = 0, num_spares = 0;  // JobOptions; 0 restarts: the agent asks for none
};

std::string encode(const Task& task);

// The command that runs a program on another host, if --ssh gives no other.
inline constexpr const char* kSsh = "ssh -o BatchMode=yes -o ConnectTimeout=10";

// The shell command that starts this program on another host.
std::string command_there(const std::string& arguments);

// The launcher sends these orders to an agent.
inline constexpr std::string_view kOrderSignal = "signal ";  // followed by a number
inline constexpr std::string_view kOrderTerminate = "terminate";
// The launcher's answers to kReportLost, both followed by the place of the rank among those of its
// host: start the rank again, then the number of the restart; or do not, then the reason.
inline constexpr std::string_view kOrderRestart = "restart ";
inline constexpr std::string_view kOrderLose = "lose ";
// A question, followed by its number: is a rank of that host in a group?
inline constexpr std::string_view kOrderAsk = "ask ";
// An agent sends these reports to the launcher.
inline constexpr std::string_view kReportFailed = "ferry agent failed: ";  // followed by the reason
inline constexpr std::string_view kReportEnded =
    "ferry agent ended: ";  // followed by the numbers "failed stopped"
// A rank failed and may be started again. Followed by its place, whether a rank of the host is in a
// group (0 or 1), and what happened.
inline constexpr std::string_view kReportLost = "ferry agent lost: ";
// The answer to kOrderAsk. Followed by the number of the question, and by 1 if a rank of the host
// is in a group, else 0.
inline constexpr std::string_view kReportAdmits = "ferry agent admits: ";

// The input of an agent, as the agent reads it.
class Orders {
 public:
  explicit Orders(int fd) : fd_(fd) {}

  // Waits for the task, which comes first. Throws ferry::Error if it does not come, or if a
  // launcher of another version has sent it.
  Task task();

  // The descriptor for poll(2). It is negative once the launcher has ended.
  int fd() const noexcept { return fd_; }
  // Returns the orders that have arrived. `ready` says that poll found input, so that a read does
  // not wait.
  std::vector<std::string> read(bool ready);

 private:
  bool receive();  // returns false at the end of the input

  int fd_;
  std::string pending_;
};

// Runs the agent: it reads a task from its input and runs the ranks of the task. Returns the exit
// code.
int run_agent();

}  // namespace ferry::tools

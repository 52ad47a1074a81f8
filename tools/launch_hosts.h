// The ranks of one launch on several hosts: an ssh to an agent on each (launch_agent.cc), and the
// loop that passes orders to them and their lines on. Called by launch.cc; calls launch_process,
// launch_output, launch_orders.
//
// Agents start and watch ranks; what happens after a failure is decided here, in these stages:
//   running      until the last agent ends
//   grace        a rank has failed, or a host is gone; the others may notice and say so
//   terminating  agents stop their ranks, clear up and end
#pragma once

#include <poll.h>

#include <chrono>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "launch_orders.h"
#include "launch_output.h"
#include "launch_process.h"
#include "launch_signals.h"

namespace ferry::tools {

struct HostRanks {
  std::string target;  // for ssh: NAME or USER@NAME
  int num_ranks = 0;

  std::string name() const { return target.substr(target.find('@') + 1); }
};

// Reads "a:4,user@b:4". Throws std::invalid_argument naming the part that is wrong.
std::vector<HostRanks> parse_hosts(std::string_view text);

struct HostsOptions {
  std::vector<HostRanks> hosts;
  std::vector<std::string> ssh;  // the command that gets a host and a line for its shell
  std::string ferry;             // this program, on the other hosts
  bool tag = true;               // false: lines have no rank before them
  std::optional<std::chrono::nanoseconds> timeout{};  // none: as long as it takes
  std::chrono::nanoseconds grace = std::chrono::seconds(5);
};

class HostsJob {
 public:
  explicit HostsJob(const HostsOptions& options);
  ~HostsJob();
  HostsJob(const HostsJob&) = delete;
  HostsJob& operator=(const HostsJob&) = delete;

  // `task`: but for the host and its share. Throws SpawnError when there is no ssh.
  void start(Task task);
  // Watches until nothing is left. Returns the launcher's exit code.
  int watch();

 private:
  enum class Stage { kRunning, kGrace, kTerminating };

  struct Host {
    std::string name;
    pid_t pid = -1;  // of the ssh
    internal::Descriptor in;
    std::string unsent;  // of the task and orders
    LineStream out, err;
    bool running = true;
  };

  LineStream::Edit edit_lines_of(const std::string& host, bool answers);
  void hear(const std::string& host, std::string_view line);
  void order(const std::string& text);
  void send(Host& host);
  void handle_signals();
  void forward(int signal);
  void suspend();
  void reap();
  void host_ended(Host& host, int status);
  void note_failure(const std::string& what);
  void move_streams(const std::vector<pollfd>& fds);
  std::vector<pollfd> poll_set() const;
  int poll_ms() const;
  void escalate();
  void terminate();
  void kill_ssh();
  bool finished() const;
  void say_summary();
  std::string running_hosts() const;
  void say(const std::string& text) { err_.add("ferry launch: ", text, ""); }

  HostsOptions options_;
  LaunchSignals signals_;
  Output out_, err_;
  std::deque<Host> hosts_;

  Stage stage_ = Stage::kRunning;
  std::optional<internal::Deadline> stage_end_;
  int num_running_ = 0;  // hosts
  int num_ranks_ = 0;
  int num_failed_ = 0, num_stopped_ = 0;  // ranks, as agents count them
  int worst_code_ = 0;
  std::string first_failure_;
  int forced_code_ = 0;     // --timeout, second SIGINT
  int num_interrupts_ = 0;  // SIGINT so far
  bool abandon_output_ = false;
};

}  // namespace ferry::tools

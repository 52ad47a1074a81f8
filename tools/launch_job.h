// Job: the running ranks of one launch on this host and the loop that watches over them. Called by
// launch.cc, and by launch_agent.cc for a part of a launch on several hosts; calls launch_process
// (start), launch_output and launch_input (streams), launch_environment (variables).
//
// One thread, one poll(2) over a signalfd and the pipes. A job passes through these stages:
//   running      until the last rank ends
//   grace        a rank has failed; the others may notice and say so
//   terminating  ranks that still run have got SIGTERM (also when --timeout is over)
//   killing      ranks that still run have got SIGKILL
//   leftovers    all ranks have ended; what they started and left behind goes too
// With orders, the launcher that gives them is told of a failure, and says when grace is over.
#pragma once

#include <poll.h>
#include <signal.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "launch_environment.h"
#include "launch_input.h"
#include "launch_orders.h"
#include "launch_output.h"
#include "launch_process.h"
#include "launch_signals.h"

namespace ferry::tools {

struct JobOptions {
  HostShare share = {};
  bool tag = true;  // false: ranks write to the launcher's streams themselves
  std::optional<std::chrono::nanoseconds> timeout{};  // none: as long as it takes
  std::chrono::nanoseconds grace = std::chrono::seconds(5);
  std::string speaker = "ferry launch";  // whose words these are
  Orders* orders = nullptr;              // of a launcher elsewhere
};

class Job {
 public:
  explicit Job(const JobOptions& options);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // Starts all ranks or none. Throws SpawnError.
  void start(std::vector<std::string> program, const LaunchIdentity& identity);
  // Watches until nothing is left. Returns the launcher's exit code.
  int watch();

 private:
  enum class Stage { kRunning, kGrace, kTerminating, kKilling, kLeftovers };

  struct Rank {
    pid_t pid = -1;
    LineStream out, err;
    bool running = true;
  };

  ChildInput input_of(int index) const;
  void handle_signals();
  void obey(bool ready);
  void forward(int signal);
  void suspend();
  void reap();
  void rank_ended(int index, int status);
  void note_failure(const std::string& what);
  void move_streams(const std::vector<pollfd>& fds);
  std::vector<pollfd> poll_set() const;
  int poll_ms() const;
  void escalate();
  void terminate();
  void kill_ranks();
  void kill_leftovers();
  void enter(Stage stage, std::optional<std::chrono::nanoseconds> limit);
  void signal_ranks(int signal);
  bool drained() const;
  bool finished() const;
  void say_summary();
  std::string running_ranks() const;
  void say(const std::string& text) { err_.add(options_.speaker + ": ", text, ""); }

  JobOptions options_;
  LaunchSignals signals_;
  Output out_, err_;
  TerminalInput input_;
  std::vector<Rank> ranks_;  // of this host

  Stage stage_ = Stage::kRunning;
  std::optional<internal::Deadline> stage_end_;
  int num_running_ = 0;
  int num_failed_ = 0;   // by themselves
  int num_stopped_ = 0;  // by the launcher
  int worst_code_ = 0;   // of those that ended by themselves
  std::string first_failure_;
  int forced_code_ = 0;     // --timeout, second SIGINT
  int num_interrupts_ = 0;  // SIGINT so far
  int leftover_rounds_ = 0;
  bool childless_ = false;  // no descendant is left
  bool abandon_output_ = false;
};

}  // namespace ferry::tools

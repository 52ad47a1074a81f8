// Job: the children of one launch, and the loop that watches them. A child is a rank of this host,
// a spare that takes the place of a rank that fails, or the ssh to an agent on another host. The
// agent runs a Job of its own that takes orders. Calls process.h (start), output.h (streams) and
// environment.h (variables).
//
// A Job has one thread, which calls poll(2) on a signalfd and the pipes. It passes through these
// stages:
//   running      until the last child ends; a rank that failed may be started again
//   grace        a rank has failed, or a connection is lost; the others may notice and end
//   terminating  ranks that still run have got SIGTERM (also when --timeout is over)
//   killing      children that still run have got SIGKILL; an agent then kills its ranks
//   leftovers    all ranks have ended; processes that they started and that still run are killed
// The launcher decides what follows a failure: an agent reports it and waits for orders.
#pragma once

#include <poll.h>

#include <chrono>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "tools/launch/output.h"
#include "tools/launch/process.h"
#include "tools/launch/remote.h"

namespace ferry::tools {

// The ends of messages about a rank that failed: why it is not started again.
inline constexpr const char* kTooManyRestarts = ", after {} of {} restarts";
inline constexpr const char* kNobodyAdmits =
    ", and no rank that runs is in a group, where it could take its place";

struct JobOptions {
  std::vector<HostRanks> hosts{};  // empty: all ranks run on this host
  std::vector<std::string> ssh{};  // the command to which a host and a shell command are appended
  // If false, ranks of this host write to stdout and stderr directly, without a rank before each
  // line.
  bool tag = true;
  std::optional<std::chrono::nanoseconds> timeout{};  // none: no limit
  std::chrono::nanoseconds grace = std::chrono::seconds(5);
  int num_spares = 0;        // processes that wait for the place of a rank
  int most_restarts = 0;     // how often ranks that failed are started again, all ranks together
  Orders* orders = nullptr;  // the orders that an agent receives, else null
};

class Job {
 public:
  explicit Job(const JobOptions& options);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // Starts all children, or none. `task` has the settings that the children have in common; it is
  // used only if there are hosts. Throws SpawnError.
  void start(Task task);
  // Watches until no child remains. Returns the launcher's exit code.
  int watch();

 private:
  enum class Stage { kRunning, kGrace, kTerminating, kKilling, kLeftovers };

  struct Watched {
    std::string name;  // the number of a rank, "spare", or a host
    pid_t pid = -1;
    // The input of an agent or a spare, or of the rank that reads the launcher's terminal.
    internal::Descriptor in;
    LineStream out, err;
    std::string unsent{};  // bytes still to be written to `in`
    bool running = true;
    bool spare = false;
    // On an agent: how this rank failed, while the launcher has not answered whether it is started
    // again; else empty.
    std::string failure{};
    int code = 0;
  };

  struct Outcome {
    int num_failed = 0;         // ranks that failed by themselves
    int num_stopped = 0;        // ranks that the launcher stopped
    int worst_code = 0;         // among ranks that ended by themselves
    int forced_code = 0;        // the exit code after --timeout or a second SIGINT; 0: none
    bool asked_to_end = false;  // a signal has asked the ranks to end
    int num_interrupts = 0;     // how many SIGINT have arrived
    std::string first_failure;
  };

  // The restarts so far, and the open questions to agents: if no rank on the host of a failed rank
  // can admit it, the launcher asks the agents of the other hosts.
  struct Restarts {
    struct Asked {
      std::size_t agent = 0;
      int place = 0;
      std::set<std::size_t> missing = {};  // agents that have not answered
    };
    int count = 0;
    std::map<int, Asked> asked{};  // by the number of the question
    int num_asked = 0;
  };

  bool remote() const noexcept { return !options_.hosts.empty(); }
  Watched start_rank(int index, bool newcomer);
  Watched start_spare();
  Watched start_in_place(int index);
  void add_spare();
  void start_agents(ChildSetup setup);
  ChildInput input_of(int index) const;
  LineStream::Edit edit_lines_of(std::optional<std::size_t> agent);
  void read_report(std::size_t agent, std::string_view report);
  void answer_loss(std::size_t agent, std::string_view report);
  void take_answer(std::size_t agent, std::string_view report);
  void take_no(std::size_t agent, int number);
  void drop_questions_to(const Watched& ended);
  std::size_t place_of(const Watched& child) const;
  void answer(std::size_t agent, int place, bool admitted);
  void order(const std::string& text);
  void order(Watched& agent, const std::string& text);
  void send(Watched& child);
  void read_terminal();
  void obey(bool ready);
  void handle_signals();
  void forward(int signal);
  void suspend();
  void reap();
  void child_ended(Watched& ended, int status);
  void rank_ended(Watched& ended, int status);
  void end_rank(int code, const std::string& failure);
  void end_lost_ranks();
  bool may_start_again(std::string& failure) const;
  bool start_again(Watched& ended, std::string& failure, int restart);
  bool can_admit() const;
  std::string name_of(const Watched& child) const;
  void note_failure(const std::string& what);
  std::vector<pollfd> poll_set() const;
  int poll_ms() const;
  void move_streams(const std::vector<pollfd>& fds);
  void escalate();
  void terminate();
  void kill_children();
  void kill_spares();
  void kill_leftovers();
  void end_leftovers();
  void enter(Stage stage, std::optional<std::chrono::nanoseconds> limit);
  void signal_ranks(int signal);
  bool drained() const;
  bool finished() const;
  void say_summary();
  std::string running_ranks() const;
  void say(const std::string& text);

  JobOptions options_;
  Task task_;
  ChildSetup setup_;  // of the ranks
  LaunchSignals signals_;
  Output out_, err_;
  std::deque<Watched> children_;
  int num_running_ = 0;  // ranks or agents that run, or that have failed and may be started again
  Outcome outcome_;
  Restarts restarts_;

  Stage stage_ = Stage::kRunning;
  std::optional<internal::Deadline> stage_end_;
  int leftover_rounds_ = 0;
  bool childless_ = false;       // no descendant remains
  bool abandon_output_ = false;  // a signal arrived while output was still to be written
};

}  // namespace ferry::tools

// How a Job reacts to signals and to ends of children, and how it changes its stage; see
// job.h.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <utility>

#include "tools/launch/job.h"
#include "tools/text.h"

namespace ferry::tools {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

constexpr int kTimeoutCode = 124;  // the code of timeout(1)
constexpr nanoseconds kTerminateSpan = seconds(3);
constexpr nanoseconds kLeftoverSpan = seconds(1);
constexpr nanoseconds kLeftoverRound = milliseconds(50);
constexpr int kLeftoverRounds = 60;
// After the order to terminate, an agent needs kTerminateSpan and the rounds for leftovers. The
// remaining seconds are a reserve.
constexpr nanoseconds kAgentSpan = seconds(12);

// Returns the children of the launcher. Orphans of the ranks are among them, because the launcher
// is a subreaper.
std::vector<pid_t> own_children() {
  std::vector<pid_t> children;
  std::ifstream file(fmt::format("/proc/self/task/{}/children", getpid()));
  for (pid_t pid; file >> pid;) children.push_back(pid);
  return children;
}

// Whether the process has memory of a group of ferry open, so that it is a rank of one.
bool is_in_a_group(const std::filesystem::path& process) {
  std::error_code ended;
  std::filesystem::directory_iterator file(process / "fd", ended);
  for (; !ended && file != end(file); file.increment(ended)) {
    std::error_code gone;
    if (std::filesystem::read_symlink(*file, gone).string().starts_with("/memfd:ferry"))
      return true;
  }
  return false;
}

}  // namespace

void Job::handle_signals() {
  while (const int signal = signals_.next()) {
    if (signal == SIGCHLD) {
      reap();
    } else if (signal == SIGTSTP) {
      suspend();
    } else {
      forward(signal);
    }
  }
}

// Passes a signal on to the ranks or agents. At the second SIGINT ranks are killed; an agent counts
// SIGINT in the same way.
void Job::forward(int signal) {
  outcome_.asked_to_end = outcome_.asked_to_end || LaunchSignals::asks_to_end(signal);
  if (childless_ && LaunchSignals::asks_to_end(signal)) abandon_output_ = true;
  const bool again = signal == SIGINT && ++outcome_.num_interrupts >= 2;
  if (again) outcome_.forced_code = 128 + SIGINT;
  if (again && !remote()) {
    if (stage_ < Stage::kKilling)
      say(fmt::format("interrupted twice; killing {}", running_ranks()));
    return kill_children();
  }
  signal_ranks(signal);
  if (again && stage_ < Stage::kKilling) enter(Stage::kTerminating, kAgentSpan);
}

// Stops the ranks and the launcher after Ctrl-Z. The shell wakes the launcher only, which then
// wakes the ranks.
void Job::suspend() {
  signal_ranks(SIGSTOP);  // a rank ignores SIGTSTP: its process group is orphaned
  raise(SIGSTOP);
  signal_ranks(SIGCONT);
}

void Job::reap() {
  int status = 0;
  pid_t pid;
  while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
    const auto child = std::find_if(children_.begin(), children_.end(),
                                    [pid](const Watched& c) { return c.running && c.pid == pid; });
    if (child != children_.end()) child_ended(*child, status);
  }
  if (pid < 0 && num_running_ == 0) end_leftovers();
}

void Job::child_ended(Watched& ended, int status) {
  ended.running = false;
  ended.in = {};
  ended.unsent.clear();
  // The last lines of a rank are printed before the message about its end.
  while (ended.out.read(false)) {
  }
  while (ended.err.read(false)) {
  }
  drop_questions_to(ended);
  if (!ended.spare) return rank_ended(ended, status);
  if (stage_ == Stage::kRunning)
    say(fmt::format("{} {} and is not started again", name_of(ended), describe_end(status)));
}

// The end of a rank, or of the connection to an agent.
void Job::rank_ended(Watched& ended, int status) {
  const int code = shell_code(status);
  std::string failure = fmt::format("{} {}", name_of(ended), describe_end(status));
  if (code != 0 && may_start_again(failure)) {
    if (options_.orders) {
      const auto place = place_of(ended);
      ended.failure = failure;
      ended.code = code;
      return err_.add(kReportLost, fmt::format("{} {:d} {}", place, can_admit(), failure), "");
    }
    if (start_again(ended, failure, restarts_.count + 1)) return;
  }
  end_rank(code, failure);
}

// Ends the failed ranks about which the launcher has not answered. It does not answer any more: it
// has ended, or is ending the ranks.
void Job::end_lost_ranks() {
  for (Watched& child : children_)
    if (!child.failure.empty()) end_rank(child.code, std::exchange(child.failure, ""));
}

void Job::end_rank(int code, const std::string& failure) {
  --num_running_;
  const bool stopped = stage_ >= Stage::kTerminating;
  // The exit code of an agent does not include the ranks that the launcher stopped.
  if (remote() || !stopped) outcome_.worst_code = std::max(outcome_.worst_code, code);
  if (!remote() && stopped) ++outcome_.num_stopped;
  if (!remote() && !stopped && code != 0) ++outcome_.num_failed;
  if (code != 0) note_failure(failure);
  if (num_running_ > 0) return;
  kill_spares();
  say_summary();
  enter(Stage::kLeftovers, stage_ == Stage::kKilling ? kLeftoverRound : kLeftoverSpan);
}

// Whether a rank that failed may be started again. Adds the reason to `failure` if there were too
// many restarts, or no rank can admit it. An agent leaves both checks to the launcher, which counts
// the restarts of all hosts and can ask about ranks on other hosts.
bool Job::may_start_again(std::string& failure) const {
  const int most = options_.most_restarts;
  if (remote() || most == 0 || stage_ != Stage::kRunning || outcome_.asked_to_end) return false;
  if (!options_.orders && restarts_.count == most) {
    failure += fmt::format(kTooManyRestarts, most, most);
    return false;
  }
  if (options_.orders || can_admit()) return true;
  failure += kNobodyAdmits;
  return false;
}

// Starts a rank that failed again, and says so. If that fails, adds the reason to `failure`.
bool Job::start_again(Watched& ended, std::string& failure, int restart) {
  if (stage_ != Stage::kRunning || outcome_.asked_to_end) return false;
  kill(-ended.pid, SIGKILL);  // processes that the rank left behind
  const auto place = place_of(ended);
  try {
    Watched before = std::exchange(ended, start_in_place(static_cast<int>(place)));
    // The last lines of the rank may still come, from it or from processes that it left behind.
    if (before.out.open() || before.err.open()) children_.push_back(std::move(before));
  } catch (const SpawnError& error) {
    failure += fmt::format(", and cannot be started again: {}", error.what());
    return false;
  }
  restarts_.count = restart;
  say(fmt::format("{}; started again as pid {}, restart {} of {}", failure, ended.pid, restart,
                  options_.most_restarts));
  return true;
}

// Gives the place of a lost rank to a spare, and starts the next spare. Without a spare, starts a
// process.
Job::Watched Job::start_in_place(int index) {
  const std::string lines = place_of_rank(task_.identity, task_.share, index);
  for (Watched& spare : children_) {
    if (!spare.spare || !spare.running) continue;
    const ssize_t put = ::write(spare.in.fd(), lines.data(), lines.size());
    if (put != static_cast<ssize_t>(lines.size())) continue;  // the spare is about to end
    spare.running = false;  // the element that stays has no process
    Watched taken = std::move(spare);
    taken.running = true;
    taken.spare = false;
    taken.in = {};
    taken.name = std::to_string(task_.share.first_rank + index);
    taken.out.set_prefix(fmt::format("[{}] ", taken.name));
    taken.err.set_prefix(fmt::format("[{}] ", taken.name));
    add_spare();
    return taken;
  }
  return start_rank(index, true);
}

void Job::add_spare() {
  try {
    children_.push_back(start_spare());
  } catch (const SpawnError& error) {
    say(fmt::format("no new spare: {}", error.what()));
  }
}

// Whether a rank that runs, or a process of it, is in a group: only such ranks admit others.
bool Job::can_admit() const {
  std::error_code refused;
  for (const auto& process : std::filesystem::directory_iterator("/proc", refused)) {
    const pid_t group = getpgid(std::atoi(process.path().filename().c_str()));
    const bool of_rank = std::ranges::any_of(
        children_, [group](const Watched& child) { return child.running && child.pid == group; });
    if (of_rank && is_in_a_group(process.path())) return true;
  }
  return false;
}

std::string Job::name_of(const Watched& child) const {
  if (child.spare) return fmt::format("a spare (pid {})", child.pid);
  return remote() ? fmt::format("the connection to {} ({}, pid {})", child.name, options_.ssh[0],
                                child.pid)
                  : fmt::format("rank {} (pid {})", child.name, child.pid);
}

void Job::note_failure(const std::string& what) {
  if (stage_ != Stage::kRunning) return;
  outcome_.first_failure = what;
  if (options_.orders) {
    err_.add(kReportFailed, what, "");
    return enter(Stage::kGrace, std::nullopt);
  }
  say(what + (num_running_ == 0
                  ? ""
                  : fmt::format("; the others have {} to end", seconds_text(options_.grace))));
  enter(Stage::kGrace, options_.grace);
}

void Job::enter(Stage stage, std::optional<nanoseconds> limit) {
  stage_ = stage;
  stage_end_.reset();
  if (limit) stage_end_ = internal::Deadline::after(*limit);
}

void Job::escalate() {
  switch (stage_) {
    case Stage::kRunning:
      say(fmt::format("--timeout {} is over; stopping {}", seconds_text(*options_.timeout),
                      running_ranks()));
      outcome_.forced_code = kTimeoutCode;
      return terminate();
    case Stage::kGrace:
      say(fmt::format("{} after that failure, {} still run; stopping them",
                      seconds_text(options_.grace), running_ranks()));
      return terminate();
    case Stage::kTerminating:
      say(remote() ? fmt::format("no report for {} from {}; cutting the connection",
                                 seconds_text(kAgentSpan), running_ranks())
                   : fmt::format("{} ignore SIGTERM for {}; killing them", running_ranks(),
                                 seconds_text(kTerminateSpan)));
      return kill_children();
    case Stage::kKilling: return;
    case Stage::kLeftovers: return kill_leftovers();
  }
}

void Job::terminate() {
  if (remote()) {
    order(std::string(kOrderTerminate));
    return enter(Stage::kTerminating, kAgentSpan);
  }
  end_lost_ranks();
  signal_ranks(SIGTERM);
  signal_ranks(SIGCONT);  // a stopped process does not receive SIGTERM
  enter(Stage::kTerminating, kTerminateSpan);
}

// Kills all children. The agent of a killed ssh sees the end of its input and kills its ranks.
void Job::kill_children() {
  for (const Watched& child : children_) {
    if (child.running) kill(-child.pid, SIGKILL);
  }
  if (stage_ < Stage::kKilling) enter(Stage::kKilling, std::nullopt);
}

void Job::kill_spares() {
  for (const Watched& child : children_) {
    if (child.running && child.spare) kill(-child.pid, SIGKILL);
  }
}

// Kills processes that ranks have started. Each killed orphan makes orphans of its own children, so
// this is repeated for several rounds.
void Job::kill_leftovers() {
  const std::vector<pid_t> children = own_children();
  if (leftover_rounds_ == 0 && !children.empty())
    say(fmt::format("ranks left {} of their own processes behind; killing them", children.size()));
  for (const pid_t pid : children) kill(pid, SIGKILL);
  enter(Stage::kLeftovers, kLeftoverRound);
  if (++leftover_rounds_ <= kLeftoverRounds) return;
  say("processes that ranks left behind cannot be killed");
  end_leftovers();
}

void Job::end_leftovers() {
  childless_ = true;
  stage_end_.reset();
}

void Job::signal_ranks(int signal) {
  if (remote()) return order(fmt::format("{}{}", kOrderSignal, signal));
  for (const Watched& child : children_) {
    if (child.running && !child.spare) kill(-child.pid, signal);
  }
}

// Names the ranks that still run, as in "ranks 0-2,5" or "ranks on a, b".
std::string Job::running_ranks() const {
  std::vector<int> ranks;
  std::vector<std::string> hosts;
  for (std::size_t i = 0; i < children_.size(); ++i) {
    if (!children_[i].running || children_[i].spare) continue;
    ranks.push_back(task_.share.first_rank + static_cast<int>(i));
    hosts.push_back(children_[i].name);
  }
  return remote() ? fmt::format("ranks on {}", fmt::join(hosts, ", "))
                  : fmt::format("ranks {}", ranges_text(ranks));
}

void Job::say_summary() {
  if (options_.orders) {
    err_.add(kReportEnded, fmt::format("{} {}", outcome_.num_failed, outcome_.num_stopped), "");
    return;
  }
  if (outcome_.first_failure.empty() || task_.share.world_size == 1) return;
  say(fmt::format("of {} ranks {} failed and {} were stopped; the first failure: {}",
                  task_.share.world_size, outcome_.num_failed, outcome_.num_stopped,
                  outcome_.first_failure));
}

void Job::say(const std::string& text) {
  err_.add(task_.host.empty() ? "ferry launch: " : fmt::format("ferry launch on {}: ", task_.host),
           text, "");
}

}  // namespace ferry::tools

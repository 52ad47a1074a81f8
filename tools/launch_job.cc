// The event loop of `ferry launch` on one host: signals, ends of ranks, stages. Called by
// launch.cc and launch_agent.cc.
#include "launch_job.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <fstream>

namespace ferry::tools {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

constexpr int kTimeoutCode = 124;  // as timeout(1)
constexpr nanoseconds kTermSpan = seconds(3);
constexpr nanoseconds kLeftoverSpan = seconds(1);
constexpr nanoseconds kLeftoverRound = milliseconds(50);
constexpr int kLeftoverRounds = 60;

// Orphans of the ranks are children of the launcher, because it is a subreaper.
std::vector<pid_t> own_children() {
  std::vector<pid_t> children;
  std::ifstream file(fmt::format("/proc/self/task/{}/children", getpid()));
  for (pid_t pid; file >> pid;) children.push_back(pid);
  return children;
}

}  // namespace

Job::Job(const JobOptions& options) : options_(options), out_(STDOUT_FILENO), err_(STDERR_FILENO) {
  prctl(PR_SET_CHILD_SUBREAPER, 1);
}

Job::~Job() { signal_ranks(SIGKILL); }

ChildInput Job::input_of(int index) const {
  if (index > 0 || options_.orders) return ChildInput::kNothing;
  return isatty(STDIN_FILENO) ? ChildInput::kPiped : ChildInput::kInherited;
}

void Job::start(std::vector<std::string> program, const LaunchIdentity& identity) {
  ChildSetup setup{.program = std::move(program),
                   .pipe_output = options_.tag,
                   .signal_mask = signals_.old_mask()};
  getrlimit(RLIMIT_NOFILE, &setup.descriptor_limit);
  const rlimit raised{setup.descriptor_limit.rlim_max, setup.descriptor_limit.rlim_max};
  setrlimit(RLIMIT_NOFILE, &raised);
  for (int index = 0; index < options_.share.num_ranks; ++index) {
    const int rank = options_.share.first_rank + index;
    Child child;
    try {
      child = spawn(setup, rank_environment(identity, options_.share, index), input_of(index));
    } catch (const SpawnError& error) {
      throw SpawnError(error.exit_code(), fmt::format("rank {} of {}: {}", rank,
                                                      options_.share.world_size, error.what()));
    }
    const std::string prefix = fmt::format("[{}] ", rank);
    ranks_.push_back({child.pid, LineStream(std::move(child.out), prefix, out_),
                      LineStream(std::move(child.err), prefix, err_)});
    if (child.in) input_ = TerminalInput(std::move(child.in));
    ++num_running_;
  }
  stage_end_.reset();
  if (options_.timeout) stage_end_ = internal::Deadline::after(*options_.timeout);
}

int Job::watch() {
  obey(false);
  while (!finished()) {
    std::vector<pollfd> fds = poll_set();
    poll(fds.data(), fds.size(), poll_ms());
    if (fds[0].revents) handle_signals();
    if (fds[5].revents) obey(true);
    move_streams(fds);
    if (stage_end_ && stage_end_->passed()) escalate();
  }
  return forced_code_ ? forced_code_ : worst_code_;
}

// signalfd, stdout, stderr, terminal, rank 0's input, orders, then stdout and stderr of each rank.
std::vector<pollfd> Job::poll_set() const {
  std::vector<pollfd> fds = {{signals_.fd(), POLLIN, 0},
                             {out_.empty() ? -1 : out_.fd(), POLLOUT, 0},
                             {err_.empty() ? -1 : err_.fd(), POLLOUT, 0},
                             {input_.terminal_fd(), POLLIN, 0},
                             {input_.rank_fd(), POLLOUT, 0},
                             {options_.orders ? options_.orders->fd() : -1, POLLIN, 0}};
  for (const Rank& rank : ranks_) {
    fds.push_back({rank.out.fd(), POLLIN, 0});
    fds.push_back({rank.err.fd(), POLLIN, 0});
  }
  return fds;
}

int Job::poll_ms() const {
  constexpr int kForever = -1, kLongest = 60'000;
  // Nobody is left to end a stream: read what is there, then close.
  if (childless_ && !drained() && !out_.congested() && !err_.congested()) return 0;
  return stage_end_ ? stage_end_->remaining_ms(kLongest) : kForever;
}

void Job::move_streams(const std::vector<pollfd>& fds) {
  if (fds[3].revents) input_.read_terminal();
  if (fds[4].revents) input_.write_rank();
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    if (fds[6 + 2 * i].revents || childless_) ranks_[i].out.read(childless_);
    if (fds[7 + 2 * i].revents || childless_) ranks_[i].err.read(childless_);
  }
  out_.flush();
  err_.flush();
}

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

// Once the launcher is gone, everything goes.
void Job::obey(bool ready) {
  if (!options_.orders) return;
  for (const std::string& order : options_.orders->read(ready)) {
    int signal = 0;
    if (order == kOrderTerminate && stage_ < Stage::kTerminating) {
      terminate();
    } else if (order.starts_with(kOrderSignal)) {
      std::from_chars(order.data() + kOrderSignal.size(), order.data() + order.size(), signal);
      forward(signal);
    }
  }
  if (options_.orders->fd() < 0) kill_ranks();
}

void Job::forward(int signal) {
  if (childless_ && LaunchSignals::asks_to_end(signal)) abandon_output_ = true;
  if (signal == SIGINT && ++num_interrupts_ >= 2) {
    if (stage_ < Stage::kKilling)
      say(fmt::format("interrupted twice; killing ranks {}", running_ranks()));
    forced_code_ = 128 + SIGINT;
    kill_ranks();
    return;
  }
  signal_ranks(signal);
}

// Ctrl-Z stops the whole job; the shell wakes the launcher only.
void Job::suspend() {
  signal_ranks(SIGSTOP);  // SIGTSTP stops nobody in an orphaned process group
  raise(SIGSTOP);
  signal_ranks(SIGCONT);
}

void Job::reap() {
  for (;;) {
    int status = 0;
    const pid_t pid = waitpid(-1, &status, WNOHANG);
    if (pid == 0) return;
    if (pid < 0) {
      if (num_running_ == 0) childless_ = true;
      return;
    }
    const auto rank = std::find_if(ranks_.begin(), ranks_.end(),
                                   [pid](const Rank& r) { return r.running && r.pid == pid; });
    if (rank != ranks_.end()) rank_ended(static_cast<int>(rank - ranks_.begin()), status);
  }
}

void Job::rank_ended(int index, int status) {
  Rank& ended = ranks_[static_cast<std::size_t>(index)];
  ended.running = false;
  --num_running_;
  // Its last words come before the launcher's.
  while (ended.out.read(false)) {
  }
  while (ended.err.read(false)) {
  }
  const int code = shell_code(status);
  if (stage_ >= Stage::kTerminating) {
    ++num_stopped_;
  } else if (code != 0) {
    ++num_failed_;
    worst_code_ = std::max(worst_code_, code);
  }
  if (code != 0 && stage_ == Stage::kRunning) {
    note_failure(fmt::format("rank {} (pid {}) {}", options_.share.first_rank + index, ended.pid,
                             describe_end(status)));
  }
  if (num_running_ > 0) return;
  say_summary();
  enter(Stage::kLeftovers, stage_ == Stage::kKilling ? kLeftoverRound : kLeftoverSpan);
}

void Job::note_failure(const std::string& what) {
  first_failure_ = what;
  if (options_.orders) {
    err_.add(kAnswerFailed, what, "");
    return enter(Stage::kGrace, std::nullopt);
  }
  say(what + (num_running_ == 0
                  ? ""
                  : fmt::format("; the others have {} to end", in_seconds(options_.grace))));
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
      say(fmt::format("--timeout {} is over; stopping ranks {}", in_seconds(*options_.timeout),
                      running_ranks()));
      forced_code_ = kTimeoutCode;
      return terminate();
    case Stage::kGrace:
      say(fmt::format("{} after that failure, ranks {} still run; stopping them",
                      in_seconds(options_.grace), running_ranks()));
      return terminate();
    case Stage::kTerminating:
      say(fmt::format("ranks {} ignore SIGTERM for {}; killing them", running_ranks(),
                      in_seconds(kTermSpan)));
      return kill_ranks();
    case Stage::kKilling: return enter(Stage::kKilling, std::nullopt);
    case Stage::kLeftovers: return kill_leftovers();
  }
}

void Job::terminate() {
  signal_ranks(SIGTERM);
  signal_ranks(SIGCONT);  // a stopped process does not see SIGTERM
  enter(Stage::kTerminating, kTermSpan);
}

void Job::kill_ranks() {
  signal_ranks(SIGKILL);
  if (stage_ < Stage::kKilling) enter(Stage::kKilling, std::nullopt);
}

// Killing an orphan makes its children orphans, hence the rounds.
void Job::kill_leftovers() {
  const std::vector<pid_t> children = own_children();
  if (leftover_rounds_ == 0 && !children.empty()) {
    say(fmt::format("ranks left {} of their own processes behind; killing them", children.size()));
  }
  for (pid_t pid : children) kill(pid, SIGKILL);
  if (++leftover_rounds_ > kLeftoverRounds) {
    say("processes that ranks left behind cannot be killed");
    childless_ = true;
  }
  enter(Stage::kLeftovers, kLeftoverRound);
}

void Job::signal_ranks(int signal) {
  for (const Rank& rank : ranks_) {
    if (rank.running) kill(-rank.pid, signal);
  }
}

std::string Job::running_ranks() const {
  std::string text;
  for (std::size_t first = 0; first < ranks_.size(); ++first) {
    if (!ranks_[first].running) continue;
    std::size_t last = first;
    while (last + 1 < ranks_.size() && ranks_[last + 1].running) ++last;
    const std::size_t offset = static_cast<std::size_t>(options_.share.first_rank);
    text += fmt::format("{}{}", text.empty() ? "" : ",", offset + first);
    if (last > first) text += fmt::format("-{}", offset + last);
    first = last;
  }
  return text;
}

void Job::say_summary() {
  if (options_.orders) {
    err_.add(kAnswerEnded, fmt::format("{} {}", num_failed_, num_stopped_), "");
    return;
  }
  if (first_failure_.empty() || options_.share.num_ranks == 1) return;
  say(fmt::format("of {} ranks {} failed and {} were stopped; the first to fail: {}",
                  options_.share.num_ranks, num_failed_, num_stopped_, first_failure_));
}

bool Job::drained() const {
  return std::none_of(ranks_.begin(), ranks_.end(),
                      [](const Rank& r) { return r.out.open() || r.err.open(); });
}

bool Job::finished() const {
  if (!childless_) return false;
  if (abandon_output_) return true;
  return drained() && out_.empty() && err_.empty();
}

}  // namespace ferry::tools

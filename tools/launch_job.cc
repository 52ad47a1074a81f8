// The event loop of `ferry launch`: signals, ends of ranks, stages. Called by launch.cc.
#include "launch_job.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>

#include "ferry/status.h"

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

// Passed on to the ranks. The first four ask a program to end.
constexpr std::array kForwarded = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
bool asks_to_end(int signal) {
  return signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT;
}

sigset_t watched_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (int signal : kForwarded) sigaddset(&set, signal);
  sigaddset(&set, SIGCHLD);
  sigaddset(&set, SIGTSTP);
  return set;
}

std::string describe_end(int status) {
  if (WIFEXITED(status)) return fmt::format("exited with code {}", WEXITSTATUS(status));
  const char* const name = sigabbrev_np(WTERMSIG(status));
  return fmt::format("was killed by signal {} (SIG{}{})", WTERMSIG(status), name ? name : "?",
                     WCOREDUMP(status) ? ", core dumped" : "");
}

int shell_code(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string in_seconds(nanoseconds span) {
  return fmt::format("{:g} s", static_cast<double>(span.count()) / 1e9);
}

// Orphans of the ranks are children of the launcher, because it is a subreaper.
std::vector<pid_t> own_children() {
  std::vector<pid_t> children;
  std::ifstream file(fmt::format("/proc/self/task/{}/children", getpid()));
  for (pid_t pid; file >> pid;) children.push_back(pid);
  return children;
}

}  // namespace

Job::Job(const JobOptions& options) : options_(options), out_(STDOUT_FILENO), err_(STDERR_FILENO) {
  const sigset_t watched = watched_signals();
  signals_ = internal::Descriptor(signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_) throw Error(Code::kSystem, fmt::format("signalfd: {}", std::strerror(errno)));
  sigset_t blocked = watched;
  sigaddset(&blocked,
            SIGTTIN);  // a launcher in the background must not be stopped by reading its terminal
  sigprocmask(SIG_BLOCK, &blocked, &old_mask_);
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGCHLD, SIG_DFL);  // where a caller ignores it, nobody learns how ranks ended
  prctl(PR_SET_CHILD_SUBREAPER, 1);
}

Job::~Job() { signal_ranks(SIGKILL); }

void Job::start(std::vector<std::string> program, const LaunchIdentity& identity) {
  ChildSetup setup{
      .program = std::move(program), .pipe_output = options_.tag, .signal_mask = old_mask_};
  getrlimit(RLIMIT_NOFILE, &setup.descriptor_limit);
  const rlimit raised{setup.descriptor_limit.rlim_max, setup.descriptor_limit.rlim_max};
  setrlimit(RLIMIT_NOFILE, &raised);
  const ChildInput first = isatty(STDIN_FILENO) ? ChildInput::kPiped : ChildInput::kInherited;
  for (int rank = 0; rank < options_.num_ranks; ++rank) {
    Child child;
    try {
      child = spawn(setup, rank_environment(identity, rank, options_.num_ranks),
                    rank == 0 ? first : ChildInput::kNothing);
    } catch (const SpawnError& error) {
      throw SpawnError(error.exit_code(),
                       fmt::format("rank {} of {}: {}", rank, options_.num_ranks, error.what()));
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
  while (!finished()) {
    std::vector<pollfd> fds = poll_set();
    poll(fds.data(), fds.size(), poll_ms());
    if (fds[0].revents) handle_signals();
    move_streams(fds);
    if (stage_end_ && stage_end_->passed()) escalate();
  }
  return forced_code_ ? forced_code_ : worst_code_;
}

// signalfd, stdout, stderr, terminal, rank 0's input, then stdout and stderr of each rank.
std::vector<pollfd> Job::poll_set() const {
  std::vector<pollfd> fds = {{signals_.fd(), POLLIN, 0},
                             {out_.empty() ? -1 : out_.fd(), POLLOUT, 0},
                             {err_.empty() ? -1 : err_.fd(), POLLOUT, 0},
                             {input_.terminal_fd(), POLLIN, 0},
                             {input_.rank_fd(), POLLOUT, 0}};
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
    if (fds[5 + 2 * i].revents || childless_) ranks_[i].out.read(childless_);
    if (fds[6 + 2 * i].revents || childless_) ranks_[i].err.read(childless_);
  }
  out_.flush();
  err_.flush();
}

void Job::handle_signals() {
  signalfd_siginfo info;
  while (read(signals_.fd(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGCHLD) {
      reap();
    } else if (signal == SIGTSTP) {
      suspend();
    } else {
      forward(signal);
    }
  }
}

void Job::forward(int signal) {
  if (childless_ && asks_to_end(signal)) abandon_output_ = true;
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

void Job::rank_ended(int rank, int status) {
  Rank& ended = ranks_[static_cast<std::size_t>(rank)];
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
    first_failure_ = fmt::format("rank {} (pid {}) {}", rank, ended.pid, describe_end(status));
    const std::string others =
        num_running_ == 0 ? ""
                          : fmt::format("; the others have {} to end", in_seconds(options_.grace));
    say(first_failure_ + others);
    enter(Stage::kGrace, options_.grace);
  }
  if (num_running_ > 0) return;
  say_summary();
  enter(Stage::kLeftovers, stage_ == Stage::kKilling ? kLeftoverRound : kLeftoverSpan);
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
    text += fmt::format("{}{}", text.empty() ? "" : ",", first);
    if (last > first) text += fmt::format("-{}", last);
    first = last;
  }
  return text;
}

void Job::say_summary() {
  if (first_failure_.empty() || options_.num_ranks == 1) return;
  say(fmt::format("of {} ranks {} failed and {} were stopped; the first to fail: {}",
                  options_.num_ranks, num_failed_, num_stopped_, first_failure_));
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

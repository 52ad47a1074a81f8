// The event loop of `ferry launch --hosts`; see launch_hosts.h.
#include "launch_hosts.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <stdexcept>
#include <utility>

namespace ferry::tools {
namespace {

using std::chrono::nanoseconds;
using std::chrono::seconds;

constexpr int kTimeoutCode = 124;  // as timeout(1)
// An agent that was told to stop has SIGTERM's span and that of leftovers; then it does not answer.
constexpr nanoseconds kStopSpan = seconds(12);

// For a shell: in quotes, those inside written as '\''.
std::string quoted(std::string_view text) {
  std::string result = "'";
  for (const char c : text) {
    if (c == '\'') result += "'\\'";
    result += c;
  }
  return result + "'";
}

std::vector<std::string> own_environment() {
  std::vector<std::string> entries;
  for (char** entry = environ; *entry; ++entry) entries.emplace_back(*entry);
  return entries;
}

}  // namespace

std::vector<HostRanks> parse_hosts(std::string_view text) {
  std::vector<HostRanks> hosts;
  for (bool more = true; more;) {
    const std::size_t comma = text.find(',');
    more = comma != std::string_view::npos;
    const std::string_view part = text.substr(0, comma);
    text.remove_prefix(more ? comma + 1 : text.size());
    const std::size_t colon = std::min(part.rfind(':'), part.size());
    const std::string_view count = part.substr(std::min(colon + 1, part.size()));
    HostRanks host{std::string(part.substr(0, colon))};
    const auto [end, error] =
        std::from_chars(count.data(), count.data() + count.size(), host.num_ranks);
    const bool whole = error == std::errc() && end == count.data() + count.size();
    // A host that begins with '-' would be an option of ssh.
    const bool plain = !host.name().empty() && host.target[0] != '-' &&
                       host.target.find_first_of(": \t") == std::string::npos;
    if (!whole || host.num_ranks < 1 || !plain) {
      throw std::invalid_argument(
          fmt::format("'{}' is not NAME:RANKS, with a host's name and at least 1 rank", part));
    }
    hosts.push_back(std::move(host));
  }
  return hosts;
}

HostsJob::HostsJob(const HostsOptions& options)
    : options_(options), out_(STDOUT_FILENO), err_(STDERR_FILENO) {}

HostsJob::~HostsJob() { kill_ssh(); }

void HostsJob::start(Task task) {
  ChildSetup setup{.program = {}, .pipe_output = true, .signal_mask = signals_.old_mask()};
  getrlimit(RLIMIT_NOFILE, &setup.descriptor_limit);
  task.environment = own_environment();
  task.share.num_hosts = static_cast<int>(options_.hosts.size());
  for (const HostRanks& host : options_.hosts) task.share.world_size += host.num_ranks;
  num_ranks_ = task.share.world_size;
  for (const HostRanks& host : options_.hosts) {
    task.host = host.name();
    task.share.num_ranks = host.num_ranks;
    setup.program = options_.ssh;
    setup.program.push_back(host.target);
    setup.program.push_back(fmt::format("exec {} launch --remote-agent", quoted(options_.ferry)));
    Child child = spawn(setup, task.environment, ChildInput::kPiped);
    hosts_.push_back({task.host, child.pid, std::move(child.in), encode(task),
                      LineStream(std::move(child.out), "", out_, edit_lines_of(task.host, false)),
                      LineStream(std::move(child.err), "", err_, edit_lines_of(task.host, true))});
    ++num_running_;
    ++task.share.host;
    task.share.first_rank += host.num_ranks;
  }
  if (options_.timeout) stage_end_ = internal::Deadline::after(*options_.timeout);
}

// Agents put "[rank] " before each line of a rank.
LineStream::Edit HostsJob::edit_lines_of(const std::string& host, bool answers) {
  return [this, host, answers](std::string_view line) -> std::optional<std::string_view> {
    if (answers && (line.starts_with(kAnswerFailed) || line.starts_with(kAnswerEnded))) {
      hear(host, line);
      return std::nullopt;
    }
    const std::size_t text = line.find("] ");
    if (!options_.tag && line.starts_with('[') && text != std::string_view::npos)
      line.remove_prefix(text + 2);
    return line;
  };
}

void HostsJob::hear(const std::string& host, std::string_view line) {
  if (line.starts_with(kAnswerFailed)) {
    line.remove_prefix(kAnswerFailed.size());
    return note_failure(fmt::format("on {}: {}", host, line));
  }
  line.remove_prefix(kAnswerEnded.size());
  int failed = 0, stopped = 0;
  const char* const end = line.data() + line.size();
  const char* const blank = std::from_chars(line.data(), end, failed).ptr;
  std::from_chars(std::min(blank + 1, end), end, stopped);
  num_failed_ += failed;
  num_stopped_ += stopped;
}

int HostsJob::watch() {
  while (!finished()) {
    std::vector<pollfd> fds = poll_set();
    poll(fds.data(), fds.size(), poll_ms());
    if (fds[0].revents) handle_signals();
    move_streams(fds);
    if (num_running_ > 0 && stage_end_ && stage_end_->passed()) escalate();
  }
  return forced_code_ ? forced_code_ : worst_code_;
}

// signalfd, stdout, stderr, then input, stdout and stderr of each ssh.
std::vector<pollfd> HostsJob::poll_set() const {
  std::vector<pollfd> fds = {{signals_.fd(), POLLIN, 0},
                             {out_.empty() ? -1 : out_.fd(), POLLOUT, 0},
                             {err_.empty() ? -1 : err_.fd(), POLLOUT, 0}};
  for (const Host& host : hosts_) {
    fds.push_back({host.unsent.empty() ? -1 : host.in.fd(), POLLOUT, 0});
    fds.push_back({host.out.fd(), POLLIN, 0});
    fds.push_back({host.err.fd(), POLLIN, 0});
  }
  return fds;
}

int HostsJob::poll_ms() const {
  constexpr int kForever = -1, kLongest = 60'000;
  if (num_running_ == 0) return kForever;  // only for somebody to read what is left
  return stage_end_ ? stage_end_->remaining_ms(kLongest) : kForever;
}

void HostsJob::move_streams(const std::vector<pollfd>& fds) {
  for (std::size_t i = 0; i < hosts_.size(); ++i) {
    Host& host = hosts_[i];
    if (fds[3 + 3 * i].revents) send(host);
    // Once the ssh has ended all is there, though a helper of it may hold the pipe open.
    do {
      if (fds[4 + 3 * i].revents || !host.running) host.out.read(!host.running);
      if (fds[5 + 3 * i].revents || !host.running) host.err.read(!host.running);
    } while (!host.running && (host.out.fd() >= 0 || host.err.fd() >= 0));
  }
  out_.flush();
  err_.flush();
}

void HostsJob::order(const std::string& text) {
  for (Host& host : hosts_) {
    if (!host.running) continue;
    host.unsent += text + "\n";
    send(host);
  }
}

void HostsJob::send(Host& host) {
  const ssize_t put = write(host.in.fd(), host.unsent.data(), host.unsent.size());
  if (put >= 0) {
    host.unsent.erase(0, static_cast<std::size_t>(put));
  } else if (errno != EAGAIN && errno != EINTR) {
    host.unsent.clear();  // it has ended, or will
  }
}

void HostsJob::handle_signals() {
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

// Agents count interrupts, too, and kill their ranks at the second.
void HostsJob::forward(int signal) {
  if (num_running_ == 0 && LaunchSignals::asks_to_end(signal)) abandon_output_ = true;
  order(fmt::format("{}{}", kOrderSignal, signal));
  if (signal != SIGINT || ++num_interrupts_ < 2) return;
  forced_code_ = 128 + SIGINT;
  stage_ = Stage::kTerminating;
  stage_end_ = internal::Deadline::after(kStopSpan);
}

void HostsJob::suspend() {
  order(fmt::format("{}{}", kOrderSignal, SIGSTOP));
  raise(SIGSTOP);
  order(fmt::format("{}{}", kOrderSignal, SIGCONT));
}

void HostsJob::reap() {
  int status = 0;
  for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
    const auto host = std::find_if(hosts_.begin(), hosts_.end(),
                                   [pid](const Host& h) { return h.running && h.pid == pid; });
    if (host != hosts_.end()) host_ended(*host, status);
  }
}

void HostsJob::host_ended(Host& host, int status) {
  // What its agent said comes before what is made of its end.
  while (host.err.read(false)) {
  }
  host.running = false;
  host.in = {};
  --num_running_;
  const int code = shell_code(status);
  worst_code_ = std::max(worst_code_, code);
  if (code != 0 && stage_ == Stage::kRunning) {
    note_failure(fmt::format("the connection to {} ({}, pid {}) {}", host.name, options_.ssh[0],
                             host.pid, describe_end(status)));
  }
  if (num_running_ == 0) say_summary();
}

void HostsJob::note_failure(const std::string& what) {
  if (stage_ != Stage::kRunning) return;
  first_failure_ = what;
  say(fmt::format("{}; the others have {} to end", what, in_seconds(options_.grace)));
  stage_ = Stage::kGrace;
  stage_end_ = internal::Deadline::after(options_.grace);
}

void HostsJob::escalate() {
  switch (stage_) {
    case Stage::kRunning:
      say(fmt::format("--timeout {} is over; stopping the ranks on {}",
                      in_seconds(*options_.timeout), running_hosts()));
      forced_code_ = kTimeoutCode;
      return terminate();
    case Stage::kGrace:
      say(fmt::format("{} after that failure, ranks on {} still run; stopping them",
                      in_seconds(options_.grace), running_hosts()));
      return terminate();
    case Stage::kTerminating:
      say(fmt::format("no answer from {} for {}; cutting the connection", running_hosts(),
                      in_seconds(kStopSpan)));
      kill_ssh();
      stage_end_.reset();
  }
}

void HostsJob::terminate() {
  order(std::string(kOrderTerminate));
  stage_ = Stage::kTerminating;
  stage_end_ = internal::Deadline::after(kStopSpan);
}

// The agent sees the end of its input and kills its ranks.
void HostsJob::kill_ssh() {
  for (const Host& host : hosts_) {
    if (host.running) kill(-host.pid, SIGKILL);
  }
}

std::string HostsJob::running_hosts() const {
  std::string text;
  for (const Host& host : hosts_) {
    if (host.running) text += (text.empty() ? "" : ", ") + host.name;
  }
  return text;
}

void HostsJob::say_summary() {
  if (first_failure_.empty()) return;
  say(fmt::format("of {} ranks {} failed and {} were stopped; the first failure: {}", num_ranks_,
                  num_failed_, num_stopped_, first_failure_));
}

bool HostsJob::finished() const {
  if (num_running_ > 0) return false;
  if (abandon_output_) return true;
  const bool drained = std::none_of(hosts_.begin(), hosts_.end(), [](const Host& host) {
    return host.out.open() || host.err.open();
  });
  return drained && out_.empty() && err_.empty();
}

}  // namespace ferry::tools

// How a Job starts, its event loop, its streams, and the orders and reports between a launcher and
// its agents; see job.h.
#include "tools/launch/job.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <sstream>
#include <utility>

namespace ferry::tools {
Job::Job(const JobOptions& options) : options_(options), out_(STDOUT_FILENO), err_(STDERR_FILENO) {
  // Only a launcher with local ranks adopts orphans. On a remote launch, an ssh that stays behind
  // (ControlPersist) belongs to the user.
  if (!remote()) prctl(PR_SET_CHILD_SUBREAPER, 1);
}

Job::~Job() { kill_children(); }

void Job::start(Task task) {
  task_ = std::move(task);
  setup_ = {.program = task_.program,
            .pipe_output = options_.tag || remote(),
            .signal_mask = signals_.old_mask()};
  getrlimit(RLIMIT_NOFILE, &setup_.descriptor_limit);
  const rlimit raised{setup_.descriptor_limit.rlim_max, setup_.descriptor_limit.rlim_max};
  setrlimit(RLIMIT_NOFILE, &raised);
  if (remote()) start_agents(setup_);
  for (int index = 0; !remote() && index < task_.share.num_ranks; ++index)
    children_.push_back(start_rank(index, false));
  num_running_ = static_cast<int>(children_.size());
  for (int i = 0; !remote() && i < options_.num_spares; ++i) children_.push_back(start_spare());
  if (options_.timeout) stage_end_ = internal::Deadline::after(*options_.timeout);
}

Job::Watched Job::start_rank(int index, bool newcomer) {
  const HostShare& share = task_.share;
  const int rank = share.first_rank + index;
  Child child;
  try {
    child =
        spawn(setup_, rank_environment(task_.identity, share, index, newcomer), input_of(index));
  } catch (const SpawnError& error) {
    throw SpawnError(error.exit_code(),
                     fmt::format("rank {} of {}: {}", rank, share.world_size, error.what()));
  }
  const std::string prefix = fmt::format("[{}] ", rank);
  return {std::to_string(rank), child.pid, std::move(child.in),
          LineStream(std::move(child.out), prefix, out_),
          LineStream(std::move(child.err), prefix, err_)};
}

Job::Watched Job::start_spare() {
  Child child = spawn(setup_, spare_environment(task_.identity, task_.share), ChildInput::kPiped);
  return {.name = "spare",
          .pid = child.pid,
          .in = std::move(child.in),
          .out = LineStream(std::move(child.out), "[spare] ", out_),
          .err = LineStream(std::move(child.err), "[spare] ", err_),
          .spare = true};
}

void Job::start_agents(ChildSetup setup) {
  Task task = task_;
  for (const HostRanks& host : options_.hosts) {
    task.host = host.name();
    task.share.num_ranks = host.num_ranks;
    setup.program = options_.ssh;
    setup.program.push_back(host.target);
    setup.program.push_back(command_there("launch --remote-agent"));
    Child child = spawn(setup, task.environment, ChildInput::kPiped);
    children_.push_back(
        {task.host, child.pid, std::move(child.in),
         LineStream(std::move(child.out), "", out_, edit_lines_of({})),
         LineStream(std::move(child.err), "", err_, edit_lines_of(children_.size())),
         encode(task)});
    ++task.share.host;
    task.share.first_rank += host.num_ranks;
  }
}

ChildInput Job::input_of(int index) const {
  if (index > 0 || options_.orders) return ChildInput::kNothing;
  return isatty(STDIN_FILENO) ? ChildInput::kPiped : ChildInput::kInherited;
}

// Returns the function that edits the lines of a child. It takes the reports of an agent out of the
// stream; without `agent` there are none. It also removes the "[rank] " that an agent puts before
// each line of a rank, if the user wants no tags.
LineStream::Edit Job::edit_lines_of(std::optional<std::size_t> agent) {
  return [this, agent](std::string_view line) -> std::optional<std::string_view> {
    constexpr std::array kReports = {kReportFailed, kReportEnded, kReportLost, kReportAdmits};
    const auto begins = [line](std::string_view report) { return line.starts_with(report); };
    if (agent && std::ranges::any_of(kReports, begins)) {
      read_report(*agent, line);
      return std::nullopt;
    }
    const std::size_t text = line.find("] ");
    if (!options_.tag && line.starts_with('[') && text != std::string_view::npos)
      line.remove_prefix(text + 2);
    return line;
  };
}

void Job::read_report(std::size_t agent, std::string_view report) {
  if (report.starts_with(kReportLost)) return answer_loss(agent, report.substr(kReportLost.size()));
  if (report.starts_with(kReportAdmits))
    return take_answer(agent, report.substr(kReportAdmits.size()));
  if (report.starts_with(kReportFailed))
    return note_failure(
        fmt::format("on {}: {}", children_[agent].name, report.substr(kReportFailed.size())));
  report.remove_prefix(kReportEnded.size());
  int failed = 0, stopped = 0;
  std::istringstream(std::string(report)) >> failed >> stopped;
  outcome_.num_failed += failed;
  outcome_.num_stopped += stopped;
}

// Answers an agent's report about a failed rank. If no rank of that host can admit it, the other
// agents are asked first.
void Job::answer_loss(std::size_t agent, std::string_view report) {
  int place = 0, admits = 0;
  std::istringstream(std::string(report)) >> place >> admits;
  if (admits != 0) return answer(agent, place, true);
  Restarts::Asked asked{.agent = agent, .place = place};
  for (std::size_t other = 0; other < children_.size(); ++other) {
    if (other == agent || !children_[other].running) continue;
    asked.missing.insert(other);
    order(children_[other], fmt::format("{}{}", kOrderAsk, restarts_.num_asked));
  }
  if (asked.missing.empty()) return answer(agent, place, false);
  restarts_.asked[restarts_.num_asked++] = std::move(asked);
}

void Job::take_answer(std::size_t agent, std::string_view report) {
  int number = 0, admits = 0;
  std::istringstream(std::string(report)) >> number >> admits;
  const auto asked = restarts_.asked.find(number);
  if (asked == restarts_.asked.end()) return;
  if (admits == 0) return take_no(agent, number);
  answer(asked->second.agent, asked->second.place, true);
  restarts_.asked.erase(asked);
}

// No rank on the host of this agent can admit a process.
void Job::take_no(std::size_t agent, int number) {
  Restarts::Asked& asked = restarts_.asked.at(number);
  asked.missing.erase(agent);
  if (!asked.missing.empty()) return;
  answer(asked.agent, asked.place, false);
  restarts_.asked.erase(number);
}

// An agent that has ended does not answer.
void Job::drop_questions_to(const Watched& ended) {
  const std::size_t agent = place_of(ended);
  for (auto asked = restarts_.asked.begin(); asked != restarts_.asked.end();)
    take_no(agent, (asked++)->first);  // which may erase that question
}

std::size_t Job::place_of(const Watched& child) const {
  const auto is_child = [&child](const Watched& other) { return &other == &child; };
  return std::ranges::find_if(children_, is_child) - children_.begin();
}

// Restarts are counted here, for the ranks of all hosts together.
void Job::answer(std::size_t agent, int place, bool admitted) {
  const int most = options_.most_restarts;
  const bool running = stage_ == Stage::kRunning && !outcome_.asked_to_end;
  std::string reason;
  if (running && restarts_.count == most)
    reason = fmt::format(kTooManyRestarts, most, most);
  else if (running && !admitted)
    reason = kNobodyAdmits;
  if (running && reason.empty()) {
    return order(children_[agent], fmt::format("{}{} {}", kOrderRestart, place, ++restarts_.count));
  }
  order(children_[agent], fmt::format("{}{} {}", kOrderLose, place, reason));
}

int Job::watch() {
  obey(false);
  while (!finished()) {
    std::vector<pollfd> fds = poll_set();
    poll(fds.data(), fds.size(), poll_ms());
    if (fds[0].revents) handle_signals();
    if (fds[3].revents) read_terminal();
    if (fds[4].revents) obey(true);
    move_streams(fds);
    if (stage_end_ && stage_end_->passed()) escalate();
  }
  const int code = outcome_.forced_code ? outcome_.forced_code : outcome_.worst_code;
  // EPIPE is no failure: the reader has closed the output.
  const int lost = out_.error() == EPIPE ? 0 : out_.error();
  if (lost != 0) say(fmt::format("cannot write the output of the ranks: {}", std::strerror(lost)));
  err_.flush();
  return lost != 0 ? std::max(code, 1) : code;
}

// The descriptors are in this order: signalfd, stdout, stderr, terminal, orders; then input, stdout
// and stderr of each child. The launcher passes lines of the terminal on to rank 0: only the
// foreground process group may read a terminal, and each rank has a process group of its own.
std::vector<pollfd> Job::poll_set() const {
  const bool terminal = !remote() && children_[0].in && children_[0].unsent.empty();
  std::vector<pollfd> fds = {{signals_.fd(), POLLIN, 0},
                             {out_.empty() ? -1 : out_.fd(), POLLOUT, 0},
                             {err_.empty() ? -1 : err_.fd(), POLLOUT, 0},
                             {terminal ? STDIN_FILENO : -1, POLLIN, 0},
                             {options_.orders ? options_.orders->fd() : -1, POLLIN, 0}};
  for (const Watched& child : children_) {
    fds.push_back({child.unsent.empty() ? -1 : child.in.fd(), POLLOUT, 0});
    fds.push_back({child.out.fd(), POLLIN, 0});
    fds.push_back({child.err.fd(), POLLIN, 0});
  }
  return fds;
}

int Job::poll_ms() const {
  constexpr int kForever = -1;
  // No writer remains that could end a stream, so the loop reads the remaining bytes and closes it.
  if (childless_ && !drained() && !out_.congested() && !err_.congested()) return 0;
  return stage_end_ ? stage_end_->remaining_ms() : kForever;
}

void Job::move_streams(const std::vector<pollfd>& fds) {
  // A child that was started after poll_set() has no descriptors there.
  for (std::size_t i = 0; 7 + 3 * i < fds.size(); ++i) {
    Watched& child = children_[i];
    if (fds[5 + 3 * i].revents) send(child);
    if (fds[6 + 3 * i].revents || childless_) child.out.read(childless_);
    if (fds[7 + 3 * i].revents || childless_) child.err.read(childless_);
  }
  out_.flush();
  err_.flush();
}

void Job::read_terminal() {
  std::array<char, 4096> buffer;
  const ssize_t got = ::read(STDIN_FILENO, buffer.data(), buffer.size());
  if (got > 0) {
    children_[0].unsent.assign(buffer.data(), static_cast<std::size_t>(got));
  } else if (got == 0 || errno != EINTR) {
    // The input has ended. A launcher in the background gets EIO here, and rank 0 then has no
    // input.
    children_[0].in = {};
  }
}

void Job::send(Watched& child) {
  const ssize_t put = ::write(child.in.fd(), child.unsent.data(), child.unsent.size());
  if (put >= 0) {
    child.unsent.erase(0, static_cast<std::size_t>(put));
  } else if (errno != EAGAIN && errno != EINTR) {
    child.unsent.clear();
    child.in = {};
  }
}

void Job::order(const std::string& text) {
  for (Watched& child : children_)
    if (child.running) order(child, text);
}

void Job::order(Watched& agent, const std::string& text) {
  agent.unsent += text + "\n";
  send(agent);
}

// Carries out the orders of the launcher. When the launcher has ended, all ranks are killed.
void Job::obey(bool ready) {
  if (!options_.orders) return;
  for (const std::string& order : options_.orders->read(ready)) {
    std::istringstream words(order.substr(order.find(' ') + 1));
    std::size_t number = 0;  // of a signal, or the place of a rank
    words >> number;
    if (order == kOrderTerminate && stage_ < Stage::kTerminating) {
      terminate();
    } else if (order.starts_with(kOrderSignal)) {
      forward(static_cast<int>(number));
    } else if (order.starts_with(kOrderRestart) || order.starts_with(kOrderLose)) {
      Watched& lost = children_.at(number);
      if (lost.failure.empty()) continue;  // the rank has ended since
      std::string failure = std::exchange(lost.failure, ""), reason;
      int restart = 0;
      if (order.starts_with(kOrderLose)) std::getline(words.ignore(), reason);
      if (reason.empty() && words >> restart && start_again(lost, failure, restart)) continue;
      end_rank(lost.code, failure + reason);
    } else if (order.starts_with(kOrderAsk)) {
      err_.add(kReportAdmits, fmt::format("{} {:d}", number, can_admit()), "");
    }
  }
  if (options_.orders->fd() < 0) {
    kill_children();
    end_lost_ranks();
  }
  if (num_running_ == 0) reap();  // the last rank may have ended before an order
}

bool Job::drained() const {
  return std::none_of(children_.begin(), children_.end(),
                      [](const Watched& c) { return c.out.open() || c.err.open(); });
}

bool Job::finished() const {
  if (!childless_) return false;
  if (abandon_output_) return true;
  return drained() && out_.empty() && err_.empty();
}

}  // namespace ferry::tools

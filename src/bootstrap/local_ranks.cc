// Finds the launcher and its ranks in /proc. The launcher is the nearest ancestor without this
// rank's number in its environment. Its children are the ranks, or wrappers that run them.
#include "bootstrap/local_ranks.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/clock.h"

namespace ferry::internal {
namespace {

constexpr std::int64_t kLookNs = 200'000'000;
// The time after which a launcher has started all ranks. It is longer than any launcher needs.
constexpr std::int64_t kAllStartedNs = 10'000'000'000;
// A launcher that never sleeps between two ranks has started all of them once it has slept in this
// many looks in a row.
constexpr int kIdleLooks = 6;

std::string contents(pid_t pid, const char* name) {
  std::ifstream file(fmt::format("/proc/{}/{}", pid, name));
  return {std::istreambuf_iterator<char>(file), {}};
}

// The value of a variable in the environment with which the process was started. nullopt if it
// cannot be read, or if the process has ended.
std::optional<std::string> variable_of(pid_t pid, const std::string& name) {
  const std::string all = '\0' + contents(pid, "environ");
  const std::size_t at = all.find('\0' + name + '=');
  if (at == std::string::npos) return std::nullopt;
  const std::size_t begin = at + name.size() + 2;
  return all.substr(begin, all.find('\0', begin) - begin);
}

struct State {
  char letter = 'X';
  pid_t parent = 0;
};
// Reads "12 (any name) S 11 ...".
State state_in(const std::string& stat) {
  const std::size_t end = stat.rfind(')');
  State state;
  if (end != std::string::npos)
    std::sscanf(stat.c_str() + end, ") %c %d", &state.letter, &state.parent);
  return state;
}
State state_of(pid_t pid) { return state_in(contents(pid, "stat")); }

std::vector<std::filesystem::path> tasks_of(pid_t pid) {
  std::error_code none;
  const std::filesystem::directory_iterator tasks(fmt::format("/proc/{}/task", pid), none);
  return {begin(tasks), end(tasks)};
}

bool all_threads_sleep(pid_t pid) {
  const auto sleeps = [&](const std::filesystem::path& task) {
    return state_in(contents(pid, ("task" / task.filename() / "stat").c_str())).letter == 'S';
  };
  return std::ranges::all_of(tasks_of(pid), sleeps);
}

bool is_zombie(pid_t pid) {
  const char letter = state_of(pid).letter;
  return letter == 'Z' || letter == 'X';
}

}  // namespace

LocalRanks::LocalRanks(const LocalLaunch& launch, int rank)
    : launch_(launch),
      rank_(rank),
      started_(static_cast<std::size_t>(launch.count)),
      running_(started_.size()) {
  const std::string mine = std::to_string(rank);
  if (launch.variable.empty() || variable_of(getpid(), launch.variable) != mine) return;
  launcher_ = getpid();
  while (launcher_ > 1 && variable_of(launcher_, launch.variable) == mine)
    launcher_ = state_of(launcher_).parent;
}

std::optional<int> LocalRanks::ended(const std::vector<int>& ranks) {
  if (launcher_ <= 1) return std::nullopt;
  look();
  for (const int rank : ranks) {
    const int place = rank - launch_.first;
    if (place < 0 || place >= launch_.count || rank == rank_) continue;
    if (started_[static_cast<std::size_t>(place)] && !running_[static_cast<std::size_t>(place)])
      return rank;
  }
  return std::nullopt;
}

void LocalRanks::look() {
  const std::int64_t now = now_ns();
  if (began_ns_ == 0) began_ns_ = now;
  if (now - looked_ns_ < kLookNs) return;
  looked_ns_ = now;
  std::map<pid_t, int> ranks;
  for (const std::filesystem::path& task : tasks_of(launcher_)) {
    std::ifstream children(task / "children");
    for (pid_t child; children >> child;) ranks[child] = place_of(child);
  }
  ranks_ = std::move(ranks);
  running_.assign(running_.size(), false);
  for (const auto& [child, place] : ranks_) {
    if (place >= 0 && !is_zombie(child)) running_[static_cast<std::size_t>(place)] = true;
  }
  // Ranks are started in ascending order, so every rank below a running one was started.
  bool later_started = all_started(now);
  for (std::size_t place = running_.size(); place-- > 0;) {
    later_started = later_started || running_[place];
    started_[place] = started_[place] || later_started;
  }
}

// Whether the launcher has started all ranks. A child that is not known as a rank may be a rank
// before exec.
bool LocalRanks::all_started(std::int64_t now) {
  if (now - began_ns_ > kAllStartedNs) return true;
  const bool idle = launch_.at_once && all_threads_sleep(launcher_) &&
                    std::ranges::all_of(ranks_, [](const auto& child) {
                      return child.second >= 0 || is_zombie(child.first);
                    });
  num_idle_looks_ = idle ? num_idle_looks_ + 1 : 0;
  return num_idle_looks_ >= kIdleLooks;
}

// Returns -1 if the child is not a rank, or not known as one yet.
int LocalRanks::place_of(pid_t child) const {
  if (const auto known = ranks_.find(child); known != ranks_.end() && known->second >= 0)
    return known->second;
  const auto text = variable_of(child, launch_.variable);
  const int place = text ? std::atoi(text->c_str()) - launch_.first : -1;
  return place < launch_.count ? place : -1;
}

std::string LocalRanks::reason() const {
  return fmt::format("its launcher, pid {}, has no process of it any more", launcher_);
}

}  // namespace ferry::internal

// Fluid simulation: rates by progressive filling, time from event to event; see schedule.h. Called
// by plan.cc.
#include <algorithm>
#include <limits>

#include "plan/schedule.h"

namespace ferry::internal {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
// Rates and times that differ by less are the same: sums of the same terms in another order.
constexpr double kEqual = 1e-12;

// All rates rise together until a resource is full; the tasks on it keep theirs, the others rise
// on.
class Filling {
 public:
  Filling(const Schedule& schedule, const std::vector<int>& active)
      : schedule_(schedule),
        active_(active),
        weight_(schedule.resources.size()),
        left_(schedule.resources.size()),
        rates_(active.size(), -1) {
    for (std::size_t r = 0; r < left_.size(); ++r) left_[r] = schedule.resources[r].capacity;
    for (const int task : active) add_weight(task, 1);
  }

  std::vector<double> run() {
    std::size_t rising = rates_.size();
    while (rising > 0) {
      const double rate = lowest_share();
      for (std::size_t i = 0; i < rates_.size(); ++i) {
        if (rates_[i] >= 0 || !held_at(active_[i], rate)) continue;
        rates_[i] = rate;
        --rising;
      }
      settle(rate);
    }
    return std::move(rates_);
  }

 private:
  bool limits(int resource) const { return schedule_.resources[resource].capacity > 0; }

  void add_weight(int task, double sign) {
    for (const Use& use : schedule_.tasks[task].uses)
      if (limits(use.resource)) weight_[use.resource] += sign * use.share * use.cost;
  }

  double share_of(int resource) const {
    return weight_[resource] > 0 ? std::max(left_[resource], 0.0) / weight_[resource] : kNever;
  }

  double lowest_share() const {
    double lowest = kNever;
    for (std::size_t r = 0; r < left_.size(); ++r)
      lowest = std::min(lowest, share_of(static_cast<int>(r)));
    return lowest;
  }

  bool held_at(int task, double rate) const {
    if (rate == kNever) return true;
    return std::ranges::any_of(schedule_.tasks[task].uses, [&](const Use& use) {
      return limits(use.resource) && share_of(use.resource) <= rate * (1 + kEqual);
    });
  }

  // Anew, so that no error of rounding is left in what others may use.
  void settle(double rate) {
    if (rate == kNever) return;
    std::ranges::fill(weight_, 0);
    for (std::size_t r = 0; r < left_.size(); ++r) left_[r] = schedule_.resources[r].capacity;
    for (std::size_t i = 0; i < rates_.size(); ++i) {
      if (rates_[i] < 0) add_weight(active_[i], 1);
      if (rates_[i] < 0) continue;
      for (const Use& use : schedule_.tasks[active_[i]].uses)
        left_[use.resource] -= rates_[i] * use.share * use.cost;
    }
  }

  const Schedule& schedule_;
  const std::vector<int>& active_;
  std::vector<double> weight_;  // [resources]: of the tasks that still rise
  std::vector<double> left_;    // [resources]
  std::vector<double> rates_;   // [active]; -1: still rises
};

class Simulation {
 public:
  explicit Simulation(const Schedule& schedule)
      : schedule_(schedule),
        left_(schedule.tasks.size()),
        starts_(schedule.tasks.size()),
        waits_(schedule.tasks.size()),
        followers_(schedule.tasks.size()),
        timeline_{.end_us = 0, .tasks = std::vector<Interval>(schedule.tasks.size())} {
    for (std::size_t i = 0; i < schedule.tasks.size(); ++i) {
      const Task& task = schedule.tasks[i];
      left_[i] = task.bytes;
      waits_[i] = static_cast<int>(task.after.size()) + (task.previous >= 0 ? 1 : 0);
      for (const int before : task.after) followers_[before].push_back(static_cast<int>(i));
      if (task.previous >= 0) followers_[task.previous].push_back(static_cast<int>(i));
      if (task.after.empty() && task.previous < 0) starts_[i] = task.latency_us;
      if (waits_[i] == 0) pending_.push_back(static_cast<int>(i));
    }
  }

  Timeline run() {
    while (true) {
      start_pending();
      if (active_.empty() && pending_.empty()) break;
      if (changed_) rates_ = fair_rates(schedule_, active_);
      changed_ = false;
      advance(next_event());
      finish_done();
    }
    timeline_.end_us = now_;
    return std::move(timeline_);
  }

 private:
  bool reached(double time) const { return time <= now_ * (1 + kEqual); }

  void start_pending() {
    for (std::size_t i = 0; i < pending_.size();) {
      const int task = pending_[i];
      if (!reached(starts_[task])) {
        ++i;
        continue;
      }
      active_.push_back(task);
      changed_ = true;
      timeline_.tasks[task].start_us = now_;
      pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

  double next_event() const {
    double next = kNever;
    for (const int task : pending_) next = std::min(next, starts_[task]);
    for (std::size_t i = 0; i < active_.size(); ++i) next = std::min(next, end_of(i));
    return next;
  }

  double end_of(std::size_t i) const {
    const double left = left_[active_[i]];
    return left <= 0 || rates_[i] == kNever ? now_ : now_ + left / rates_[i];
  }

  void advance(double time) {
    std::vector<int> still;
    for (std::size_t i = 0; i < active_.size(); ++i) {
      const int task = active_[i];
      if (end_of(i) <= time * (1 + kEqual)) {
        done_.push_back(task);
        continue;
      }
      left_[task] -= rates_[i] * (time - now_);
      still.push_back(task);
    }
    if (still.size() != active_.size()) rates_.clear(), changed_ = true;
    active_ = std::move(still);
    now_ = std::max(now_, time);
  }

  void finish_done() {
    for (const int task : done_) {
      timeline_.tasks[task].end_us = now_;
      for (const int next : followers_[task]) {
        const Task& follower = schedule_.tasks[next];
        const double latency = follower.previous == task ? 0 : follower.latency_us;
        starts_[next] = std::max(starts_[next], now_ + latency);
        if (--waits_[next] == 0) pending_.push_back(next);
      }
    }
    done_.clear();
  }

  const Schedule& schedule_;
  std::vector<double> left_;                 // [tasks]: bytes
  std::vector<double> starts_;               // [tasks]: not before, as far as is known
  std::vector<int> waits_;                   // [tasks]: predecessors that have not ended
  std::vector<std::vector<int>> followers_;  // [tasks]
  std::vector<int> pending_, active_, done_;
  std::vector<double> rates_;  // [active]
  double now_ = 0;
  bool changed_ = true;
  Timeline timeline_;
};

}  // namespace

std::vector<double> fair_rates(const Schedule& schedule, const std::vector<int>& active) {
  return Filling(schedule, active).run();
}

Timeline simulate(const Schedule& schedule) { return Simulation(schedule).run(); }

Schedule cut(const Schedule& schedule, int chunks) {
  Schedule pieces{.resources = schedule.resources, .tasks = {}};
  for (const Task& task : schedule.tasks) {
    for (int chunk = 0; chunk < chunks; ++chunk) {
      Task piece = task;
      piece.bytes /= chunks;
      piece.after.clear();
      for (const int before : task.after)
        piece.after.push_back(before * chunks + (task.streamed ? chunk : chunks - 1));
      if (chunk > 0) piece.previous = static_cast<int>(pieces.tasks.size()) - 1;
      if (chunk == 0 && task.previous >= 0) piece.previous = task.previous * chunks + chunks - 1;
      pieces.tasks.push_back(std::move(piece));
    }
  }
  return pieces;
}

}  // namespace ferry::internal

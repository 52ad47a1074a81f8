// Simulates a schedule as a fluid. Rates come from progressive filling, and time advances from
// event to event; see schedule.h.
#include <algorithm>
#include <functional>
#include <limits>
#include <queue>
#include <utility>

#include "plan/schedule.h"

namespace ferry::internal {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
// Rates and times that differ by less are equal, because the order of summands changes their
// rounding.
constexpr double kEqual = 1e-12;

// Finds the rates of active tasks. All rates rise together until a resource is full. The rates of
// the tasks on that resource are then final, and the other rates rise further.
class Filling {
 public:
  explicit Filling(const Schedule& schedule)
      : schedule_(schedule), shared_(schedule.resources.size()) {}

  // Returns the rates, [active].
  std::vector<double> run(const std::vector<int>& active) {
    std::vector<double> rates(active.size(), kNever);
    used_.clear();
    for (int i = 0; i < std::ssize(active); ++i) join(active[i], i);
    std::vector<Next> shares;
    for (const int resource : used_) shares.emplace_back(shared_[resource].share(), resource);
    std::priority_queue next(std::greater<>(), std::move(shares));
    double rate = 0;
    while (!next.empty()) {
      const auto [share, resource] = next.top();
      next.pop();
      // A share grows when other rates become final, so the share in the queue may be too low.
      const double now = shared_[resource].share();
      if (now == kNever) continue;
      if (now > share) {
        next.emplace(now, resource);
        continue;
      }
      if (now > rate * (1 + kEqual)) rate = now;
      for (const int i : shared_[resource].tasks)
        if (rates[i] == kNever) rates[i] = rate, keep(active[i], rate);
    }
    return rates;
  }

 private:
  using Next = std::pair<double, int>;  // share, resource
  // A resource that active tasks use.
  struct Shared {
    std::vector<int> tasks;  // indices into `active`
    int rising = 0;          // the number of uses by tasks whose rates still rise
    double weight = 0;       // the sum of the weights of these uses
    double remaining = 0;

    double share() const {
      return rising > 0 && weight > 0 ? std::max(remaining, 0.0) / weight : kNever;
    }
  };

  template <typename Act>
  void for_limits(int task, const Act& act) {
    for (const Use& use : schedule_.tasks[task].uses)
      if (schedule_.resources[use.resource].capacity > 0) act(use.resource, use.share * use.cost);
  }

  void join(int task, int place) {
    for_limits(task, [&](int resource, double weight) {
      Shared& shared = shared_[resource];
      if (shared.rising == 0) {
        shared = {.tasks = std::move(shared.tasks),
                  .remaining = schedule_.resources[resource].capacity};
        shared.tasks.clear();
        used_.push_back(resource);
      }
      shared.tasks.push_back(place);
      ++shared.rising;
      shared.weight += weight;
    });
  }

  void keep(int task, double rate) {
    for_limits(task, [&](int resource, double weight) {
      Shared& shared = shared_[resource];
      --shared.rising;
      shared.weight -= weight;
      shared.remaining -= rate * weight;
    });
  }

  const Schedule& schedule_;
  std::vector<Shared> shared_;  // [resources]
  std::vector<int> used_;       // the resources that active tasks use
};

class Simulation {
 public:
  explicit Simulation(const Schedule& schedule)
      : schedule_(schedule),
        filling_(schedule),
        remaining_(schedule.tasks.size()),
        starts_(schedule.tasks.size()),
        waits_(schedule.tasks.size()),
        followers_(schedule.tasks.size()),
        timeline_{.end_us = 0, .tasks = std::vector<Interval>(schedule.tasks.size())} {
    for (std::size_t i = 0; i < schedule.tasks.size(); ++i) {
      const Task& task = schedule.tasks[i];
      remaining_[i] = task.bytes;
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
      if (changed_) rates_ = filling_.run(active_);
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
    const auto started = [&](int task) {
      if (!reached(starts_[task])) return false;
      active_.push_back(task);
      changed_ = true;
      timeline_.tasks[task].start_us = now_;
      return true;
    };
    std::erase_if(pending_, started);
  }

  double next_event() const {
    double next = kNever;
    for (const int task : pending_) next = std::min(next, starts_[task]);
    for (std::size_t i = 0; i < active_.size(); ++i) next = std::min(next, end_of(i));
    return next;
  }

  double end_of(std::size_t i) const {
    const double remaining = remaining_[active_[i]];
    return remaining <= 0 || rates_[i] == kNever ? now_ : now_ + remaining / rates_[i];
  }

  void advance(double time) {
    std::vector<int> still;
    for (std::size_t i = 0; i < active_.size(); ++i) {
      const int task = active_[i];
      if (end_of(i) <= time * (1 + kEqual)) {
        done_.push_back(task);
        continue;
      }
      remaining_[task] -= rates_[i] * (time - now_);
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
  Filling filling_;
  std::vector<double> remaining_;  // [tasks]: bytes that have not moved
  std::vector<double> starts_;     // [tasks]: the latest lower bound that is known
  std::vector<int> waits_;         // [tasks]: the number of predecessors that have not ended
  std::vector<std::vector<int>> followers_;  // [tasks]
  std::vector<int> pending_, active_, done_;
  std::vector<double> rates_;  // [active]
  double now_ = 0;
  bool changed_ = true;
  Timeline timeline_;
};

}  // namespace

std::vector<double> fair_rates(const Schedule& schedule, const std::vector<int>& active) {
  return Filling(schedule).run(active);
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

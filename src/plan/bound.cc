// Computes the bounds and sums of a schedule; see schedule.h.
#include <algorithm>
#include <limits>

#include "plan/schedule.h"

namespace ferry::internal {

namespace {

// The time that the bytes of a task take if no other task moves bytes.
double alone_us(const Schedule& schedule, const Task& task) {
  double most = 0;
  for (const Use& use : task.uses) {
    const double capacity = schedule.resources[use.resource].capacity;
    if (capacity > 0) most = std::max(most, task.bytes * use.share * use.cost / capacity);
  }
  return most;
}

}  // namespace

std::vector<Interval> earliest(const Schedule& schedule) {
  std::vector<Interval> ways(schedule.tasks.size());
  for (std::size_t i = 0; i < schedule.tasks.size(); ++i) {
    const Task& task = schedule.tasks[i];
    double first = 0, last = 0;
    for (const int before : task.after) {
      const Interval& way = ways[before];
      first = std::max(first, task.streamed ? way.start_us : way.end_us);
      last = std::max(last, way.end_us);
    }
    first += task.latency_us;
    if (task.previous >= 0) first = std::max(first, ways[task.previous].end_us);
    const double end = std::max(first + alone_us(schedule, task), last + task.latency_us);
    ways[i] = {first, end};
  }
  return ways;
}

std::vector<double> resource_bytes(const Schedule& schedule) {
  std::vector<double> bytes(schedule.resources.size());
  for (const Task& task : schedule.tasks)
    for (const Use& use : task.uses) bytes[use.resource] += task.bytes * use.share;
  return bytes;
}

std::vector<double> resource_us(const Schedule& schedule) {
  std::vector<double> us(schedule.resources.size());
  for (const Task& task : schedule.tasks) {
    for (const Use& use : task.uses) {
      const double capacity = schedule.resources[use.resource].capacity;
      if (capacity > 0) us[use.resource] += task.bytes * use.share * use.cost / capacity;
    }
  }
  return us;
}

// The time of the busiest resource. A resource is idle until the first of its tasks can start.
double busiest_us(const Schedule& schedule) {
  const std::vector<Interval> ways = earliest(schedule);
  const std::vector<double> work = resource_us(schedule);
  std::vector<double> first(work.size(), std::numeric_limits<double>::infinity());
  for (std::size_t i = 0; i < ways.size(); ++i)
    for (const Use& use : schedule.tasks[i].uses)
      first[use.resource] = std::min(first[use.resource], ways[i].start_us);
  double busiest = 0;
  for (std::size_t r = 0; r < work.size(); ++r)
    if (work[r] > 0) busiest = std::max(busiest, first[r] + work[r]);
  return busiest;
}

double longest_way_us(const Schedule& schedule) {
  double longest = 0;
  for (const Interval& way : earliest(schedule)) longest = std::max(longest, way.end_us);
  return longest;
}

double bound_us(const Schedule& schedule) {
  return std::max(busiest_us(schedule), longest_way_us(schedule));
}

}  // namespace ferry::internal

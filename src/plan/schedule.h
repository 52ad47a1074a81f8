// Schedule: tasks on resources, and three of its readers: bytes, bound and simulated time. A task
// stands for `count` equal ones that differ in ranks only; its uses are of one instance of each
// resource.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ferry::internal {

// One direction of a link or port, an engine, the memory of a host. `instances` are equally loaded.
struct Resource {
  int kind = 0;  // an index into names, shared by all instances that a user would call the same
  double capacity = 0;  // bytes/us; 0: unknown, which limits nothing
  std::int64_t instances = 1;

  double us_per_byte() const noexcept { return capacity > 0 ? 1 / capacity : 0; }
};

// What a user would call one thing: all links of a kind, say. Resource::kind is an index into them.
struct LoadKind {
  std::string name;
  double gb_s = 0;
  std::string source;
};

struct Use {
  int resource = 0;
  double share = 1;  // of the task's bytes that one instance carries, summed over all `count`
  double cost = 1;   // capacity that a byte takes (messages below the full rate take more)
};

struct Task {
  std::string what = {};
  double bytes = 0;
  double latency_us = 0;  // between the last predecessor and the first byte
  std::vector<Use> uses = {};
  std::vector<int> after = {};  // earlier tasks
  int previous = -1;            // an earlier task that must have ended too; no latency behind it
  bool streamed = true;  // its chunks follow those of its predecessors; else it waits for all
  std::int64_t count = 1;
};

struct Schedule {
  std::vector<Resource> resources;
  std::vector<Task> tasks;  // in an order that `after` allows
};

// A dispatch and its combine.
struct SchedulePair {
  Schedule dispatch, combine;
  std::vector<LoadKind> kinds;
  double received_bytes = 0, staged_bytes = 0;  // of the rank with most
  bool classes_hold = true;  // the ranks of each class are equal: else nothing here is right
  // Where hops are too many for a task each, the tasks above are sums over hops, whose order is
  // lost. Then these have the ways of bytes over hops that wait for each other, and nothing is
  // simulated.
  struct Ways {
    Schedule dispatch, combine;  // their uses are no loads
    double at_most_us = 0;       // no dispatch and combine take longer
  };
  std::optional<Ways> ways = {};
};

// Every task in n pieces, one after the other; a streamed piece waits for the same piece of its
// predecessors.
Schedule cut(const Schedule& schedule, int chunks);

// [resources]: bytes of one instance.
std::vector<double> resource_bytes(const Schedule& schedule);
// [resources]: what one instance needs alone.
std::vector<double> resource_us(const Schedule& schedule);

struct Interval {
  double start_us = 0, end_us = 0;
};
// [tasks]: when its first byte can move, and its last have arrived, at the earliest.
std::vector<Interval> earliest(const Schedule& schedule);

// No order and no number of chunks is faster: the busiest resource, and the longest way of bytes
// through tasks that wait for each other.
double busiest_us(const Schedule& schedule);
double longest_way_us(const Schedule& schedule);
double bound_us(const Schedule& schedule);

struct Timeline {
  double end_us = 0;
  std::vector<Interval> tasks;  // [tasks]: bytes moving
};

// Tasks share resources max-min fairly, as fluids; rates change when a task starts or ends.
// The same schedule gives the same bits.
Timeline simulate(const Schedule& schedule);

// Max-min fair rates of some tasks, bytes/us of each: no rate can grow without making one that is
// no larger smaller. Infinite where nothing limits.
std::vector<double> fair_rates(const Schedule& schedule, const std::vector<int>& active);

}  // namespace ferry::internal

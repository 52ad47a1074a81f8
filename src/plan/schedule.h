// Schedule: tasks on resources, and the functions that compute its bytes, bounds and simulated
// time. A task represents `count` equal tasks of different ranks; its uses are of one instance of
// each resource.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ferry::internal {

// One direction of a link or port, an engine, the memory of a host. `instances` are equally loaded.
struct Resource {
  int kind = 0;         // an index into SchedulePair::kinds
  double capacity = 0;  // bytes/us; 0: unknown, which limits nothing
  std::int64_t instances = 1;

  double us_per_byte() const noexcept { return capacity > 0 ? 1 / capacity : 0; }
};

// A set of resources with one name, such as all links of a kind. Resource::kind is an index.
struct LoadKind {
  std::string name;
  double gb_s = 0;
  std::string source;
};

struct Use {
  int resource = 0;
  double share = 1;  // bytes on one instance by all `count` tasks, as a share of the bytes of one
  double cost = 1;   // capacity for each byte; above 1 for messages that move below the full rate
};

struct Task {
  std::string what = {};
  double bytes = 0;
  double latency_us = 0;  // from the end of the last predecessor to the first byte
  std::vector<Use> uses = {};
  std::vector<int> after = {};  // earlier tasks
  int previous = -1;            // an earlier task that must end first; no latency follows it
  bool streamed = true;         // a chunk waits for the same chunk of predecessors; else for all
  std::int64_t count = 1;
};

struct Schedule {
  std::vector<Resource> resources;
  std::vector<Task> tasks;  // predecessors first
};

// The tasks of hops that wait for each other, of a dispatch and its combine.
struct HopSchedules {
  Schedule dispatch, combine;  // their uses do not add up to loads
  double at_most_us = 0;       // upper bound of both
};

// A dispatch and its combine.
struct SchedulePair {
  Schedule dispatch, combine;
  std::vector<LoadKind> kinds;
  double received_bytes = 0, staged_bytes = 0;  // of the rank with the most
  bool classes_hold = true;  // the ranks of each class are equal; if false, the schedules are wrong
  // Set where hops are too many for a task each. The tasks above are then sums over hops, without
  // their order; the tasks of `ways` are hops that wait for each other. Nothing is simulated.
  std::optional<HopSchedules> ways = {};
};

// Cuts every task into `chunks` pieces, one after the other. A piece of a streamed task waits for
// the same piece of its predecessors.
Schedule cut(const Schedule& schedule, int chunks);

// [resources]: the bytes on one instance.
std::vector<double> resource_bytes(const Schedule& schedule);
// [resources]: the time of one instance for its bytes.
std::vector<double> resource_us(const Schedule& schedule);

struct Interval {
  double start_us = 0, end_us = 0;
};
// [tasks]: the earliest times at which the first byte can move and the last byte has arrived.
std::vector<Interval> earliest(const Schedule& schedule);

// Lower bounds for any order and any number of chunks: by the busiest resource, by the longest way
// of bytes through tasks that wait for each other, and the larger of the two.
double busiest_us(const Schedule& schedule);
double longest_way_us(const Schedule& schedule);
double bound_us(const Schedule& schedule);

struct Timeline {
  double end_us = 0;
  std::vector<Interval> tasks;  // [tasks]: while its bytes move
};

// A fluid simulation: tasks share resources max-min fairly, and rates change when a task starts or
// ends. Equal schedules have bit-identical results.
Timeline simulate(const Schedule& schedule);

// Max-min fair rates of some tasks, in bytes/us: no rate can grow unless one that is not larger
// shrinks. Infinite where nothing limits a task.
std::vector<double> fair_rates(const Schedule& schedule, const std::vector<int>& active);

}  // namespace ferry::internal

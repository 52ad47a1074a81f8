// Schedule: tasks on resources, and the functions that compute its bytes, bounds and simulated
// time. A task represents `count` equal tasks of different ranks. Its uses are those of one
// instance of each resource.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ferry::internal {

// One direction of a link or port, an engine, or the memory of a host. All `instances` have equal
// loads.
struct Resource {
  int kind = 0;         // an index into SchedulePair::kinds
  double capacity = 0;  // bytes/us; 0: unknown, which limits nothing
  std::int64_t instances = 1;

  double us_per_byte() const noexcept { return capacity > 0 ? 1 / capacity : 0; }
};

// A set of resources with one name, such as all links of a kind. Resource::kind is its index.
struct LoadKind {
  std::string name;
  double gb_s = 0;
  std::string source;
};

struct Use {
  int resource = 0;
  // The bytes that all `count` tasks move on one instance, divided by the bytes of one task.
  double share = 1;
  double cost = 1;  // capacity for each byte; above 1 for messages that cannot use the full rate
};

struct Task {
  std::string what = {};
  double bytes = 0;
  double latency_us = 0;  // from the end of the last predecessor to the first byte
  std::vector<Use> uses = {};
  std::vector<int> after = {};  // the indices of earlier tasks
  // An earlier task that must end first. This task can start at that moment, without the latency.
  int previous = -1;
  // If true, a chunk waits for the same chunk of each predecessor; if false, for all chunks.
  bool streamed = true;
  std::int64_t count = 1;
};

struct Schedule {
  std::vector<Resource> resources;
  std::vector<Task> tasks;  // predecessors come first
};

// The tasks of hops that wait for each other, for a dispatch and its combine.
struct HopSchedules {
  Schedule dispatch, combine;  // their uses do not add up to loads
  double at_most_us = 0;       // an upper bound for dispatch plus combine
};

// A dispatch and its combine.
struct SchedulePair {
  Schedule dispatch, combine;
  std::vector<LoadKind> kinds;
  double received_bytes = 0, staged_bytes = 0;  // the maximum over ranks
  // Whether the ranks of each class are equal. If not, the schedules are wrong.
  bool classes_hold = true;
  // Set if there are too many hops for a task each. The tasks of `dispatch` and `combine` are then
  // sums over hops, without an order, and the tasks of `ways` are hops that wait for each other.
  // Such a pair is not simulated.
  std::optional<HopSchedules> ways = {};
};

// Cuts every task into `chunks` pieces that follow each other. A piece of a streamed task waits for
// the same piece of its predecessors.
Schedule cut(const Schedule& schedule, int chunks);

// [resources]: the bytes on one instance.
std::vector<double> resource_bytes(const Schedule& schedule);
// [resources]: the time that one instance needs for its bytes.
std::vector<double> resource_us(const Schedule& schedule);

struct Interval {
  double start_us = 0, end_us = 0;
};
// [tasks]: the earliest times at which the first byte of a task can move and its last byte has
// arrived.
std::vector<Interval> earliest(const Schedule& schedule);

// Lower bounds for any order and any number of chunks. busiest_us() is the time of the busiest
// resource. longest_way_us() is the longest way of bytes through tasks that wait for each other.
// bound_us() is the larger of the two.
double busiest_us(const Schedule& schedule);
double longest_way_us(const Schedule& schedule);
double bound_us(const Schedule& schedule);

struct Timeline {
  double end_us = 0;
  std::vector<Interval> tasks;  // [tasks]: the time during which its bytes move
};

// Simulates the schedule as a fluid: tasks share resources max-min fairly, and rates change when a
// task starts or ends. Equal schedules have bit-identical results.
Timeline simulate(const Schedule& schedule);

// The max-min fair rates of the active tasks, in bytes/us. A rate can grow only if another rate
// that is not larger shrinks. Infinite for a task that nothing limits.
std::vector<double> fair_rates(const Schedule& schedule, const std::vector<int>& active);

}  // namespace ferry::internal

// LocalRanks: finds ranks of this host that have ended before they joined. Their launcher then has
// no such child in /proc any more. It works only for launchers that start the ranks of a host at
// one time, in ascending order, each with its number in a variable (`ferry launch`, torchrun).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace ferry::internal {

// The ranks first to first + count - 1 were started on this host with `variable` set to their
// number.
struct LocalLaunch {
  std::string variable;  // empty: unknown
  int first = 0, count = 0;
  // Whether the launcher never sleeps between two ranks, as `ferry launch` and torchrun.
  bool at_once = false;
};

class LocalRanks {
 public:
  LocalRanks(const LocalLaunch& launch, int rank);

  // Returns the first of `ranks` that was started here and has ended, or nullopt if there is none.
  // Reads /proc at most a few times a second.
  std::optional<int> ended(const std::vector<int>& ranks);

  // The reason for messages: "its launcher, pid 12, has no process of it any more".
  std::string reason() const;

 private:
  void look();
  int place_of(pid_t child) const;
  bool all_started(std::int64_t now);

  LocalLaunch launch_;
  int rank_;
  pid_t launcher_ = 0;                         // 0: unknown
  std::int64_t began_ns_ = 0, looked_ns_ = 0;  // 0: never
  // The number of looks in a row, up to the latest one, in which the launcher slept and all its
  // running children were known ranks.
  int num_idle_looks_ = 0;
  // The launcher's children. The value is a place in `launch_`, or -1.
  std::map<pid_t, int> ranks_;
  std::vector<bool> started_, running_;  // [count]
};

}  // namespace ferry::internal

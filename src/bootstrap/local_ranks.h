// LocalRanks: which ranks of this host have ended before they joined: /proc shows no such child of
// their launcher any more. Only for launchers that start the ranks of a host at one time, in
// ascending order, each with its number in a variable (`ferry launch`, torchrun).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace ferry::internal {

// Ranks first to first + count - 1 were started on this host with `variable` set to their number.
struct LocalLaunch {
  std::string variable;  // empty: not known
  int first = 0, count = 0;
  bool at_once = false;  // the launcher does not sleep between two ranks (`ferry launch`, torchrun)
};

class LocalRanks {
 public:
  LocalRanks(const LocalLaunch& launch, int rank);

  // The first of `ranks` that is known to have been started here and to have ended; nullopt: there
  // is none. Reads /proc a few times a second at most.
  std::optional<int> ended(const std::vector<int>& ranks);

  // "its launcher, pid 12, has no process of it any more"
  std::string reason() const;

 private:
  void look();
  int place_of(pid_t child) const;
  bool all_started(std::int64_t now);

  LocalLaunch launch_;
  int rank_;
  pid_t launcher_ = 0;                         // 0: unknown
  std::int64_t began_ns_ = 0, looked_ns_ = 0;  // 0: never
  int num_idle_looks_ = 0;                     // the last ones, in which the launcher slept
  std::map<pid_t, int> ranks_;  // of the launcher's children; their place in `launch_`, or -1
  std::vector<bool> started_, running_;  // [count]
};

}  // namespace ferry::internal

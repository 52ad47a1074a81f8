// MergedTasks: the tasks of one direction of an exchange. Tasks that differ only in their ranks are
// merged into one.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "plan/schedule.h"

namespace ferry::internal {

class MergedTasks {
 public:
  // Adds one task for `ranks` equal ranks. Returns its index.
  int add(Task task, std::int64_t ranks);
  // Moves the tasks to `schedule`. Returns false if a class has resources that are not equally
  // loaded.
  bool finish(const std::vector<Resource>& resources, Schedule& schedule);

 private:
  using Key =
      std::tuple<std::string, double, std::vector<std::pair<int, double>>, std::vector<int>>;
  std::vector<Task> list_;
  std::map<Key, int> tasks_;
};

}  // namespace ferry::internal

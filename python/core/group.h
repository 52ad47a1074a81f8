// Group as Python sees it.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <memory>

#include "core/forked.h"
#include "ferry/group.h"

namespace ferry::python {

// A group that a forked child cannot use, and the flag that ends its waits.
struct PyGroup {
  std::shared_ptr<Kept<Group>> kept;
  std::shared_ptr<std::atomic<bool>> stop;  // written by interrupt(), read by every wait

  Group& get() const;  // throws Error(kClosed) in a forked child
};

}  // namespace ferry::python

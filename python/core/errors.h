// ferry::Status and ferry::Error as Python exceptions (ferry/errors.py), and calls without the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>

#include "ferry/status.h"

namespace ferry::python {

// Makes ferry::Error, wherever it is thrown, a subclass of ferry.Error.
void bind_errors(nanobind::module_& module);

// Raises an exception unless the status is ok. The exception of a signal handler that ran while
// ferry waited (Ctrl-C) has precedence.
void check(const Status& status);

// Converts a deadline in seconds; at most a century. Throws Error(kInvalidArgument) unless the
// deadline is more than 0.
std::chrono::nanoseconds to_deadline(double seconds);

// True when a wait of this thread must end, because a signal handler of Python raised. It is for
// GroupOptions::interrupted and is called without the GIL.
bool signal_raised() noexcept;

// Runs `call` without the GIL.
template <typename Call>
auto without_gil(const Call& call) {
  nanobind::gil_scoped_release release;
  return call();
}

}  // namespace ferry::python

// ferry::Status and ferry::Error as Python exceptions (ferry/errors.py), and calls without the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>

#include "ferry/status.h"

namespace ferry::python {

// Makes ferry::Error, wherever it is thrown, a subclass of ferry.Error.
void bind_errors(nanobind::module_& module);

// Raises unless the status is ok. A signal handler that raised while ferry waited (Ctrl-C) goes
// first.
void check(const Status& status);

// A deadline in seconds; beyond a century it is a century. Throws Error(kInvalidArgument) unless it
// is more than 0.
std::chrono::nanoseconds to_deadline(double seconds);

// True when a wait of this thread must end: a signal handler of Python raised. For
// GroupOptions::interrupted, called without the GIL.
bool signal_raised() noexcept;

// Runs `call` without the GIL; a Python error that it left behind is raised.
template <typename Call>
auto without_gil(const Call& call) {
  nanobind::gil_scoped_release release;
  return call();
}

}  // namespace ferry::python

// ferry::Status and ferry::Error as Python exceptions (ferry/errors.py), and calls without the GIL.
#pragma once

#include <fmt/format.h>
#include <nanobind/nanobind.h>

#include <chrono>
#include <new>
#include <utility>

#include "ferry/status.h"

namespace ferry::python {

// Throws Error(kInvalidArgument) with this text.
template <typename... Values>
[[noreturn]] void refuse(fmt::format_string<Values...> text, Values&&... values) {
  throw Error(Code::kInvalidArgument, fmt::format(text, std::forward<Values>(values)...));
}

// Raises an exception unless the status is ok. The exception of a signal handler that ran while
// ferry waited (Ctrl-C) has precedence.
void check(const Status& status);

// Converts a deadline in seconds; at most a century. Throws Error(kInvalidArgument) unless the
// deadline is more than 0.
std::chrono::nanoseconds to_deadline(double seconds);

// True when a wait of this thread must end, because a signal handler of Python raised. It is for
// GroupOptions::interrupted and is called without the GIL.
bool signal_raised() noexcept;

// Takes the GIL again after PyEval_SaveThread(). In a thread that comes back while the interpreter
// ends, this never returns.
void take_gil(PyThreadState* thread) noexcept;

// Holds the GIL in a thread that C++ called. In a thread that comes while the interpreter ends, its
// constructor never returns.
class HeldGil {
 public:
  HeldGil() noexcept;
  ~HeldGil() { PyGILState_Release(state_); }
  HeldGil(const HeldGil&) = delete;
  HeldGil& operator=(const HeldGil&) = delete;

 private:
  PyGILState_STATE state_;
};

// Runs `call` without the GIL.
template <typename Call>
auto without_gil(const Call& call) {
  struct Released {
    PyThreadState* thread = PyEval_SaveThread();
    ~Released() { take_gil(thread); }
  };
  const Released released;
  return call();
}

// Reads arguments by `read`. Where that throws, `refuse` refuses the call on all ranks.
template <typename Read, typename Refuse>
void read_or_refuse(const Read& read, const Refuse& refuse) {
  Status status;
  try {
    return read();
  } catch (const Error& error) {
    status = {error.code(), error.what()};
  } catch (const nanobind::python_error& error) {
    const Status why(Code::kInvalidArgument, "its arguments raised an exception in Python");
    static_cast<void>(without_gil([&] { return refuse(why); }));
    throw;
  } catch (const nanobind::cast_error&) {
    status = {Code::kInvalidArgument, "an argument is of the wrong Python type"};
  } catch (const std::bad_alloc&) {
    status = {Code::kCapacity, "out of memory"};
  }
  check(without_gil([&] { return refuse(status); }));
}

}  // namespace ferry::python

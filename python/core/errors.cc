#include "core/errors.h"

#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <string>

#include "core/bindings.h"

namespace ferry::python {

namespace nb = nanobind;

namespace {

void set_error(const Status& status) {
  // errors.py is never unloaded once it is loaded, so the reference is kept.
  static const nb::handle make =
      nb::object(nb::module_::import_("ferry.errors").attr("make_error")).release();
  const nb::object culprit =
      status.culprit() < 0 ? nb::object(nb::none()) : nb::object(nb::int_(status.culprit()));
  const nb::object error =
      make(code_name(status.code()), status.message().c_str(), culprit, status.group_usable());
  PyErr_SetObject(error.type().ptr(), error.ptr());
}

}  // namespace

void bind_errors(nb::module_&) {
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const Error& error) {
      if (!PyErr_Occurred()) set_error({error.code(), error.what(), error.culprit()});
    }
  });
}

void check(const Status& status) {
  if (PyErr_Occurred()) throw nb::python_error();
  if (status.ok()) return;
  set_error(status);
  throw nb::python_error();
}

std::chrono::nanoseconds to_deadline(double seconds) {
  constexpr double kCentury = 100.0 * 365 * 24 * 3600;
  if (!(seconds > 0)) refuse("deadline is {} s, need more than 0", seconds);
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(seconds < kCentury ? seconds : kCentury));
}

namespace {

// Takes the GIL by `take`. In a thread that takes the GIL while the interpreter ends, Python before
// 3.14 calls pthread_exit(), whose unwinding would end the process at the first noexcept frame of
// C++. So the thread sleeps until the process has ended, as it does from 3.14 on.
template <typename Take>
auto take_or_sleep(const Take& take) noexcept {
  try {
    return take();
  } catch (...) {
    for (;;) pause();
  }
}

}  // namespace

void take_gil(PyThreadState* thread) noexcept {
  take_or_sleep([&] { PyEval_RestoreThread(thread); });
}

HeldGil::HeldGil() noexcept : state_(take_or_sleep([] { return PyGILState_Ensure(); })) {}

// Python runs its signal handlers on the main thread only, so other threads return before they take
// the GIL.
bool signal_raised() noexcept {
  if (syscall(SYS_gettid) != getpid()) return false;
  nb::gil_scoped_acquire acquire;
  return PyErr_Occurred() || PyErr_CheckSignals() != 0;
}

}  // namespace ferry::python

#include "core/errors.h"

#include <pthread.h>

#include <string>

namespace ferry::python {

namespace nb = nanobind;

namespace {

const pthread_t main_thread = pthread_self();  // of the thread that loads the module

void set_error(const Status& status) {
  // errors.py, once it is loaded, is never unloaded: the reference is kept.
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
      if (!PyErr_Occurred()) set_error({error.code(), error.what()});
    }
  });
}

void check(const Status& status) {
  if (PyErr_Occurred()) throw nb::python_error();
  if (status.ok()) return;
  set_error(status);
  throw nb::python_error();
}

// Python runs its handlers on the main thread only; the others need not take the GIL to learn that.
bool signal_raised() noexcept {
  if (!pthread_equal(pthread_self(), main_thread)) return false;
  nb::gil_scoped_acquire acquire;
  return PyErr_Occurred() || PyErr_CheckSignals() != 0;
}

}  // namespace ferry::python

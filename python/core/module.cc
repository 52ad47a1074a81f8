// ferry._core: the C++ library as a Python module. It does not import torch or numpy.
#include <nanobind/nanobind.h>

#include "core/bindings.h"
#include "ferry/ferry.h"

NB_MODULE(_core, module) {
  nanobind::set_leak_warnings(false);  // a program may end while it still has a group
  module.doc() = "The native part of ferry.";
  module.attr("version") = ferry_version();
  ferry::python::bind_errors(module);
  ferry::python::bind_group(module);
  ferry::python::bind_results(module);
  ferry::python::bind_exchange(module);
  ferry::python::bind_collectives(module);
  ferry::python::bind_padded(module);
  ferry::python::bind_channels(module);
  ferry::python::bind_balance(module);
  ferry::python::bind_cann(module);
  ferry::python::bind_cuda(module);
}

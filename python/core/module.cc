// ferry._core: the C++ library as a Python module. tensor.h reads and makes arrays, group.cc,
// exchange.cc, results.cc, padded.cc, cann.cc and cuda.cc bind one class or front each; no torch
// and no numpy here.
#include <nanobind/nanobind.h>

#include "core/balance.h"
#include "core/channels.h"
#include "core/cuda.h"
#include "core/errors.h"
#include "core/group.h"
#include "core/padded.h"

NB_MODULE(_core, module) {
  nanobind::set_leak_warnings(false);  // a program may end with a group in hand
  module.doc() = "The native part of ferry.";
  ferry::python::bind_errors(module);
  ferry::python::bind_group(module);
  ferry::python::bind_exchange(module);
  ferry::python::bind_padded(module);
  ferry::python::bind_channels(module);
  ferry::python::bind_balance(module);
  ferry::python::bind_cann(module);
  ferry::python::bind_cuda(module);
}

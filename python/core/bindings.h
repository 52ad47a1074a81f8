// The parts of ferry._core. module.cc calls these functions, each of which is in the file of its
// name.
#pragma once

#include <nanobind/nanobind.h>

namespace ferry::python {

void bind_balance(nanobind::module_& module);
void bind_cann(nanobind::module_& module);
void bind_channels(nanobind::module_& module);
void bind_collectives(nanobind::module_& module);
void bind_cuda(nanobind::module_& module);
void bind_errors(nanobind::module_& module);
void bind_exchange(nanobind::module_& module);
void bind_group(nanobind::module_& module);
void bind_padded(nanobind::module_& module);
void bind_results(nanobind::module_& module);

}  // namespace ferry::python

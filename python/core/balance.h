// The steps of EPLB, as ferry.placement calls them.
#pragma once

#include <nanobind/nanobind.h>

namespace ferry::python {

namespace nb = nanobind;

void bind_balance(nb::module_& module);

}  // namespace ferry::python

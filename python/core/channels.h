// Binds the arithmetic of DeepEP's normal calls, for ferry.deep_ep.
#pragma once

#include <nanobind/nanobind.h>

namespace ferry::python {

void bind_channels(nanobind::module_& module);

}  // namespace ferry::python

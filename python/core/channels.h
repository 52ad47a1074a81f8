// The arithmetic of DeepEP's normal calls, as ferry.deep_ep calls it.
#pragma once

#include <nanobind/nanobind.h>

namespace ferry::python {

void bind_channels(nanobind::module_& module);

}  // namespace ferry::python

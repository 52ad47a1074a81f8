// ferry.Collectives.
#pragma once

#include <nanobind/nanobind.h>

namespace ferry::python {

void bind_collectives(nanobind::module_& module);

}  // namespace ferry::python

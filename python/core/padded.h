// What a padded dispatch brought, in DeepEP's form.
#pragma once

#include <nanobind/nanobind.h>

namespace ferry::python {

void bind_padded(nanobind::module_& module);

}  // namespace ferry::python

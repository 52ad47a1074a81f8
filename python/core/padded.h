// The results of a padded dispatch in the form of DeepEP.
#pragma once

#include <nanobind/nanobind.h>

namespace ferry::python {

void bind_padded(nanobind::module_& module);

}  // namespace ferry::python

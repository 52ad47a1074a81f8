// ExchangeConfig from keyword arguments, and back.
#pragma once

#include <nanobind/nanobind.h>

#include "ferry/config.h"

namespace ferry::python {

// Throws Error(kInvalidArgument) that names the keyword, its value and the limits.
ExchangeConfig read_config(const nanobind::kwargs& keywords);

// Returns the settings of a configuration as a dict.
nanobind::dict write_config(const ExchangeConfig& config);

}  // namespace ferry::python

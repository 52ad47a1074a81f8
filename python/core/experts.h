// The experts of a layer, called in Python.
#pragma once

#include <nanobind/nanobind.h>

#include <span>

#include "core/libraries.h"
#include "ferry/layer.h"

namespace ferry::python {

// Calls experts(rows, counts, out) once for each run of `ready` whose rows follow each other, with
// the counts of all `num_local` experts: 0 for those that are not in the run. Rows of a wire that
// has scales come as experts(rows, counts, out, scales). The arrays keep the memory.
void call_experts(nb::handle experts, std::span<const ExpertRows> ready, int num_local,
                  const ExchangeConfig& config, Library library);

}  // namespace ferry::python

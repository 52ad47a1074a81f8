// Calls the experts of a layer in Python.
#pragma once

#include <nanobind/nanobind.h>

#include <span>

#include "core/libraries.h"
#include "ferry/layer.h"

namespace ferry::python {

// Calls experts(rows, counts, out) once for each run of experts in `ready` whose rows are adjacent.
// `counts` has all `num_local` experts; those outside the run have 0. With a wire that has scales,
// it calls experts(rows, counts, out, scales). The arrays keep the memory alive.
void call_experts(nb::handle experts, std::span<const ExpertRows> ready, int num_local,
                  const ExchangeConfig& config, Library library);

}  // namespace ferry::python

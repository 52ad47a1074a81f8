// ferry._core.CudaExchange, on which ferry/cuda.py is built: CUDA ranks, with addresses and streams
// as integers.
#pragma once

#include <nanobind/nanobind.h>

namespace ferry::python {

void bind_cuda(nanobind::module_& module);

}  // namespace ferry::python

// ferry._core.CudaExchange, below ferry/cuda.py: CUDA ranks, with addresses and streams as
// integers.
#pragma once

#include <nanobind/nanobind.h>

namespace ferry::python {

void bind_cuda(nanobind::module_& module);

}  // namespace ferry::python

// The products of layer.cc by oneDNN (Debian: libdnnl-dev).
#include <dnnl.h>

#include <stdexcept>

void gemm(const float* a, const float* weights, float* c, int n, int out, int in) {
  if (dnnl_sgemm('N', 'T', n, out, in, 1, a, in, weights, in, 0, c, out) != dnnl_success)
    throw std::runtime_error("oneDNN refused a product");
}

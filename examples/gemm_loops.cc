// The products of layer.cc without a library.
void gemm(const float* a, const float* weights, float* c, int n, int out, int in) {
  for (int row = 0; row < n; ++row) {
    for (int column = 0; column < out; ++column) {
      float sum = 0;
      for (int i = 0; i < in; ++i) sum += a[row * in + i] * weights[column * in + i];
      c[row * out + column] = sum;
    }
  }
}

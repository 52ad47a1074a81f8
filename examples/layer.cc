// A Mixture-of-Experts layer on four ranks as threads: ferry::Layer moves rows, and calls each
// SwiGLU expert when its rows have come. The products are oneDNN's (Debian: libdnnl-dev).
#include <dnnl.h>
#include <ferry/layer.h>

#include <cmath>
#include <cstdio>
#include <span>
#include <stdexcept>
#include <vector>

// c [n, out] = a [n, in] * weights [out, in] transposed, all dense.
void gemm(const float* a, const float* weights, float* c, int n, int out, int in) {
  if (dnnl_sgemm('N', 'T', n, out, in, 1, a, in, weights, in, 0, c, out) != dnnl_success)
    throw std::runtime_error("oneDNN refused a product");
}

constexpr int kTokens = 16, kHidden = 64, kIntermediate = 32, kExperts = 8, kTopK = 2;
constexpr auto kType = ferry::DataType::kFp32;

// The weights of one expert: gates, then up projections; and down.
struct Weights {
  std::vector<float> gate_up = std::vector<float>(2 * kIntermediate * kHidden, 0.01f);
  std::vector<float> down = std::vector<float>(kHidden * kIntermediate, 0.1f);
};

void swiglu(const Weights& weights, const ferry::ExpertRows& call) {
  const int n = static_cast<int>(call.rows.num_rows);
  std::vector<float> both(n * 2 * kIntermediate), product(n * kIntermediate);
  gemm(static_cast<const float*>(call.rows.data), weights.gate_up.data(), both.data(), n,
       2 * kIntermediate, kHidden);
  for (int row = 0; row < n; ++row) {
    for (int i = 0; i < kIntermediate; ++i) {
      const float gate = both[row * 2 * kIntermediate + i];
      const float up = both[row * 2 * kIntermediate + kIntermediate + i];
      product[row * kIntermediate + i] = gate / (1 + std::exp(-gate)) * up;
    }
  }
  gemm(product.data(), weights.down.data(), static_cast<float*>(call.out), n, kHidden,
       kIntermediate);
}

void run(ferry::Group group) {
  std::vector<float> tokens(kTokens * kHidden, 1.0f + group.rank()), out(tokens.size());
  std::vector<float> weights(kTokens * kTopK, 0.5f);
  std::vector<std::int64_t> ids;  // [tokens, top_k]
  for (int t = 0; t < kTokens; ++t) ids.insert(ids.end(), {t % 8, (t + 3) % 8});

  ferry::Layer layer(group, {kTokens, kHidden, kExperts, kTopK, kType});
  const std::vector<Weights> experts(layer.exchange().num_local_experts());
  const auto compute = [&](std::span<const ferry::ExpertRows> ready) {
    for (const ferry::ExpertRows& each : ready) swiglu(experts[each.expert], each);
  };
  ferry::require_ok(layer.run({.tokens = {tokens.data(), kTokens, kHidden, kType},
                               .topk_ids = {ids.data(), kTokens, kTopK},
                               .topk_weights = weights.data(),
                               .out = out.data(),
                               .out_type = kType},
                              compute));

  const float x = 0.01f * kHidden * tokens[0];  // all weights are equal
  const float expected = 0.1f * kIntermediate * x / (1 + std::exp(-x)) * x;
  std::printf("rank %d: %g returned as %g\n", group.rank(), tokens[0], out[0]);
  if (std::abs(out[0] - expected) > 1e-4f * expected)
    throw ferry::Error(ferry::Code::kSystem, "not the result of SwiGLU");
}

int main() { ferry::run_threads(4, run); }

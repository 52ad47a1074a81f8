// Four ranks as threads. Every expert doubles its rows; each token has two experts of weight 1/2.
#include <ferry/exchange.h>

#include <cstdio>
#include <vector>

constexpr int kTokens = 16, kHidden = 64, kExperts = 8, kTopK = 2;
constexpr auto kType = ferry::DataType::kFp32;

void run(ferry::Group group) {
  std::vector<float> tokens(kTokens * kHidden, 1.0f + group.rank()), out(tokens.size());
  std::vector<float> weights(kTokens * kTopK, 0.5f);
  std::vector<std::int64_t> experts;  // [tokens, top_k]
  for (int t = 0; t < kTokens; ++t) experts.insert(experts.end(), {t % 8, (t + 3) % 8});

  ferry::Exchange exchange(group, {kTokens, kHidden, kExperts, kTopK, kType});
  ferry::Received received;  // the rows routed to this rank's experts
  ferry::require_ok(exchange.dispatch({.tokens = {tokens.data(), kTokens, kHidden, kType},
                                       .topk_ids = {experts.data(), kTokens, kTopK}},
                                      received));
  float* rows = static_cast<float*>(received.data);  // [num_rows, hidden]
  for (int i = 0; i < received.num_rows * kHidden; ++i) rows[i] *= 2.0f;

  ferry::require_ok(exchange.combine({.handle = received.handle,
                                      .expert_rows = received.rows(),
                                      .topk_weights = weights.data(),
                                      .out = out.data(),
                                      .out_dtype = kType}));
  std::printf("rank %d: %g returned as %g\n", group.rank(), tokens[0], out[0]);
  if (out[0] != 2.0f * tokens[0]) throw ferry::Error(ferry::Code::kSystem, "not doubled");
}

int main() { ferry::run_threads(4, run); }

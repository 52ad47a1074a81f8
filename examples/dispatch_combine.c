// The C twin of dispatch_combine.cc: four ranks as threads, every expert doubles its rows, each
// token has two experts of weight 1/2.
#include <ferry/ferry.h>
#include <stdio.h>

enum { kTokens = 16, kHidden = 64, kExperts = 8, kTopK = 2 };

static ferry_code run(ferry_group* group, void* context) {
  (void)context;
  static const ferry_config config = {FERRY_INIT(ferry_config),
                                      .max_tokens = kTokens,
                                      .hidden = kHidden,
                                      .num_experts = kExperts,
                                      .top_k = kTopK,
                                      .dtype = FERRY_TYPE_FP32,
                                      .layout = FERRY_LAYOUT_EXPERT_MAJOR};
  float tokens[kTokens][kHidden], out[kTokens][kHidden], weights[kTokens][kTopK];
  int64_t experts[kTokens][kTopK];
  for (int t = 0; t < kTokens; ++t) {
    for (int i = 0; i < kHidden; ++i) tokens[t][i] = 1.0f + (float)ferry_group_rank(group);
    for (int k = 0; k < kTopK; ++k) weights[t][k] = 0.5f, experts[t][k] = (t + 3 * k) % kExperts;
  }

  ferry_exchange* exchange = NULL;
  ferry_received received = {FERRY_INIT(ferry_received)};  // rows routed to this rank's experts
  ferry_code code = ferry_exchange_create(group, &config, &exchange);
  if (code == FERRY_OK) {
    const ferry_dispatch_args args = {FERRY_INIT(ferry_dispatch_args),
                                      .tokens = tokens,
                                      .num_tokens = kTokens,
                                      .hidden = kHidden,
                                      .dtype = FERRY_TYPE_FP32,
                                      .topk_ids = experts,
                                      .topk_ids_type = FERRY_INDEX_INT64,
                                      .top_k = kTopK};
    code = ferry_dispatch(exchange, &args, &received);
  }
  if (code == FERRY_OK) {
    float* rows = received.data;  // [num_rows, hidden]
    for (int64_t i = 0; i < received.num_rows * received.hidden; ++i) rows[i] *= 2.0f;
    const ferry_combine_args args = {FERRY_INIT(ferry_combine_args), .handle = received.handle,
                                     .expert_rows = received.data,   .num_rows = received.num_rows,
                                     .hidden = received.hidden,      .dtype = FERRY_TYPE_FP32,
                                     .topk_weights = weights[0],     .out = out,
                                     .out_dtype = FERRY_TYPE_FP32};
    code = ferry_combine(exchange, &args);
  }
  if (code == FERRY_OK) {
    printf("rank %d: %g returned as %g\n", ferry_group_rank(group), tokens[0][0], out[0][0]);
    if (out[0][0] != 2.0f * tokens[0][0]) code = FERRY_SYSTEM;
  }
  ferry_received_release(&received);
  ferry_exchange_destroy(exchange);
  return code;
}

int main(void) {
  const ferry_code code = ferry_run_threads(4, run, NULL, NULL);
  if (code != FERRY_OK)
    fprintf(stderr, "%s: %s\n", ferry_code_name(code), ferry_last_error_message());
  return code;
}

// CANN's operators on four ranks as threads: dispatch in int8, double each row, combine.
#include <ferry/cann.h>

#include <cstdio>
#include <vector>

namespace cann = ferry::cann;
constexpr int kRanks = 4, kTokens = 16, kHidden = 64, kTopK = 2, kExperts = 8;
constexpr auto kType = ferry::DataType::kFp32;

void check(const cann::Result& result) {
  if (!result.ok()) throw ferry::Error(result.status.code(), result.message());
}

void run(ferry::Group group) {
  const int rank = group.rank();
  const cann::Communicator communicator(group, {.group_ep = "ep"});
  const cann::Attributes attributes{
      .group_ep = "ep", .ep_world_size = kRanks, .ep_rank_id = rank, .moe_expert_num = kExperts};
  std::vector<float> x(kTokens * kHidden, 1.0f + rank), x_out(x.size());
  std::vector<float> weights(kTokens * kTopK, 0.5f);
  std::vector<std::int32_t> ids;  // (Bs, K)
  for (int t = 0; t < kTokens; ++t) ids.insert(ids.end(), {t % 8, (t + 3) % 8});

  cann::DispatchArgs dispatch{.attributes = attributes,
                              .quant_mode = 2,
                              .x = {x.data(), kTokens, kHidden, kType},
                              .expert_ids = {ids.data(), kTokens, kTopK}};
  const std::int64_t rows = max_rows(dispatch);  // A
  std::vector<std::int8_t> expand_x(rows * kHidden);
  std::vector<float> dynamic_scales(rows), outputs(rows * kHidden);
  std::vector<std::int32_t> counts(kExperts);  // localE * ep
  dispatch.expand_x = {expand_x.data(), rows, kHidden, ferry::DataType::kInt8};
  dispatch.dynamic_scales = dynamic_scales;
  dispatch.ep_recv_counts = counts;
  check(moe_distribute_dispatch(communicator, dispatch));
  for (int i = 0; i < counts.back() * kHidden; ++i)
    outputs[i] = 2.0f * static_cast<float>(expand_x[i]) * dynamic_scales[i / kHidden];

  check(moe_distribute_combine(communicator, {.attributes = attributes,
                                              .expand_x = {outputs.data(), rows, kHidden, kType},
                                              .expert_ids = dispatch.expert_ids,
                                              .ep_send_counts = counts,
                                              .expert_scales = {weights.data(), kTokens, kTopK},
                                              .x_out = {x_out.data(), kTokens, kHidden, kType}}));
  std::printf("rank %d: %g returned as %g\n", rank, x[0], x_out[0]);
  if (x_out[0] < 1.99f * x[0] || x_out[0] > 2.01f * x[0])
    throw ferry::Error(ferry::Code::kSystem, "not doubled");
}

int main() { ferry::run_threads(kRanks, run); }

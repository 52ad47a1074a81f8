// mega_moe: checks of the arguments, and a ferry::Layer whose experts are two products and SwiGLU.
#include <bit>
#include <cmath>
#include <vector>

#include "cann/call.h"
#include "ferry/cann_mega_moe.h"

namespace ferry::cann {

namespace internal {

namespace {

float to_float(float value) noexcept { return value; }
float to_float(std::uint16_t bf16) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bf16) << 16);
}

void round_to(float value, float& out) noexcept { out = value; }
void round_to(float value, std::uint16_t& out) noexcept {  // to nearest, ties to even
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = bits + 0x7fff + ((bits >> 16) & 1);
  out = static_cast<std::uint16_t>((std::isnan(value) ? bits | 0x400000 : rounded) >> 16);
}

// From [rows, 2 * intermediate], of which the first half of the columns are the gates, to [rows,
// intermediate].
template <typename T>
void swiglu(const std::vector<T>& both, std::int64_t intermediate, std::vector<T>& out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::size_t at = i + i / intermediate * intermediate;
    const float gate = to_float(both[at]);
    round_to(gate / (1 + std::exp(-gate)) * to_float(both[at + intermediate]), out[i]);
  }
}

template <typename T>
void run_expert(const MegaMoeShape& shape, const std::function<void(const Product&)>& product,
                const MegaMoeArgs& args, const ExpertRows& call) {
  const std::int64_t rows = call.rows.num_rows, inner = shape.intermediate;
  std::vector<T> both(rows * 2 * inner), activated(rows * inner);
  product({call.rows.data, args.weight1[call.expert], both.data(), rows, 2 * inner, shape.hidden,
           shape.dtype});
  swiglu(both, inner, activated);
  product({activated.data(), args.weight2[call.expert], call.out, rows, shape.hidden, inner,
           shape.dtype});
}

void check_experts(const char* name, std::span<const void* const> weights, std::size_t num_local) {
  require_fit(weights.size() == num_local, "{} has {} experts, need {}", name, weights.size(),
              num_local);
  for (const void* each : weights) require_given(name, each, 1);
}

void check_args(const MegaMoeShape& shape, const MegaMoeArgs& args, int num_local) {
  const std::int64_t bs = args.topk_ids.rows;
  require_given("topk_ids", args.topk_ids.data, bs * args.topk_ids.columns);
  require_fit(args.topk_ids.columns == shape.topk, "topk_ids is ({}, {}), need {} columns", bs,
              args.topk_ids.columns, shape.topk);
  check_rows("x", args.x, bs, shape.hidden);
  const auto& weights = args.topk_weights;
  require_fit(weights.data == nullptr || (weights.rows == bs && weights.columns == shape.topk),
              "topk_weights is ({}, {}), need ({}, {})", weights.rows, weights.columns, bs,
              shape.topk);
  check_experts("weight1", args.weight1, num_local);
  check_experts("weight2", args.weight2, num_local);
  check_rows_out("y", args.y, bs, shape.hidden);
  require_value(args.y.dtype == shape.dtype, "y is {}, need {}", data_type_name(args.y.dtype),
                data_type_name(shape.dtype));
  check_room("expert_token_nums", args.expert_token_nums, num_local, "localE");
}

ExchangeConfig layer_config(const MegaMoeShape& shape) {
  ExchangeConfig config;
  config.max_tokens = shape.max_tokens;
  config.hidden = shape.hidden;
  config.num_experts = shape.moe_expert_num;
  config.top_k = shape.topk;
  config.dtype = shape.dtype;
  return config;
}

// Throws Error(kMismatch) unless `mine`, the intermediate size of the experts, is equal on all
// ranks of the view. Collective.
void compare_intermediate(Group group, std::int64_t mine) {
  std::vector<std::int64_t> all(group.size());
  if (Status status = group.all_gather(&mine, sizeof mine, all.data()); !status.ok())
    throw Error(status.code(), status.message(), status.culprit());
  const int first = group.view().members[0];
  for (const int rank : group.view().members) {
    if (all[rank] == all[first]) continue;
    throw Error(Code::kMismatch,
                fmt::format("ranks {} and {} make different exchanges: intermediate is {} and {}",
                            first, rank, all[first], all[rank]),
                rank);
  }
}

}  // namespace

}  // namespace internal

MegaMoeContext::MegaMoeContext(const Group& group, const MegaMoeShape& shape,
                               std::function<void(const Product&)> product)
    : shape_(shape), product_(std::move(product)) {
  if ((shape.dtype != DataType::kBf16 && shape.dtype != DataType::kFp32) || shape.intermediate < 1)
    Exchange::refuse(
        group, {Code::kInvalidArgument,
                fmt::format("mega_moe: dtype is {}, intermediate {}: need bf16 or fp32, and 1 "
                            "or more",
                            data_type_name(shape.dtype), shape.intermediate),
                group.rank()});
  layer_ = Layer(group, internal::layer_config(shape));
  internal::compare_intermediate(group, shape.intermediate);
}

Result mega_moe(MegaMoeContext& context, const MegaMoeArgs& args) noexcept {
  const MegaMoeShape& shape = context.shape_;
  Exchange& exchange = context.layer_.exchange();
  const Result checked =
      internal::checked([&] { internal::check_args(shape, args, exchange.num_local_experts()); });
  if (!checked.ok()) {
    const Status refused = exchange.refuse_dispatch(checked.status);
    const bool as_given = refused.code() == checked.status.code();
    return {as_given ? checked.code : status_code(refused.code()), refused};
  }
  const auto run_expert = shape.dtype == DataType::kBf16 ? internal::run_expert<std::uint16_t>
                                                         : internal::run_expert<float>;
  std::vector<Handle> handles;
  const Status status = context.layer_.run(
      {.tokens = args.x,
       .topk_ids = {args.topk_ids.data, args.topk_ids.rows, shape.topk, IndexType::kInt32},
       .topk_weights = args.topk_weights.data,
       .out = args.y.data,
       .out_type = shape.dtype,
       .handles = &handles},
      [&](std::span<const ExpertRows> ready) {
        for (const ExpertRows& each : ready) run_expert(shape, context.product_, args, each);
      });
  if (!status.ok()) return {status_code(status.code()), status};
  if (!args.expert_token_nums.empty())
    std::ranges::copy(handles[0].tokens_per_expert(), args.expert_token_nums.begin());
  return {};
}

}  // namespace ferry::cann

// moe_distribute_combine and moe_distribute_combine_add_rms_norm: checks of the arguments, and a
// combine that needs no handle, only the tensors.
#include <vector>

#include "cann/call.h"
#include "cann/triplets.h"

namespace ferry::cann {

namespace internal {

namespace {

constexpr const char* kCombine = "moe_distribute_combine";
constexpr const char* kCombineAddRmsNorm = "moe_distribute_combine_add_rms_norm";

// The last of the running sums of one tp_rank.
std::int32_t total_of(std::span<const std::int32_t> block) {
  std::int32_t last = 0;
  for (const std::int32_t sum : block) {
    require_value(sum >= last,
                  "ep_send_counts goes from {} to {}, need running sums that do not "
                  "fall",
                  last, sum);
    last = sum;
  }
  return last;
}

// The number of received rows in expand_x: from ep_send_counts, or without them all rows.
std::int64_t received_rows(const CombineArgs& args, std::int64_t local_experts,
                           std::int64_t sources) {
  const std::span<const std::int32_t> counts = args.ep_send_counts, pair = args.tp_send_counts;
  if (counts.empty()) return args.expand_x.num_rows;
  const int tp_size = tp_size_of(args.attributes);
  const std::int64_t block = local_experts * sources;
  check_room("ep_send_counts", counts, tp_size * block, "max(tp, 1) * localE * ep");
  if (tp_size > 1) check_room("tp_send_counts", pair, tp_size, "max(tp, 1)");
  std::int64_t rows = 0;
  for (int i = 0; i < tp_size; ++i) {
    const std::int32_t total = total_of(counts.subspan(i * block, block));
    const auto tp_rank = (args.attributes.tp_rank_id + i) % tp_size;
    if (tp_size > 1 && !pair.empty())
      require_value(pair[tp_rank] == total, "tp_send_counts[{}] is {}, ep_send_counts has {}",
                    tp_rank, pair[tp_rank], total);
    rows += total;
  }
  require_fit(rows <= args.expand_x.num_rows, "ep_send_counts names {} rows, expand_x has {}", rows,
              args.expand_x.num_rows);
  return rows;
}

void check_dispatched(const CombineArgs& args, const Batch& batch, std::int64_t rows) {
  require(args.attributes.version == 4 || args.expert_scales.data != nullptr || batch.bs == 0,
          StatusCode::kNullPointer,
          "expert_scales is null, need {} elements; only version 4 sums without",
          batch.bs * batch.k);
  check_room("expand_idx", args.expand_idx, batch.bs * batch.k, "Bs * K");
  check_room("assist_info_for_combine", args.assist_info_for_combine, 3 * rows,
             "3 for each received row");
  check_room("performance_info", args.performance_info, args.attributes.ep_world_size, "ep");
  require_given("expand_x", args.expand_x.data, rows * batch.h);
}

void check_reserved(const CombineArgs& args) {
  require_value(args.activation_scale == nullptr, "activation_scale is reserved, need null");
  require_value(args.weight_scale == nullptr, "weight_scale is reserved, need null");
  require_value(args.group_list == nullptr, "group_list is reserved, need null");
}

void check_type(const char* name, DataType type, const char* as, DataType expected) {
  require_value(type == expected, "{} is {}, need {} as {}", name, data_type_name(type),
                data_type_name(expected), as);
}

// Checks a dense tensor, which ferry takes without a pitch.
void check_dense(const char* name, const Rows& rows, std::int64_t num_rows, std::int64_t hidden) {
  check_rows(name, rows, num_rows, hidden);
  const auto row_bytes = hidden * static_cast<std::int64_t>(element_bytes(rows.dtype));
  require_fit(rows.pitch_bytes == 0 || rows.pitch_bytes == row_bytes,
              "{} has a pitch of {} bytes, need a dense one of {}", name, rows.pitch_bytes,
              row_bytes);
}

void check_special(const CombineArgs& args, const Batch& batch) {
  const Attributes& a = args.attributes;
  if (a.copy_expert_num + a.const_expert_num == 0 || batch.bs == 0) return;
  check_rows("ori_x", args.ori_x, batch.bs, batch.h);
  check_float_type("ori_x", args.ori_x.dtype);
  if (a.const_expert_num == 0) return;
  const Rows* const tensors[] = {&args.const_expert_alpha1, &args.const_expert_alpha2,
                                 &args.const_expert_v};
  const char* const names[] = {"const_expert_alpha1", "const_expert_alpha2", "const_expert_v"};
  for (int i = 0; i < 3; ++i) {
    check_dense(names[i], *tensors[i], a.const_expert_num, batch.h);
    check_type(names[i], tensors[i]->dtype, "ori_x", args.ori_x.dtype);
  }
}

void check_output(const CombineArgs& args, const Batch& batch) {
  check_rows_out("x_out", args.x_out, batch.bs, batch.h);
  check_float_type("x_out", args.x_out.dtype);
  if (args.shared_expert_x.data == nullptr) return;
  check_dense("shared_expert_x", args.shared_expert_x, batch.bs, batch.h);
  check_type("shared_expert_x", args.shared_expert_x.dtype, "x_out", args.x_out.dtype);
}

ResidualNorm take_norm(const CombineAddRmsNormArgs& args) {
  const Batch batch = batch_of(args.combine);
  const DataType type = args.combine.x_out.dtype;
  check_dense("residual_x", args.residual_x, batch.bs, batch.h);
  check_type("residual_x", args.residual_x.dtype, "x_out", type);
  check_dense("gamma", args.gamma, 1, batch.h);
  check_type("gamma", args.gamma.dtype, "x_out", type);
  check_rows_out("y_out", args.y_out, batch.bs, batch.h);
  check_type("y_out", args.y_out.dtype, "x_out", type);
  require_value(args.norm_eps >= 0, "norm_eps is {}, need 0 or more", args.norm_eps);
  check_room("rstd_out", args.rstd_out, batch.bs, "Bs");
  if (batch.bs == 0) return {};
  return {.residual = args.residual_x.data,
          .gamma = args.gamma.data,
          .epsilon = args.norm_eps,
          .y = args.y_out.data,
          .rstd = args.rstd_out.data()};
}

// The checks that need no tensor that dispatch made.
void check_shapes(const CombineArgs& args, const Batch& batch) {
  check_expert_ids(args.expert_ids);
  check_weights("expert_scales", args.expert_scales, args.expert_ids);
  check_reserved(args);
  check_special(args, batch);
  check_output(args, batch);
}

Result run(ExchangeCache& cache, const CombineArgs& args, const CombineAddRmsNormArgs* with_norm) {
  const auto [wanted, elastic] = request_of(cache, args);
  Exchange& exchange = cache.find(wanted);
  const Batch batch = batch_of(args);
  check_exchange(exchange.config(), wanted.config, batch);
  const std::int64_t rows =
      received_rows(args, exchange.num_local_experts(), elastic.num_sources());
  check_dispatched(args, batch, rows);
  check_shapes(args, batch);

  std::vector<std::int32_t> ids;
  ferry::DispatchArgs dispatched{
      .tokens = {args.ori_x.data, batch.bs, batch.h, args.ori_x.dtype, args.ori_x.pitch_bytes},
      .topk_ids = {elastic.translate(args.expert_ids, ids), batch.bs, static_cast<int>(batch.k),
                   IndexType::kInt32},
      .active_ranks = elastic.active()};
  take_mask(args.x_active_mask, args.expert_ids, dispatched);
  const Triplets triplets(args, elastic, dispatched);
  std::vector<std::uint64_t> digests;
  ferry::CombineArgs combine{.expert_rows = {args.expand_x.data, rows, batch.h, args.expand_x.dtype,
                                             args.expand_x.pitch_bytes},
                             .topk_weights = args.expert_scales.data,
                             .out = args.x_out.data,
                             .out_dtype = args.x_out.dtype,
                             .dispatched = &dispatched,
                             .constants = {args.const_expert_alpha1.data,
                                           args.const_expert_alpha2.data, args.const_expert_v.data},
                             .shared_output = args.shared_expert_x.data,
                             .digests = {digest_of(wanted.settings, kSame, /*any_scales=*/false) |
                                             std::uint64_t{triplets.share_of_zero()} << 32,
                                         &digests}};
  if (with_norm != nullptr) combine.norm = take_norm(*with_norm);
  Status status = exchange.combine(combine);
  cache.follow(wanted, status, digests);  // throws where the settings of ranks differ
  if (status.ok() && !shares_fit(digests))
    status = triplets.name_difference(cache.group(), exchange.config());
  if (!status.ok()) return {status_code(status.code()), status};
  record_waits(exchange.last_combine_times(), tp_size_of(args.attributes), args.performance_info);
  return {};
}

}  // namespace

}  // namespace internal

Result moe_distribute_combine(const Communicator& communicator, const CombineArgs& args) noexcept {
  return internal::call(
      communicator, internal::kCombine, internal::Purpose::kCombine,
      [&](internal::ExchangeCache& cache) { return internal::run(cache, args, nullptr); });
}

Result moe_distribute_combine_add_rms_norm(const Communicator& communicator,
                                           const CombineAddRmsNormArgs& args) noexcept {
  return internal::call(
      communicator, internal::kCombineAddRmsNorm, internal::Purpose::kCombine,
      [&](internal::ExchangeCache& cache) { return internal::run(cache, args.combine, &args); });
}

Result check(const CombineArgs& args, WindowBytes& bytes) noexcept {
  if (Result result = workspace_bytes(args, bytes); !result.ok()) return result;
  return internal::checked([&] { internal::check_shapes(args, internal::batch_of(args)); });
}

Result check(const CombineAddRmsNormArgs& args, WindowBytes& bytes) noexcept {
  if (Result result = check(args.combine, bytes); !result.ok()) return result;
  return internal::checked([&] { internal::take_norm(args); });
}

Result refuse_combine(const Communicator& communicator, const CombineArgs& args,
                      const Status& why) noexcept {
  return internal::refuse_call(communicator, internal::kCombine, internal::Purpose::kCombine, args,
                               why);
}

}  // namespace ferry::cann

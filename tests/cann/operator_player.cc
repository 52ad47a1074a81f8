// Runs a case on a rank: a dispatch with outputs of the documented sizes, filled with a pattern
// that must still be there after the received rows; then a combine from the tensors alone.
#include <cstring>

#include "operator_case.h"

namespace ferry::test {
namespace {

constexpr int kPattern = 0x5a;

template <typename T>
class Output {
 public:
  explicit Output(std::int64_t elements) : values_(elements) {
    if (elements > 0) std::memset(values_.data(), kPattern, elements * sizeof(T));
  }
  std::span<T> span() { return values_; }
  T* data() { return values_.data(); }

  // `expected`, then the pattern.
  void require(std::span<const T> expected, const std::string& what) const {
    test::require(expected.size() <= values_.size(), what + ": too short");
    require_same_bytes(values_.data(), expected.data(), expected.size_bytes(), what);
    const auto* rest = reinterpret_cast<const unsigned char*>(values_.data() + expected.size());
    for (std::size_t i = 0; i < (values_.size() - expected.size()) * sizeof(T); ++i)
      test::require(rest[i] == kPattern, what + ": written past its end");
  }

 private:
  std::vector<T> values_;
};

DataType row_type(const OperatorCase& c) {
  if (c.quant_mode == 0) return c.type;
  return c.quant_mode == 3 ? DataType::kFp8E4m3 : DataType::kInt8;
}

std::int64_t scale_columns(const OperatorCase& c) {
  if (c.quant_mode == 0) return c.token_scale_columns;
  return c.quant_mode == 1 ? 0 : c.quant_mode == 2 ? 1 : (c.h + 127) / 128;
}

cann::DispatchArgs inputs_of(const OperatorCase& c, int rank) {
  const OperatorInput& in = c.inputs[rank];
  static const float kSomewhere = 0;  // an argument has an address also without tokens
  cann::DispatchArgs args{.attributes = attributes_of(c, rank),
                          .quant_mode = c.quant_mode,
                          .expert_token_nums_type = c.token_nums_type,
                          .x = {in.x.data(), in.bs, c.h, c.type},
                          .expert_ids = {in.ids.data(), in.bs, c.k},
                          .elastic_info = c.elastic};
  if (!c.factors.empty()) args.scales = {c.factors.data(), c.factor_rows, c.factor_columns};
  if (c.token_scale_columns > 0)
    args.scales = {in.bs ? in.token_scales.data() : &kSomewhere, in.bs, c.token_scale_columns};
  if (!in.mask.empty()) args.x_active_mask = {in.mask.data(), in.bs, in.mask_columns};
  if (c.weights_travel) args.expert_scales = {in.expert_scales.data(), in.bs, c.k};
  return args;
}

struct Dispatched {
  Output<std::byte> expand_x;
  Output<float> scales, weights;
  Output<std::int32_t> triplets, expand_idx, ep_counts, tp_counts;
  Output<std::int64_t> token_nums;
  std::vector<std::int64_t> waits;
  Received received = {};

  Dispatched(const OperatorCase& c, std::int64_t rows, std::int64_t bs, std::int64_t local)
      : expand_x(c.views ? 0 : rows * c.h * static_cast<std::int64_t>(element_bytes(row_type(c)))),
        scales(rows * scale_columns(c)),
        weights(rows),
        triplets(rows * 128),
        expand_idx(bs * c.k),
        ep_counts(c.tp * local * c.ep),
        tp_counts(c.tp),
        token_nums(local),
        waits(c.ep) {}
};

void require_dispatched(const PreparedCase& prepared, int rank, const Dispatched& seen) {
  const OperatorCase& c = prepared.c;
  const OperatorRows& expected = prepared.dispatched[rank];
  if (c.views) {
    require(seen.received.num_rows == std::ssize(expected.sources), "received.num_rows");
    require_same_bytes(seen.received.data, expected.rows.data(), expected.rows.size(),
                       "received.data");
  } else {
    seen.expand_x.require(expected.rows, "expand_x");
  }
  seen.scales.require(expected.scales, "dynamic_scales");
  seen.triplets.require(expected.triplets, "assist_info_for_combine");
  seen.expand_idx.require(expected.expand_idx, "expand_idx");
  seen.tp_counts.require(expected.tp_counts, "tp_recv_counts");
  const bool any_weights = c.weights_travel && !expected.outside;
  seen.weights.require(
      any_weights ? std::span<const float>(expected.weights) : std::span<const float>(),
      "expand_scales");
  if (expected.outside) return;
  seen.ep_counts.require(expected.ep_counts, "ep_recv_counts");
  seen.token_nums.require(expected.token_nums, "expert_token_nums");
}

void combine(const PreparedCase& prepared, const cann::Communicator& communicator, int rank,
             Dispatched& from) {
  const OperatorCase& c = prepared.c;
  const OperatorInput& in = c.inputs[rank];
  const OperatorResult& expected = prepared.combined[rank];
  const Bytes& rows = prepared.expert_rows[rank];
  const std::int64_t num_rows = std::ssize(prepared.dispatched[rank].sources);
  const bool in_place = c.views && c.quant_mode == 0;
  if (in_place && num_rows > 0) std::memcpy(from.received.data, rows.data(), rows.size());
  const cann::DispatchArgs sent = inputs_of(c, rank);
  const std::int64_t out_bytes = in.bs * c.h * static_cast<std::int64_t>(element_bytes(c.type));
  Output<std::byte> x_out(out_bytes), y_out(c.norm() ? out_bytes : 0);
  Output<float> rstd(c.norm() ? in.bs : 0);
  cann::CombineArgs args{
      .attributes = sent.attributes,
      .comm_quant_mode = c.comm_quant_mode,
      .expand_x = {in_place ? from.received.data : rows.data(), num_rows, c.h, c.type},
      .expert_ids = sent.expert_ids,
      .expand_idx = from.expand_idx.span(),
      .assist_info_for_combine = from.triplets.span(),
      .x_active_mask = sent.x_active_mask,
      .elastic_info = sent.elastic_info,
      .ori_x = sent.x,
      .const_expert_alpha1 = {c.alpha1.data(), c.constant, c.h, c.type},
      .const_expert_alpha2 = {c.alpha2.data(), c.constant, c.h, c.type},
      .const_expert_v = {c.v.data(), c.constant, c.h, c.type},
      .performance_info = from.waits,
      .x_out = {x_out.data(), in.bs, c.h, c.type}};
  if (!prepared.dispatched[rank].outside) args.ep_send_counts = from.ep_counts.span();
  if (!prepared.dispatched[rank].outside) args.tp_send_counts = from.tp_counts.span();
  if (!c.plain_sum) args.expert_scales = {in.expert_scales.data(), in.bs, c.k};
  if (!in.shared_x.empty()) args.shared_expert_x = {in.shared_x.data(), in.bs, c.h, c.type};
  if (c.norm()) {
    require_success(moe_distribute_combine_add_rms_norm(
                        communicator, {.combine = args,
                                       .residual_x = {in.residual.data(), in.bs, c.h, c.type},
                                       .gamma = {c.gamma.data(), 1, c.h, c.type},
                                       .norm_eps = c.eps,
                                       .y_out = {y_out.data(), in.bs, c.h, c.type},
                                       .rstd_out = rstd.span()}),
                    "combine_add_rms_norm");
  } else {
    require_success(moe_distribute_combine(communicator, args), "combine");
  }
  x_out.require(expected.x_out, "x_out");
  y_out.require(expected.y_out, "y_out");
  rstd.require(expected.rstd, "rstd_out");
}

}  // namespace

void require_success(const cann::Result& result, const std::string& what) {
  if (result.ok()) return;
  throw Failure(what + ": " + std::to_string(static_cast<int>(result.code)) + ": " +
                result.message());
}

void play(const PreparedCase& prepared, const cann::Communicator& communicator, int rank) {
  const OperatorCase& c = prepared.c;
  cann::DispatchArgs args = inputs_of(c, rank);
  const OperatorInput& in = c.inputs[rank];
  // Duplicate ids give more rows than A.
  const std::int64_t capacity =
      c.views ? std::ssize(prepared.dispatched[rank].sources) + c.tp * max_rows(args)
              : c.tp * max_rows(args);
  const std::int64_t local = c.elastic.empty()
                                 ? std::ssize(prepared.dispatched[rank].token_nums)
                                 : std::max<std::int64_t>(1, c.moe / (c.ep - c.shared_ranks));
  Dispatched seen(c, capacity, in.bs, local);
  if (c.views) {
    args.received = &seen.received;
  } else {
    args.expand_x = {seen.expand_x.data(), capacity, c.h, row_type(c)};
  }
  args.dynamic_scales = seen.scales.span();
  args.expand_idx = seen.expand_idx.span();
  args.assist_info_for_combine = seen.triplets.span();
  args.expert_token_nums = seen.token_nums.span();
  args.ep_recv_counts = seen.ep_counts.span();
  args.tp_recv_counts = seen.tp_counts.span();
  args.expand_scales = seen.weights.span();
  args.performance_info = seen.waits;
  require_success(moe_distribute_dispatch(communicator, args), "dispatch");
  require_dispatched(prepared, rank, seen);
  if (!prepared.combined.empty()) combine(prepared, communicator, rank, seen);
}

void run_case(const OperatorCase& c, Mode mode) {
  const PreparedCase prepared = prepare(c);
  run_ranks(
      mode, c.ep * c.tp,
      [&](Group group) {
        const int rank = group.rank();
        const cann::Communicator communicator(std::move(group),
                                              {.group_ep = "ep", .group_tp = "tp"});
        play(prepared, communicator, rank);
        play(prepared, communicator, rank);
      },
      describe(c));
}

}  // namespace ferry::test

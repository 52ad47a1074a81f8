// A rank's memory for one call of a scenario, and the comparison of its results with the oracle.
#include <cstring>

#include "player.h"
#include "scenario_config.h"

namespace ferry::test {
namespace {

constexpr auto kGuard = std::byte{0xa5};
constexpr float kFloatGuard = -77.0F;

// Copies dense rows to `pitch`, the bytes between them guarded.
std::vector<std::byte> with_pitch(const std::vector<std::byte>& dense, std::int64_t num_rows,
                                  std::size_t row_bytes, std::size_t pitch) {
  std::vector<std::byte> spread(static_cast<std::size_t>(num_rows) * pitch + 1, kGuard);
  for (std::int64_t row = 0; row < num_rows; ++row) {
    if (row_bytes > 0) std::memcpy(&spread[row * pitch], &dense[row * row_bytes], row_bytes);
  }
  return spread;
}

const void* pointer(const std::vector<std::byte>& matrix) {
  return matrix.empty() ? nullptr : matrix.data();
}

// `seen` must begin with `expected`; the rest must be guards, which show that nothing else was
// written.
template <typename T>
void require_guarded(const std::vector<T>& seen, std::vector<T> expected, T guard,
                     const std::string& what) {
  expected.resize(seen.size(), guard);
  require_same_bytes(seen.data(), expected.data(), seen.size() * sizeof(T), what);
}

void check_counts(const internal::RankReceived& expected, const Handle& handle,
                  const std::string& what) {
  require_equal<std::int64_t>(handle.tokens_per_expert(), expected.tokens_per_expert,
                              what + ": tokens_per_expert");
  require_equal<std::int64_t>(handle.aligned_tokens_per_expert(),
                              expected.aligned_tokens_per_expert,
                              what + ": aligned_tokens_per_expert");
  require_equal<std::int64_t>(handle.expert_offsets(), expected.expert_offsets,
                              what + ": expert_offsets");
  require_equal<std::int64_t>(handle.running_counts(), expected.running_counts,
                              what + ": running_counts");
  require_equal<std::int64_t>(handle.running_rows_per_rank(), expected.running_rows_per_rank,
                              what + ": running_rows_per_rank");
  require_equal<std::int64_t>(handle.tokens_per_rank(), expected.tokens_per_rank,
                              what + ": tokens_per_rank");
  require_equal<std::int64_t>(handle.rows_sent(), expected.rows_sent, what + ": rows_sent");
}

void check_scales_lie(const ExchangeConfig& config, const internal::RankReceived& expected,
                      const Scales& seen, const std::string& what) {
  const internal::ReferenceScales& scales = expected.scales;
  if (scales.columns == 0) require(seen.data == nullptr, what + ": scales that nobody sent");
  if (scales.columns == 0 || expected.num_rows == 0) return;
  require(seen.data != nullptr, what + ": no scales");
  const auto require_stride = [&](std::int64_t value, std::int64_t right, const std::string& name) {
    require(value == right, what + ": scales have " + name + " " + std::to_string(value) +
                                " instead of " + std::to_string(right));
  };
  require_stride(seen.columns, scales.columns, "columns");
  require_stride(seen.element_bytes, scales.element_bytes, "element_bytes");
  require_stride(seen.row_stride, scales.row_stride, "row_stride");
  require_stride(seen.column_stride, scales.column_stride, "column_stride");
  if (config.layout == Layout::kPadded)
    require_stride(seen.section_stride, scales.section_stride, "section_stride");
  if (config.scale_order == ScaleOrder::kColumnMajor) {
    require(reinterpret_cast<std::uintptr_t>(seen.data) % 16 == 0,
            what + ": columns of scales do not start at multiples of 16 bytes");
  }
}

// `values`: whether the row's bytes and scales are defined.
void check_row(const internal::RankReceived& expected, const Received& received, std::int64_t row,
               bool values, const std::string& what) {
  const auto at = [&](const char* part) {
    return [&what, row, part] { return what + ": row " + std::to_string(row) + part; };
  };
  require_equal<std::int32_t>(received.sources.subspan(row * 3, 3),
                              std::span(expected.sources).subspan(row * 3, 3), at(": source"));
  const std::size_t weights = expected.weights.size() / expected.num_rows;  // of a row
  require_same_bytes(received.weights.data() + row * weights,
                     expected.weights.data() + row * weights, weights * sizeof(float),
                     at(": weights"));
  if (!values) return;
  const std::size_t row_bytes =
      static_cast<std::size_t>(received.hidden) * element_bytes(expected.dtype);
  const auto* const seen = static_cast<const std::byte*>(received.data) + row * row_bytes;
  require_same_bytes(seen, &expected.rows[row * row_bytes], row_bytes, at(""));
  const internal::ReferenceScales& scales = expected.scales;
  for (std::int64_t column = 0; column < scales.columns; ++column) {
    const std::int64_t offset = scales.offset(row, column);
    require_same_bytes(static_cast<const std::byte*>(received.scales.data) + offset,
                       &scales.bytes[offset], static_cast<std::size_t>(scales.element_bytes),
                       [&] { return at(": scale ")() + std::to_string(column); });
  }
}

void check_nothing_received(const Received& received, const std::string& what) {
  require(received.num_rows == 0 && received.sources.empty() && received.weights.empty() &&
              received.topk_ids.empty(),
          what + ": a rank outside the active ones received something");
  require(received.handle && received.handle.num_rows() == 0,
          what + ": a rank outside the active ones needs a handle of no rows");
}

}  // namespace

DispatchCall::DispatchCall(const Scenario& scenario, const Round& round, int rank, Random& random,
                           bool routed) {
  const ExchangeConfig& config = scenario.config;
  const internal::RankInput& input = round.inputs[rank];
  const std::size_t row_bytes =
      static_cast<std::size_t>(config.hidden) * element_bytes(config.dtype);
  const std::size_t pitch =
      row_bytes + (random.one_in(2) ? 0 : random.between(1, 9) * element_bytes(config.dtype));
  tokens_ = with_pitch(input.tokens, input.num_tokens, row_bytes, pitch);
  args_.tokens = {tokens_.data(), input.num_tokens, config.hidden, config.dtype,
                  pitch == row_bytes && random.one_in(2) ? 0 : static_cast<std::int64_t>(pitch)};
  args_.topk_weights = round.weights ? input.topk_weights.data() : nullptr;
  if (!input.factors.empty())
    args_.scales = {input.factors.data(), input.factor_rows, input.factor_channels};
  if (config.scale_bytes > 0) args_.token_scales = input.token_scales.data();
  if (round.cached_from < 0 || routed) {
    give_routing(config, input, random);
  } else if (random.one_in(2)) {
    args_.active_ranks = input.active_ranks;  // the handle knows them too
  }
}

void DispatchCall::give_routing(const ExchangeConfig& config, const internal::RankInput& input,
                                Random& random) {
  args_.topk_ids = {input.topk_ids.data(), input.num_tokens, config.top_k, IndexType::kInt64};
  if (random.one_in(2)) {
    narrow_ids_.assign(input.topk_ids.begin(), input.topk_ids.end());
    args_.topk_ids.data = narrow_ids_.data();
    args_.topk_ids.type = IndexType::kInt32;
  }
  if (!input.token_mask.empty()) args_.token_mask = input.token_mask.data();
  if (!input.topk_mask.empty()) args_.topk_mask = input.topk_mask.data();
  if (!input.replica_table.empty()) args_.replica_table = input.replica_table.data();
  args_.active_ranks = input.active_ranks;
}

CombineCall::CombineCall(Exchange& exchange, const Scenario& scenario, const Round& round,
                         const CombineCase& combine, int rank, const Handle& handle,
                         Received* received, Random& random)
    : combine_(combine),
      rank_(rank),
      num_tokens_(round.inputs[rank].num_tokens),
      takes_part_(round.takes_part(rank)) {
  const internal::RankOutput& output = combine.outputs[rank];
  if (!combine.from_tensors) args_.handle = handle;
  if (combine.from_tensors || combine_reads_tokens(scenario.config) || random.one_in(8)) {
    dispatched_.emplace(scenario, round, rank, random, combine.from_tensors);
    if (!combine.from_tensors && round.cached_from >= 0) dispatched_->args().cached = handle;
    args_.dispatched = &dispatched_->args();
  }
  place_rows(exchange, round.expected[rank].num_rows, received, random);
  args_.in_place = !random.one_in(4);
  if (output.weighted) args_.topk_weights = round.inputs[rank].topk_weights.data();
  for (int i = 0; i < 2; ++i) args_.bias[i] = pointer(output.bias[i]);
  args_.partials = output.partials;
  args_.constants = {pointer(output.alpha1), pointer(output.alpha2), pointer(output.v)};
  if (combine.weights_home) give_weights_home(scenario.config.top_k);
  place_out(random);
  give_epilogue(random);
}

void CombineCall::give_weights_home(int top_k) {
  row_weights_ = combine_.outputs[rank_].row_weights;
  row_weights_.push_back(0.0F);  // a pointer that is not null, also without rows
  args_.row_weights = row_weights_.data();
  topk_weights_home_.assign(static_cast<std::size_t>(num_tokens_) * top_k + 1, kFloatGuard);
  args_.out_topk_weights = topk_weights_home_.data();
}

void CombineCall::place_out(Random& random) {
  const DataType type = combine_.outputs[rank_].out_type;
  const auto bytes = static_cast<std::int64_t>(element_bytes(type));
  const bool dense = random.one_in(2);
  out_pitch_ = combine_.hidden * bytes + (dense ? 0 : random.between(1, 5) * bytes);
  out_.assign(static_cast<std::size_t>(num_tokens_ * out_pitch_) + 64, kGuard);
  args_.out = out_.data();
  args_.out_dtype = type;
  args_.out_pitch_bytes = dense ? 0 : out_pitch_;
}

void CombineCall::give_epilogue(Random& random) {
  const internal::RankOutput& output = combine_.outputs[rank_];
  args_.shared_output = pointer(output.shared_output);
  if (output.residual.empty()) return;
  y_.assign(output.residual.size() + 64, kGuard);
  args_.norm = {output.residual.data(), output.gamma.data(), output.epsilon, y_.data(), nullptr};
  if (random.one_in(3)) return;
  rstd_.assign(static_cast<std::size_t>(num_tokens_) + 1, kFloatGuard);
  args_.norm.rstd = rstd_.data();
}

void CombineCall::place_rows(Exchange& exchange, std::int64_t num_rows, Received* received,
                             Random& random) {
  const std::vector<std::byte>& rows = combine_.outputs[rank_].expert_rows;
  args_.expert_rows = {nullptr, num_rows, combine_.hidden, combine_.row_type, 0};
  const bool fits = received != nullptr && received->hidden == combine_.hidden &&
                    received->dtype == combine_.row_type;
  if (fits) {
    if (!rows.empty()) std::memcpy(received->data, rows.data(), rows.size());
    args_.expert_rows = received->rows();
    return;
  }
  if (random.one_in(2)) {
    place_foreign_rows(num_rows, random);
    return;
  }
  const Status allocated =
      exchange.allocate_outputs(num_rows, combine_.hidden, combine_.row_type, outputs_);
  if (!allocated.group_usable()) broke_ = allocated;
  if (allocated.code() == Code::kCapacity || !allocated.group_usable()) {  // too many views
    place_foreign_rows(num_rows, random);
    return;
  }
  require_ok(allocated, "allocate_outputs");
  if (!rows.empty()) std::memcpy(outputs_.data, rows.data(), rows.size());
  args_.expert_rows = outputs_.rows();
}

void CombineCall::place_foreign_rows(std::int64_t num_rows, Random& random) {
  const std::size_t row_bytes =
      static_cast<std::size_t>(combine_.hidden) * element_bytes(combine_.row_type);
  const std::size_t pitch =
      row_bytes + (random.one_in(2) ? 0 : random.between(1, 9) * element_bytes(combine_.row_type));
  foreign_ = with_pitch(combine_.outputs[rank_].expert_rows, num_rows, row_bytes, pitch);
  args_.expert_rows.data = foreign_.data();
  args_.expert_rows.pitch_bytes = static_cast<std::int64_t>(pitch);
}

void CombineCall::overwrite_what_was_copied() {
  std::ranges::fill(foreign_, kGuard);
  std::ranges::fill(row_weights_, kFloatGuard);
}

void CombineCall::check(const std::string& what) const {
  const internal::RankCombined& expected = combine_.expected[rank_];
  const std::size_t row_bytes =
      static_cast<std::size_t>(combine_.hidden) * element_bytes(args_.out_dtype);
  const std::int64_t num_tokens = takes_part_ ? num_tokens_ : 0;  // that are written
  for (std::int64_t token = 0; token < num_tokens; ++token) {
    require_same_bytes(&out_[token * out_pitch_], &expected.out[token * row_bytes], row_bytes,
                       [&] { return what + ": out of token " + std::to_string(token); });
  }
  require_guarded(
      out_, with_pitch(expected.out, num_tokens, row_bytes, static_cast<std::size_t>(out_pitch_)),
      kGuard, what + ": bytes beside the rows of out");
  require_guarded(topk_weights_home_, expected.out_topk_weights, kFloatGuard,
                  what + ": out_topk_weights");
  require_guarded(y_, expected.y, kGuard, what + ": y");
  if (args_.norm.rstd != nullptr)
    require_guarded(rstd_, expected.rstd, kFloatGuard, what + ": rstd");
}

void check_received(const Scenario& scenario, const Round& round, int rank,
                    const Received& received, const std::string& what) {
  if (!round.takes_part(rank)) {
    check_nothing_received(received, what);
    return;
  }
  const internal::RankReceived& expected = round.expected[rank];
  const Handle& handle = received.handle;
  const ExchangeConfig& config = scenario.config;
  require(received.num_rows == expected.num_rows && handle.num_rows() == expected.num_rows,
          what + ": " + std::to_string(received.num_rows) + " rows instead of " +
              std::to_string(expected.num_rows));
  require(received.hidden == config.hidden && received.dtype == expected.dtype,
          what + ": other hidden or dtype");
  require(handle.num_tokens() == round.inputs[rank].num_tokens, what + ": handle has another T");
  check_counts(expected, handle, what);
  require(received.sources.size() == expected.sources.size(), what + ": number of sources");
  require_equal<std::int32_t>(received.topk_ids, expected.topk_ids, what + ": topk_ids");
  require(received.weights.size() == expected.weights.size(),
          what + ": " + std::to_string(received.weights.size()) + " weights instead of " +
              std::to_string(expected.weights.size()));
  check_scales_lie(config, expected, received.scales, what);
  for (std::int64_t row = 0; row < expected.num_rows; ++row) {
    const bool gap = expected.row_valid[row] == 0;
    if (gap && config.layout == Layout::kPadded && !config.zero_gaps)
      continue;  // padding is undefined
    check_row(expected, received, row, !gap || config.zero_gaps, what);
  }
}

}  // namespace ferry::test

// Owns the comparison with the oracle; see check.h.
#include "tools/bench/check.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "oracle/wire.h"

namespace ferry::bench {
namespace {

constexpr std::int64_t kTokensAtATime = 32;

// Compares elements of `width` bytes and counts those that differ.
void compare_bytes(const std::byte* got, const std::byte* expected, std::size_t elements,
                   std::size_t width, Comparison& comparison) {
  comparison.compared += elements;
  if (std::memcmp(got, expected, elements * width) == 0) return;
  for (std::size_t i = 0; i < elements; ++i) {
    comparison.wrong += std::memcmp(got + i * width, expected + i * width, width) != 0 ? 1 : 0;
  }
}

template <typename T>
void compare_list(std::span<const T> got, const std::vector<T>& expected, Comparison& comparison) {
  const std::size_t common = std::min(got.size(), expected.size());
  const std::size_t unmatched = std::max(got.size(), expected.size()) - common;
  if (common > 0) {
    compare_bytes(reinterpret_cast<const std::byte*>(got.data()),
                  reinterpret_cast<const std::byte*>(expected.data()), common, sizeof(T),
                  comparison);
  }
  comparison.compared += unmatched;
  comparison.wrong += unmatched;
}

// Compares lists that have `width` elements for each row. Padding rows are left out, because the
// engine writes no elements for them.
template <typename T>
void compare_rows_of(const internal::RankReceived& expected, Layout layout, std::span<const T> got,
                     const std::vector<T>& wanted, Comparison& comparison) {
  const std::size_t num_rows = expected.row_valid.size();
  if (layout != Layout::kPadded || got.size() != wanted.size() || num_rows == 0) {
    compare_list(got, wanted, comparison);
    return;
  }
  const std::size_t width = wanted.size() / num_rows;
  for (std::size_t row = 0; row < num_rows; ++row) {
    if (expected.row_valid[row] == 0) continue;
    compare_bytes(reinterpret_cast<const std::byte*>(&got[row * width]),
                  reinterpret_cast<const std::byte*>(&wanted[row * width]), width, sizeof(T),
                  comparison);
  }
}

void compare_counts(const internal::RankReceived& expected, const Handle& handle,
                    Comparison& comparison) {
  compare_list(handle.tokens_per_expert(), expected.tokens_per_expert, comparison);
  compare_list(handle.aligned_tokens_per_expert(), expected.aligned_tokens_per_expert, comparison);
  compare_list(handle.expert_offsets(), expected.expert_offsets, comparison);
  compare_list(handle.running_counts(), expected.running_counts, comparison);
  compare_list(handle.running_rows_per_rank(), expected.running_rows_per_rank, comparison);
}

// The oracle for the tokens of one rank. It can leave out other ranks' tokens, because a result
// depends only on the rows of its own token.
class OneRankOracle {
 public:
  OneRankOracle(const Plan& plan, std::size_t rank, std::uint64_t salt,
                const BetweenNodes& between_nodes)
      : plan_(plan), rank_(rank), salt_(salt), config_(plan.config), inputs_(plan.inputs.size()) {
    config_.wire = Wire::kNone;  // experts get the unencoded tokens
    config_.algorithm = between_nodes.algorithm;
    for (std::size_t i = 0; i < between_nodes.nodes.size(); ++i) {
      inputs_[i].node = between_nodes.nodes[i];
      inputs_[i].outer = between_nodes.outer[i];
    }
  }

  // The results of the tokens from `first` on, [count, hidden].
  std::vector<std::byte> combined(std::int64_t first, std::int64_t count) {
    set_tokens(first, count);
    std::vector<internal::RankReceived> received = internal::reference_dispatch(config_, inputs_);
    std::vector<internal::RankOutput> outputs(received.size());
    for (std::size_t rank = 0; rank < outputs.size(); ++rank) {
      outputs[rank].expert_rows = std::move(received[rank].rows);
      outputs[rank].weighted = config_.layout != Layout::kRankMajor;
      outputs[rank].out_type = config_.dtype;
    }
    return std::move(
        internal::reference_combine(config_, inputs_, outputs, config_.hidden, config_.dtype)[rank_]
            .out);
  }

 private:
  void set_tokens(std::int64_t first, std::int64_t count) {
    config_.max_tokens = count;
    if (config_.layout == Layout::kPadded)
      config_.expert_capacity = count;  // enough, because the experts of a token are distinct
    const internal::RankInput& all = plan_.inputs[rank_];
    internal::RankInput& some = inputs_[rank_];
    const std::size_t row_bytes = plan_.options.row_bytes();
    const std::int64_t k = config_.top_k;
    some.num_tokens = count;
    some.topk_ids.assign(all.topk_ids.begin() + first * k,
                         all.topk_ids.begin() + (first + count) * k);
    some.topk_weights.assign(all.topk_weights.begin() + first * k,
                             all.topk_weights.begin() + (first + count) * k);
    if (!all.topk_mask.empty()) {
      some.topk_mask.assign(all.topk_mask.begin() + first * k,
                            all.topk_mask.begin() + (first + count) * k);
    }
    some.tokens.resize(static_cast<std::size_t>(count) * row_bytes);
    for (std::int64_t token = 0; token < count; ++token) {
      fill_token({plan_.options.seed, salt_, static_cast<int>(rank_), first + token}, config_.dtype,
                 config_.hidden, some.tokens.data() + static_cast<std::size_t>(token) * row_bytes);
    }
  }

  const Plan& plan_;
  std::size_t rank_;
  std::uint64_t salt_;
  ExchangeConfig config_;
  std::vector<internal::RankInput> inputs_;
};

}  // namespace

Comparison compare_received(const Plan& plan, std::size_t rank, std::uint64_t salt,
                            const Received& received) {
  const internal::RankReceived& expected = plan.expected[rank];
  const Options& options = plan.options;
  Comparison comparison;
  compare_counts(expected, received.handle, comparison);
  compare_rows_of(expected, options.shape.layout, received.sources, expected.sources, comparison);
  compare_rows_of(expected, options.shape.layout, received.weights, expected.weights, comparison);
  compare_list(received.topk_ids, expected.topk_ids, comparison);
  std::vector<std::byte> row(options.row_bytes());
  internal::ReferenceEncoded encoded;
  const std::size_t elements = static_cast<std::size_t>(options.shape.hidden);
  const std::size_t width =
      options.shape.wire == Wire::kNone ? element_bytes(options.shape.dtype) : 1;
  for (std::size_t i = 0; i < expected.row_valid.size(); ++i) {
    if (expected.row_valid[i] == 0) continue;
    if (static_cast<std::int64_t>(i) >= received.num_rows) {
      comparison.compared += elements;
      comparison.wrong += elements;
      continue;
    }
    fill_token({options.seed, salt, expected.sources[3 * i], expected.sources[3 * i + 1]},
               options.shape.dtype, options.shape.hidden, row.data());
    if (options.shape.wire != Wire::kNone) {
      encoded = internal::reference_encode(options.shape.wire, row, options.shape.dtype, {});
      compare_bytes(
          static_cast<const std::byte*>(received.scales.data) + i * options.wire_scale_bytes(),
          encoded.scales.data(), encoded.scales.size() / 4, 4, comparison);
    }
    compare_bytes(static_cast<const std::byte*>(received.data) + i * options.wire_row_bytes(),
                  options.shape.wire == Wire::kNone ? row.data() : encoded.row.data(), elements,
                  width, comparison);
  }
  return comparison;
}

Comparison compare_combined(const Plan& plan, std::size_t rank, std::uint64_t salt,
                            const std::byte* out, const BetweenNodes& between_nodes) {
  OneRankOracle oracle(plan, rank, salt, between_nodes);
  Comparison comparison;
  const std::int64_t tokens = plan.inputs[rank].num_tokens;
  for (std::int64_t first = 0; first < tokens; first += kTokensAtATime) {
    const std::int64_t count = std::min(kTokensAtATime, tokens - first);
    const std::vector<std::byte> expected = oracle.combined(first, count);
    compare_bytes(out + static_cast<std::size_t>(first) * plan.options.row_bytes(), expected.data(),
                  static_cast<std::size_t>(count * plan.options.shape.hidden),
                  element_bytes(plan.options.shape.dtype), comparison);
  }
  return comparison;
}

}  // namespace ferry::bench

// The oracle's dispatch: what each rank receives, row after row, as plain loops over all ranks'
// inputs. It uses the oracle's routing, rows and wires, and nothing of the engine.
#include "oracle/reference.h"

#include <algorithm>
#include <span>

#include "base/round_up.h"
#include "oracle/rows.h"
#include "oracle/wire.h"

namespace ferry::internal {
namespace {

constexpr std::int64_t kScaleBytes = 4;      // of a wire
constexpr std::int64_t kScaleGroup = 128;    // channels
constexpr std::int64_t kColumnMultiple = 4;  // elements: columns start at multiples of 16 bytes

DataType received_type(const ExchangeConfig& config) {
  switch (config.wire) {
    case Wire::kNone: return config.dtype;
    case Wire::kInt8:
    case Wire::kInt8Static: return DataType::kInt8;
    case Wire::kFp8:
    case Wire::kFp8Pow2:
    case Wire::kFp8Ue8m0: return DataType::kFp8E4m3;
  }
  return {};
}

// Bytes of scales that travel with a row.
std::int64_t scale_bytes(const ExchangeConfig& config) {
  const std::int64_t groups = (config.hidden + kScaleGroup - 1) / kScaleGroup;
  switch (config.wire) {
    case Wire::kNone: return config.scale_bytes;
    case Wire::kInt8: return kScaleBytes;
    case Wire::kInt8Static: return 0;
    case Wire::kFp8:
    case Wire::kFp8Pow2: return groups * kScaleBytes;
    case Wire::kFp8Ue8m0: return round_up(groups, 4) / 4 * kScaleBytes;
  }
  return 0;
}

// One dispatch, seen whole.
struct Dispatch {
  const ExchangeConfig& config;
  const std::vector<RankInput>& inputs;
  ReferenceRouting routing;

  // A row's place in the tensors of its source.
  const RankInput& source(const ReferenceRow& row) const {
    return inputs[routing.members[row.member].ranks[row.tp_rank]];
  }
};

// Inclusive running sums, anew after every `block` values.
std::vector<std::int64_t> running_sums(const std::vector<std::int64_t>& values, std::size_t block) {
  std::vector<std::int64_t> sums;
  for (std::size_t i = 0; i < values.size(); ++i)
    sums.push_back(values[i] + (i % block == 0 ? 0 : sums.back()));
  return sums;
}

void count_rows(const Dispatch& dispatch, int member, const ReferenceRows& placed,
                RankReceived& received) {
  const std::size_t experts = dispatch.routing.members[member].num_local_experts;
  const std::size_t members = dispatch.routing.members.size();
  received.tokens_per_expert.resize(experts);
  for (std::size_t i = 0; i < placed.counts.size(); ++i)
    received.tokens_per_expert[i / members % experts] += placed.counts[i];
  for (const std::int64_t rows : received.tokens_per_expert)
    received.aligned_tokens_per_expert.push_back(round_up(rows, dispatch.config.expert_alignment));
  received.expert_offsets = placed.expert_offsets;
  received.running_counts = running_sums(placed.counts, experts * members);
  received.running_rows_per_rank = running_sums(placed.rows_per_source, members);
}

// kRankMajor, the same for all: tokens of each source, and how many have an expert of each member.
void count_sent(const Dispatch& dispatch, RankReceived& received) {
  const ReferenceRouting& routing = dispatch.routing;
  for (int tp_rank = 0; tp_rank < dispatch.config.tp_size; ++tp_rank) {
    for (const ReferenceMember& source : routing.members) {
      const int rank = source.ranks[tp_rank];
      const std::int64_t tokens = dispatch.inputs[rank].num_tokens;
      received.tokens_per_rank.push_back(tokens);
      std::vector<std::int64_t> sent(routing.members.size());
      for (std::int64_t token = 0; token < tokens; ++token) {
        std::vector<bool> goes(sent.size());
        for (int k = 0; k < routing.entries_per_token; ++k) {
          const int member = routing.entry(rank, token, k).member;
          if (member >= 0) goes[member] = true;
        }
        for (std::size_t member = 0; member < sent.size(); ++member)
          sent[member] += goes[member] ? 1 : 0;
      }
      received.rows_sent.insert(received.rows_sent.end(), sent.begin(), sent.end());
    }
  }
}

// kRankMajor: the token's entries that are here, in the columns of their k.
void fill_columns(const Dispatch& dispatch, int member, const ReferenceRows& placed,
                  RankReceived& received) {
  for (const ReferenceRow& row : placed.rows) {
    const RankInput& input = dispatch.source(row);
    const int rank = dispatch.routing.members[row.member].ranks[row.tp_rank];
    for (int k = 0; k < dispatch.config.top_k; ++k) {
      const ReferenceEntry& entry = dispatch.routing.entry(rank, row.token, k);
      const bool here = entry.member == member;
      received.topk_ids.push_back(here ? entry.local : -1);
      if (input.topk_weights.empty()) continue;
      received.weights.push_back(here ? input.topk_weights[row.token * dispatch.config.top_k + k]
                                      : 0.0F);
    }
  }
}

// Expert layouts: each row's own weight, if any rank gave some.
void fill_weights(const Dispatch& dispatch, const ReferenceRows& placed, RankReceived& received) {
  bool given = false;
  for (const ReferenceMember& member : dispatch.routing.members) {
    for (const int rank : member.ranks)
      given = given || !dispatch.inputs[rank].topk_weights.empty();
  }
  const int top_k = dispatch.config.top_k;
  for (std::size_t i = 0; given && i < placed.rows.size(); ++i) {
    const ReferenceRow& row = placed.rows[i];
    if (row.member < 0) {
      received.weights.push_back(0.0F);
    } else {
      received.weights.push_back(
          row.k >= top_k ? 1.0F : dispatch.source(row).topk_weights[row.token * top_k + row.k]);
    }
  }
}

void place_scales(const ExchangeConfig& config, std::int64_t section_rows, std::int64_t num_rows,
                  ReferenceScales& scales) {
  const std::int64_t bytes = scale_bytes(config);
  if (bytes == 0) return;
  scales.element_bytes = bytes % kScaleBytes == 0 ? kScaleBytes : 1;
  scales.columns = bytes / scales.element_bytes;
  scales.section_rows = section_rows;
  if (config.scale_order == ScaleOrder::kRowMajor) {
    scales.row_stride = bytes;
    scales.column_stride = scales.element_bytes;
    scales.section_stride = section_rows * bytes;
  } else {
    scales.row_stride = scales.element_bytes;
    scales.column_stride = round_up(section_rows, kColumnMultiple) * scales.element_bytes;
    scales.section_stride = scales.columns * scales.column_stride;
  }
  if (section_rows > 0)
    scales.bytes.resize((num_rows + section_rows - 1) / section_rows * scales.section_stride);
}

// The factors that the source gave for this row: its expert's, or everybody's.
std::span<const float> factors_of(const Dispatch& dispatch, const ReferenceRow& row) {
  const RankInput& input = dispatch.source(row);
  if (input.factors.empty()) return {};
  const int top_k = dispatch.config.top_k;
  std::int64_t index = 0;
  if (input.factor_rows > 1) {
    index = row.k >= top_k
                ? row.k - top_k
                : dispatch.config.shared.num_experts + input.topk_ids[row.token * top_k + row.k];
  }
  return std::span(input.factors)
      .subspan(index * input.factor_channels, static_cast<std::size_t>(input.factor_channels));
}

ReferenceEncoded encode(const Dispatch& dispatch, const ReferenceRow& row) {
  const ExchangeConfig& config = dispatch.config;
  const RankInput& input = dispatch.source(row);
  const std::size_t bytes = static_cast<std::size_t>(config.hidden) * element_bytes(config.dtype);
  const auto token = std::span(input.tokens).subspan(row.token * bytes, bytes);
  if (config.wire != Wire::kNone)
    return reference_encode(config.wire, token, config.dtype, factors_of(dispatch, row));
  const auto scales = input.token_scales.begin() + row.token * config.scale_bytes;
  return {.row = {token.begin(), token.end()}, .scales = {scales, scales + config.scale_bytes}};
}

// Row i: its elements and its scales.
void fill_row(const Dispatch& dispatch, const ReferenceRow& row, std::size_t i,
              RankReceived& received) {
  const ReferenceEncoded encoded = encode(dispatch, row);
  std::copy(encoded.row.begin(), encoded.row.end(),
            received.rows.begin() + static_cast<std::ptrdiff_t>(i * encoded.row.size()));
  ReferenceScales& scales = received.scales;
  for (std::int64_t column = 0; column < scales.columns; ++column) {
    const auto from = encoded.scales.begin() + column * scales.element_bytes;
    std::copy(from, from + scales.element_bytes,
              scales.bytes.begin() + scales.offset(static_cast<std::int64_t>(i), column));
  }
}

void fill_rows(const Dispatch& dispatch, const ReferenceRows& placed, RankReceived& received) {
  const ExchangeConfig& config = dispatch.config;
  received.num_rows = static_cast<std::int64_t>(placed.rows.size());
  received.dtype = received_type(config);
  received.rows.resize(placed.rows.size() * static_cast<std::size_t>(config.hidden) *
                       element_bytes(received.dtype));
  place_scales(config,
               config.layout == Layout::kPadded
                   ? reference_expert_capacity(config, dispatch.inputs.size())
                   : received.num_rows,
               received.num_rows, received.scales);
  for (std::size_t i = 0; i < placed.rows.size(); ++i) {
    const ReferenceRow& row = placed.rows[i];
    received.row_valid.push_back(row.member >= 0 ? 1 : 0);
    received.sources.insert(received.sources.end(),
                            {row.member, static_cast<std::int32_t>(row.token), row.k});
    if (row.member >= 0) fill_row(dispatch, row, i, received);
  }
}

}  // namespace

std::vector<RankReceived> reference_dispatch(const ExchangeConfig& config,
                                             const std::vector<RankInput>& inputs) {
  const Dispatch dispatch{config, inputs, reference_routing(config, inputs)};
  std::vector<RankReceived> all(inputs.size());
  for (int member = 0; member < static_cast<int>(dispatch.routing.members.size()); ++member) {
    const ReferenceMember& here = dispatch.routing.members[member];
    for (int tp_rank = 0; tp_rank < config.tp_size; ++tp_rank) {
      const ReferenceRows placed = reference_rows(config, dispatch.routing, member, tp_rank);
      RankReceived& received = all[here.ranks[tp_rank]];
      count_rows(dispatch, member, placed, received);
      fill_rows(dispatch, placed, received);
      if (config.layout == Layout::kRankMajor) {
        fill_columns(dispatch, member, placed, received);
        count_sent(dispatch, received);
      } else {
        fill_weights(dispatch, placed, received);
      }
    }
  }
  return all;
}

}  // namespace ferry::internal

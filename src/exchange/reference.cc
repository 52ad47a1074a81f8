// The oracle's dispatch: who receives which row, in which order, as plain loops over all ranks'
// inputs. Called by tests and by `ferry bench --check`; calls nothing of the engine. The oracle's
// combine is reference_combine.cc.
#include <cstring>

#include "exchange/reference.h"
#include "exchange/reference_rows.h"

namespace ferry::internal {
namespace {

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// One row for each token with at least one entry here, by source rank and token.
void place_rank_major(const ExchangeConfig& config, const std::vector<RankInput>& inputs,
                      ReferenceRows& placed) {
  const std::vector<ReferenceExpert> experts =
      reference_experts(config, static_cast<int>(inputs.size()));
  for (int source = 0; source < static_cast<int>(inputs.size()); ++source) {
    for (std::int64_t token = 0; token < inputs[source].num_tokens; ++token) {
      for (int k = 0; k < config.top_k; ++k) {
        const std::int64_t expert = reference_sent_expert(config, inputs[source], token, k);
        if (expert < 0 || experts[expert].rank != placed.rank) continue;
        placed.rows.push_back({source, token, k});
        break;
      }
    }
  }
}

// One row for each (token, k) whose expert is `local_expert` here, by source rank, token and k.
std::vector<ReferenceRow> rows_of_expert(const ExchangeConfig& config,
                                         const std::vector<RankInput>& inputs, int rank,
                                         int local_expert) {
  const std::vector<ReferenceExpert> experts =
      reference_experts(config, static_cast<int>(inputs.size()));
  std::vector<ReferenceRow> rows;
  for (int source = 0; source < static_cast<int>(inputs.size()); ++source) {
    for (std::int64_t token = 0; token < inputs[source].num_tokens; ++token) {
      for (int k = 0; k < config.top_k; ++k) {
        const std::int64_t expert = reference_sent_expert(config, inputs[source], token, k);
        if (expert < 0 || experts[expert].rank != rank || experts[expert].local != local_expert)
          continue;
        rows.push_back({source, token, k});
      }
    }
  }
  return rows;
}

void place_by_expert(const ExchangeConfig& config, const std::vector<RankInput>& inputs,
                     ReferenceRows& placed) {
  const std::int64_t capacity = config.expert_capacity != 0
                                    ? config.expert_capacity
                                    : config.max_tokens * static_cast<std::int64_t>(inputs.size());
  for (int expert = 0; expert < placed.num_local_experts; ++expert) {
    placed.expert_offsets.push_back(static_cast<std::int64_t>(placed.rows.size()));
    const std::vector<ReferenceRow> rows = rows_of_expert(config, inputs, placed.rank, expert);
    placed.rows.insert(placed.rows.end(), rows.begin(), rows.end());
    const auto num_rows = static_cast<std::int64_t>(rows.size());
    const std::int64_t end =
        config.layout == Layout::kPadded ? capacity : round_up(num_rows, config.expert_alignment);
    for (std::int64_t gap = num_rows; gap < end; ++gap) placed.rows.push_back({-1, -1, -1});
  }
  placed.expert_offsets.push_back(static_cast<std::int64_t>(placed.rows.size()));
}

void count_rows(const ExchangeConfig& config, const std::vector<RankInput>& inputs,
                const ReferenceRows& placed, RankReceived& received) {
  std::int64_t running = 0;
  for (int expert = 0; expert < placed.num_local_experts; ++expert) {
    const std::vector<ReferenceRow> rows = rows_of_expert(config, inputs, placed.rank, expert);
    const auto num_rows = static_cast<std::int64_t>(rows.size());
    received.tokens_per_expert.push_back(num_rows);
    received.aligned_tokens_per_expert.push_back(round_up(num_rows, config.expert_alignment));
    for (int source = 0; source < static_cast<int>(inputs.size()); ++source) {
      for (const ReferenceRow& row : rows) running += row.source == source ? 1 : 0;
      received.running_counts.push_back(running);
    }
  }
  received.expert_offsets = placed.expert_offsets;
  if (config.layout != Layout::kRankMajor) return;
  std::int64_t running_rows = 0;
  for (int source = 0; source < static_cast<int>(inputs.size()); ++source) {
    for (const ReferenceRow& row : placed.rows) running_rows += row.source == source ? 1 : 0;
    received.running_rows_per_rank.push_back(running_rows);
  }
}

void fill_rank_major_columns(const ExchangeConfig& config, const std::vector<RankInput>& inputs,
                             const ReferenceRows& placed, RankReceived& received) {
  const std::vector<ReferenceExpert> experts =
      reference_experts(config, static_cast<int>(inputs.size()));
  for (const ReferenceRow& row : placed.rows) {
    const RankInput& input = inputs[row.source];
    for (int k = 0; k < config.top_k; ++k) {
      const std::int64_t expert = reference_sent_expert(config, input, row.token, k);
      const bool here = expert >= 0 && experts[expert].rank == placed.rank;
      received.topk_ids.push_back(here ? experts[expert].local : -1);
      if (input.topk_weights.empty()) continue;
      received.weights.push_back(here ? input.topk_weights[row.token * config.top_k + k] : 0.0F);
    }
  }
}

void fill_rows(const ExchangeConfig& config, const std::vector<RankInput>& inputs,
               const ReferenceRows& placed, RankReceived& received) {
  const std::size_t row_bytes =
      static_cast<std::size_t>(config.hidden) * element_bytes(config.dtype);
  bool weights_given = false;
  for (const RankInput& input : inputs)
    weights_given = weights_given || !input.topk_weights.empty();
  received.num_rows = static_cast<std::int64_t>(placed.rows.size());
  received.rows.resize(placed.rows.size() * row_bytes);
  for (std::size_t i = 0; i < placed.rows.size(); ++i) {
    const ReferenceRow& row = placed.rows[i];
    const bool valid = row.source >= 0;
    received.row_valid.push_back(valid ? 1 : 0);
    received.sources.push_back(row.source);
    received.sources.push_back(static_cast<std::int32_t>(row.token));
    received.sources.push_back(row.k);
    if (valid)
      std::memcpy(&received.rows[i * row_bytes], &inputs[row.source].tokens[row.token * row_bytes],
                  row_bytes);
    if (config.layout == Layout::kRankMajor || !weights_given) continue;
    received.weights.push_back(
        valid ? inputs[row.source].topk_weights[row.token * config.top_k + row.k] : 0.0F);
  }
}

}  // namespace

std::vector<ReferenceExpert> reference_experts(const ExchangeConfig& config, int num_ranks) {
  std::vector<ReferenceExpert> experts;
  std::vector<int> experts_so_far(num_ranks, 0);
  for (int rank = 0; config.expert_rank.empty() && rank < num_ranks; ++rank) {
    const int here =
        config.num_experts / num_ranks + (rank < config.num_experts % num_ranks ? 1 : 0);
    for (int local = 0; local < here; ++local) experts.push_back({rank, local});
  }
  for (const int rank : config.expert_rank) experts.push_back({rank, experts_so_far[rank]++});
  return experts;
}

std::int64_t reference_sent_expert(const ExchangeConfig& config, const RankInput& input,
                                   std::int64_t token, int k) {
  const std::int64_t entry = token * config.top_k + k;
  if (!input.token_mask.empty() && input.token_mask[token] == 0) return -1;
  if (!input.topk_mask.empty() && input.topk_mask[entry] == 0) return -1;
  return input.topk_ids[entry];
}

ReferenceRows reference_rows(const ExchangeConfig& config, const std::vector<RankInput>& inputs,
                             int rank) {
  ReferenceRows placed;
  placed.rank = rank;
  for (const ReferenceExpert& expert : reference_experts(config, static_cast<int>(inputs.size()))) {
    placed.num_local_experts += expert.rank == rank ? 1 : 0;
  }
  if (config.layout == Layout::kRankMajor) {
    place_rank_major(config, inputs, placed);
  } else {
    place_by_expert(config, inputs, placed);
  }
  return placed;
}

std::vector<RankReceived> reference_dispatch(const ExchangeConfig& config,
                                             const std::vector<RankInput>& inputs) {
  std::vector<RankReceived> all(inputs.size());
  for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
    const ReferenceRows placed = reference_rows(config, inputs, static_cast<int>(rank));
    count_rows(config, inputs, placed, all[rank]);
    fill_rows(config, inputs, placed, all[rank]);
    if (config.layout == Layout::kRankMajor)
      fill_rank_major_columns(config, inputs, placed, all[rank]);
  }
  return all;
}

}  // namespace ferry::internal

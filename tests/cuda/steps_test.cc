// The steps of the CUDA kernels, called from loops: their results equal those of placement on the
// host. Runs on every machine.
#include "cuda/steps.h"

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <vector>

#include "cuda/shape.h"
#include "exchange/random.h"
#include "routing/placement.h"

namespace ferry::internal {
namespace {

using test::Random;

// One exchange of some ranks with random routing, placed by both.
class Both {
 public:
  Both(Layout layout, int num_ranks, Random& random) : num_ranks_(num_ranks) {
    config_ = {.max_tokens = 200,
               .hidden = 8,
               .num_experts = static_cast<int>(random.between(1, 40)),
               .top_k = static_cast<int>(random.between(1, 32)),
               .layout = layout,
               .expert_alignment = layout == Layout::kExpertMajor ? random.between(1, 9) : 1,
               .expert_capacity = layout == Layout::kPadded ? 200 * 32 * num_ranks : 0};
    rules_ = {layout, config_.expert_alignment, config_.expert_capacity};
    for (int rank = 0; rank < num_ranks; ++rank) routes_.push_back(draw_route(rank, random));
    for (const Route& route : routes_) {
      counts_.emplace_back(rules_.count_row_size(route.active->map));
      count_entries(rules_, route, counts_.back().data());
    }
    std::vector<const std::int32_t*> rows;
    for (const auto& row : counts_) rows.push_back(row.data());
    for (Route& route : routes_) {
      ColumnSums sums;
      sum_columns(rules_, *route.active, rows, sums);
      place(rules_, rows, sums, route);
    }
  }

  void expect_same() {
    std::vector<std::int32_t> matrix;
    std::vector<Chunks> chunks;
    for (const Route& route : routes_) {
      chunks.push_back(count(route));
      matrix.insert(matrix.end(), chunks.back().row.begin(), chunks.back().row.end());
      EXPECT_EQ(chunks.back().row, counts_[chunks.size() - 1]);
    }
    for (int rank = 0; rank < num_ranks_; ++rank) expect_same_rows(rank, matrix, chunks[rank]);
  }

 private:
  struct Chunks {
    std::vector<std::int32_t> keys, ranks, counts, row;
  };

  Route draw_route(int rank, Random& random) const {
    Route route;
    route.active =
        std::make_shared<const ActiveSet>(config_, num_ranks_, rank, std::span<const int>{});
    route.num_tokens = random.one_in(4) ? 0 : random.between(1, config_.max_tokens);
    route.top_k = route.num_entries = config_.top_k;
    for (std::int64_t i = 0; i < route.num_tokens * config_.top_k; ++i)
      route.columns.push_back(
          static_cast<std::int32_t>(random.between(-1, config_.num_experts - 1)));
    return route;
  }

  CudaShape shape_of(int rank) {
    const ExpertMap& map = routes_[0].active->map;
    owner_.clear(), first_.assign(1, 0), experts_.clear();
    for (int expert = 0; expert < config_.num_experts; ++expert)
      owner_.push_back(map.owner(expert));
    for (int member = 0; member < num_ranks_; ++member) {
      experts_.insert(experts_.end(), map.columns_of(member).begin(), map.columns_of(member).end());
      first_.push_back(static_cast<std::int32_t>(experts_.size()));
    }
    CudaShape shape{};
    shape.num_ranks = num_ranks_, shape.rank = rank, shape.num_experts = config_.num_experts;
    shape.top_k = config_.top_k, shape.layout = config_.layout,
    shape.alignment = config_.expert_alignment;
    shape.expert_capacity = config_.expert_capacity;
    shape.experts.owner = owner_.data(), shape.experts.first_of = first_.data(),
    shape.experts.experts_of = experts_.data();
    return shape;
  }

  // The steps of count_kernel.
  Chunks count(const Route& route) {
    const CudaShape shape = shape_of(route.active->member);
    const int row_size = shape.count_row_size(), tokens = tokens_per_chunk(shape.top_k);
    const std::int64_t entries = route.num_tokens * shape.top_k,
                       all = num_chunks(route.num_tokens, shape.top_k);
    Chunks chunks{std::vector<std::int32_t>(entries),
                  std::vector<std::int32_t>(entries),
                  std::vector<std::int32_t>(all * row_size),
                  {}};
    for (std::int64_t i = 0; i < entries; ++i)
      chunks.keys[i] = key_of_entry(shape, &route.columns[i - i % shape.top_k],
                                    static_cast<int>(i % shape.top_k));
    for (std::int64_t chunk = 0; chunk < all; ++chunk) {
      const std::int64_t first = chunk * tokens * shape.top_k;
      const int size =
          static_cast<int>(std::min<std::int64_t>(entries - first, tokens * shape.top_k));
      std::int32_t keys[kChunkEntries], experts[kChunkEntries];
      std::fill_n(keys, kChunkEntries, kNoKey), std::fill_n(experts, kChunkEntries, kNoKey);
      std::copy_n(&chunks.keys[first], size, keys),
          std::copy_n(&route.columns[first], size, experts);
      std::int32_t* counts = &chunks.counts[chunk * row_size];
      for (int i = 0; i < size; ++i) {
        const InChunk among_keys = find_in_chunk(keys, i),
                      among_experts = find_in_chunk(experts, i);
        chunks.ranks[first + i] = among_keys.rank;
        if (keys[i] >= 0 && among_keys.last) counts[keys[i]] = among_keys.rank + 1;
        if (shape.rank_major() && experts[i] >= 0 && among_experts.last)
          counts[experts[i]] = among_experts.rank + 1;
      }
    }
    for (int column = 0; column < row_size; ++column)
      chunks.row.push_back(run_chunks(chunks.counts.data(), all, row_size, column));
    return chunks;
  }

  // The steps of place_kernel and send_kernel.
  void expect_same_rows(int rank, const std::vector<std::int32_t>& matrix, const Chunks& chunks) {
    const CudaShape shape = shape_of(rank);
    const Route& route = routes_[rank];
    std::vector<std::int32_t> all, next;
    for (int column = 0; column < shape.count_row_size(); ++column) {
      const ColumnSum sum = sum_column(shape, matrix.data(), column);
      all.push_back(sum.all), next.push_back(sum.before_me);
    }
    for (int member = 0; member < num_ranks_ && !shape.rank_major(); ++member) {
      std::int64_t start = 0;
      for (std::int32_t i = first_[member]; i < first_[member + 1];
           start += rows_taken(shape, all[experts_[i++]]))
        next[experts_[i]] += static_cast<std::int32_t>(start);
      if (shape.layout != Layout::kExpertMajor) continue;
      EXPECT_EQ(start, route.section_rows[member]);
    }
    for (std::int64_t token = 0; token < route.num_tokens; ++token) {
      const std::int32_t* before =
          chunks.counts.data() + token / tokens_per_chunk(shape.top_k) * shape.count_row_size();
      std::vector<CudaRef> refs, ordered(shape.top_k);
      for (int k = 0; k < shape.top_k; ++k) {
        const std::int64_t entry = token * shape.top_k + k;
        refs.push_back(
            row_of_entry(shape, chunks.keys[entry], chunks.ranks[entry], before, next.data()));
      }
      for (int k = 0; k < shape.top_k; ++k) {
        if (!shape.rank_major()) ordered[k] = refs[k];
        if (shape.rank_major() && refs[k].rank >= 0)
          ordered[order_of_ref(refs.data(), shape.top_k, k)] = refs[k];
      }
      for (int k = 0; k < shape.top_k; ++k) {
        const RowRef& expected = route.refs[token * shape.top_k + k];
        ASSERT_EQ(ordered[k].rank, expected.member) << "token " << token << ", k " << k;
        if (!expected.sent()) continue;
        ASSERT_EQ(ordered[k].row, expected.row) << "token " << token << ", k " << k;
      }
    }
  }

  int num_ranks_;
  ExchangeConfig config_;
  PlacementRules rules_{};
  std::vector<Route> routes_;
  std::vector<std::vector<std::int32_t>> counts_;
  std::vector<std::int32_t> owner_, first_, experts_;
};

class CudaSteps : public testing::TestWithParam<Layout> {};

TEST_P(CudaSteps, GiveTheRowsOfTheHost) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    Both both(GetParam(), static_cast<int>(random.between(1, 9)), random);
    both.expect_same();
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, CudaSteps,
                         testing::Values(Layout::kRankMajor, Layout::kExpertMajor, Layout::kPadded),
                         [](const auto& info) { return std::string(layout_name(info.param)); });

}  // namespace
}  // namespace ferry::internal

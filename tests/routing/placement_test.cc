// Placement: the rows of the entries of each rank in the buffers of their owners, compared with a
// plain loop over all sources, their tokens and their entries, in this order.
#include "routing/placement.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "ferry/exchange.h"

namespace ferry::internal {
namespace {

constexpr int kRanks = 3, kExperts = 7, kTopK = 3;
constexpr std::int64_t kTokens = 9;

ExchangeConfig config_of(Layout layout) {
  return {.max_tokens = kTokens,
          .hidden = 8,
          .num_experts = kExperts,
          .top_k = kTopK,
          .layout = layout};
}

// The entries that every rank sends, and the places of the entries of rank `me`.
class Case {
 public:
  Case(Layout layout, std::int64_t alignment, std::uint32_t seed)
      : rules_{layout, alignment, kRanks * kTokens} {
    std::mt19937 random(seed);
    for (int rank = 0; rank < kRanks; ++rank) {
      Route& route = routes_.emplace_back();
      route.active = std::make_shared<const ActiveSet>(config_of(layout), kRanks, rank,
                                                       std::span<const int>{});
      route.num_tokens = rank == 1 ? 0 : kTokens - rank;  // rank 1 has none
      route.top_k = route.num_entries = kTopK;
      for (std::int64_t i = 0; i < route.num_tokens * kTopK; ++i)
        route.columns.push_back(static_cast<int>(random() % (kExperts + 1)) - 1);
    }
    for (const Route& route : routes_) {
      counts_.emplace_back(rules_.count_row_size(route.active->map), -1);
      count_entries(rules_, route, counts_.back().data());
    }
    std::vector<const std::int32_t*> rows;
    for (const auto& row : counts_) rows.push_back(row.data());
    ColumnSums sums;  // reused by every dispatch, as in an exchange
    for (Route& route : routes_) {
      sum_columns(rules_, *route.active, rows, sums);
      place(rules_, rows, sums, route);
    }
  }

  const Route& route(int rank) const { return routes_[rank]; }
  const std::vector<std::int32_t>& counts(int rank) const { return counts_[rank]; }
  const ExpertMap& map() const { return routes_[0].active->map; }

  // The first row of a column in the buffer of its owner.
  std::int64_t start(int column) const {
    std::int64_t row = 0;
    for (const int other : map().columns_of(map().owner(column))) {
      if (other == column) return row;
      row += rules_.layout == Layout::kPadded ? rules_.expert_capacity : aligned(total(other));
    }
    return -1;
  }
  std::int64_t aligned(std::int64_t rows) const {
    return (rows + rules_.alignment - 1) / rules_.alignment * rules_.alignment;
  }
  std::int64_t total(int column) const {
    std::int64_t rows = 0;
    for (const Route& route : routes_)
      rows += std::count(route.columns.begin(), route.columns.end(), column);
    return rows;
  }

 private:
  PlacementRules rules_;
  std::vector<Route> routes_;
  std::vector<std::vector<std::int32_t>> counts_;
};

void expect_rows_by_expert(const Case& c) {
  std::map<int, std::int64_t> next;
  for (int rank = 0; rank < kRanks; ++rank) {
    const Route& route = c.route(rank);
    for (std::size_t i = 0; i < route.columns.size(); ++i) {
      const int column = route.columns[i];
      if (column < 0) {
        EXPECT_FALSE(route.refs[i].sent());
        continue;
      }
      EXPECT_EQ(route.refs[i].member, c.map().owner(column));
      EXPECT_EQ(route.refs[i].row, c.start(column) + next[column]++) << "rank " << rank;
    }
  }
}

void expect_each_row_once(const Route& route) {
  std::set<std::pair<int, int>> rows;
  for (const RowRef& ref : route.refs) {
    const bool is_new = !ref.sent() || rows.emplace(ref.member, ref.row).second;
    EXPECT_TRUE(is_new) << "row " << ref.row << " of member " << ref.member << " twice";
  }
  EXPECT_EQ(route.num_sent, std::ssize(rows));
}

TEST(Placement, ExpertMajorRowsAreByExpertSourceAndToken) {
  for (const std::int64_t alignment : {1, 4}) {
    const Case c(Layout::kExpertMajor, alignment, 11);
    expect_rows_by_expert(c);
    for (int rank = 0; rank < kRanks; ++rank) {
      const Route& route = c.route(rank);
      expect_each_row_once(route);
      std::int64_t rows = 0, running = 0;
      std::size_t source = 0;
      for (const int column : c.map().columns_of(rank)) {
        const int local = c.map().local(column);
        EXPECT_EQ(route.received.tokens_per_expert[local], c.total(column));
        EXPECT_EQ(route.received.aligned_tokens_per_expert[local], c.aligned(c.total(column)));
        EXPECT_EQ(route.received.expert_offsets[local], rows);
        rows += c.aligned(c.total(column));
        for (int from = 0; from < kRanks; ++from)
          EXPECT_EQ(route.received.running_counts[source++], running += c.counts(from)[column]);
      }
      EXPECT_EQ(route.received.num_rows, rows);
      EXPECT_EQ(route.section_rows[rank], rows);
    }
  }
}

TEST(Placement, PaddedSectionsAreACapacityApart) {
  const Case c(Layout::kPadded, 1, 12);
  expect_rows_by_expert(c);
  for (int rank = 0; rank < kRanks; ++rank) {
    std::int64_t most = 0;
    for (const int column : c.map().columns_of(rank)) most = std::max(most, c.total(column));
    EXPECT_EQ(c.route(rank).section_rows[rank], most);
    EXPECT_EQ(c.route(rank).received.num_rows, c.map().num_local(rank) * kRanks * kTokens);
  }
}

TEST(Placement, RankMajorSendsATokenOncePerRank) {
  const Case c(Layout::kRankMajor, 1, 13);
  std::vector<std::int64_t> next(kRanks, 0);
  for (int rank = 0; rank < kRanks; ++rank) {
    const Route& route = c.route(rank);
    expect_each_row_once(route);
    for (std::int64_t token = 0; token < route.num_tokens; ++token) {
      std::set<int> members;
      for (int k = 0; k < kTopK; ++k) {
        const int column = route.columns[token * kTopK + k];
        if (column >= 0) members.insert(c.map().owner(column));
      }
      const RowRef* ref = route.refs.data() + token * kTopK;
      for (const int member : members) {
        EXPECT_EQ(ref->member, member);
        EXPECT_EQ((ref++)->row, next[member]++);
      }
      for (std::size_t k = members.size(); k < kTopK; ++k) EXPECT_FALSE((ref++)->sent());
    }
  }
  std::int64_t all = 0;
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(c.route(rank).received.num_rows, next[rank]);
    EXPECT_EQ(c.route(rank).section_rows[rank], next[rank]);
    all += next[rank];
  }
  EXPECT_EQ(c.route(0).total_rows, all);
}

// Each of two ranks sums some of the columns for both; a third rank gets no sums.
TEST(Placement, SlicesAreTheSumsOfEveryRank) {
  for (const Layout layout : {Layout::kExpertMajor, Layout::kRankMajor}) {
    const Case c(layout, 1, 15);
    std::vector<const std::int32_t*> rows;
    for (int rank = 0; rank < kRanks; ++rank) rows.push_back(c.counts(rank).data());
    const std::size_t size = c.counts(0).size();
    std::vector<std::int32_t> before_0(size, -1), before_2(size, -1), all(size, -1);
    const std::vector<std::int32_t*> before{before_0.data(), nullptr, before_2.data()};
    for (const auto& [begin, end] : {std::pair<std::int64_t, std::int64_t>(0, 4), {4, size}})
      sum_slice(rows, {.begin = begin, .end = end, .before = before, .all = all.data()});
    for (const auto& [rank, slices] : {std::pair(0, before_0), std::pair(2, before_2)}) {
      ColumnSums sums;
      sum_columns({layout, 1, 0}, *c.route(rank).active, rows, sums);
      EXPECT_EQ(slices, sums.before_me);
      EXPECT_EQ(all, sums.all);
    }
  }
}

TEST(Placement, CountsAreThoseOfTheEntries) {
  const Case c(Layout::kRankMajor, 1, 14);
  for (int rank = 0; rank < kRanks; ++rank) {
    const std::vector<std::int32_t>& counts = c.counts(rank);
    ASSERT_EQ(counts.size(), static_cast<std::size_t>(kExperts + kRanks));
    for (int column = 0; column < kExperts; ++column) {
      const auto& columns = c.route(rank).columns;
      EXPECT_EQ(counts[column], std::count(columns.begin(), columns.end(), column));
    }
  }
  EXPECT_EQ(c.counts(1), std::vector<std::int32_t>(kExperts + kRanks, 0));
}

}  // namespace
}  // namespace ferry::internal

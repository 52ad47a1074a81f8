// Plan: one shape to measure, with the routing of all ranks and the rows that each must receive.
// Made once, before any rank runs; forked ranks inherit it. Also makes token contents, which are a
// function of (seed, rank, token). Read by rank_bench.cc, check.cc, limit.cc and the reports.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ferry/exchange.h"
#include "oracle/reference.h"
#include "tools/bench/options.h"

namespace ferry::bench {

struct Plan {
  Options options;  // iterations resolved by the caller
  ExchangeConfig config;
  std::vector<internal::RankInput> inputs;       // [R]: ids and weights; tokens are left out
  std::vector<internal::RankReceived> expected;  // [R]: of the oracle, without rows
  std::int64_t num_tokens = 0;                   // of all ranks
  std::int64_t num_rows = 0;                     // received by all ranks, padding not counted
  std::int64_t remote_rows = 0;                  // of these, sent by another rank
  double imbalance = 1;                          // rows of the busiest rank over the mean
};

// `tokens` is per rank where the options give no list. With Options::rebalance busy experts have
// copies. Throws std::invalid_argument when the
// routing does not fit the experts, or when this machine has not the memory.
Plan make_plan(const Options& options, std::int64_t tokens);

// Writes token `token` of `rank`: finite values of magnitude 1/8 to 2. Different `salt`s give
// different contents.
struct TokenName {
  std::uint64_t seed;
  std::uint64_t salt;
  int rank;
  std::int64_t token;
};
void fill_token(const TokenName& name, DataType dtype, std::int64_t hidden,
                std::byte* out) noexcept;

}  // namespace ferry::bench

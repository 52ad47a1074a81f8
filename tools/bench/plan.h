// Plan: one shape to measure, with the routing of all ranks and the rows that each rank must
// receive. It is made once, before any rank runs, and forked ranks inherit it. This file also makes
// the contents of tokens, which are a function of (seed, rank, token).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ferry/exchange.h"
#include "oracle/reference.h"
#include "tools/bench/options.h"

namespace ferry::bench {

struct Plan {
  Options options;  // the caller sets the number of iterations
  ExchangeConfig config;
  std::vector<internal::RankInput> inputs;       // [R]: ids and weights, without tokens
  std::vector<internal::RankReceived> expected;  // [R]: the result of the oracle, without rows
  std::int64_t num_tokens = 0;                   // summed over ranks
  std::int64_t num_rows = 0;                     // received by all ranks, without padding
  std::int64_t remote_rows = 0;                  // the part of num_rows that another rank sent
  double imbalance = 1;                          // the rows of the busiest rank over the mean
};

// `tokens` is the number of tokens of each rank, if the options have no list. With
// Options::rebalance, busy experts have replicas. Throws std::invalid_argument if the routing does
// not fit the experts, or if this machine has too little memory.
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

// Routing: which experts the tokens of a rank choose. The results depend only on the arguments,
// among them a seed, and on files, so that every rank can compute the choices of every rank.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tools/refuse.h"

namespace ferry::bench {

using tools::refuse;

struct RoutingSpec {
  enum class Kind : std::uint8_t { kUniform, kZipf, kReal, kLoad, kGroups, kIds };
  Kind kind = Kind::kUniform;
  double exponent = 0;    // kZipf: the i-th most popular expert has popularity 1 / i^exponent
  std::string file = {};  // kLoad, kIds
  int layer = -1;         // -1: with kLoad the layer of median skew, with kIds layer 0
  int groups = 1;         // kGroups: uniform within the groups of Gate
};

// Reads "uniform", "zipf:S", "real", "load:FILE[:LAYER]", "ids:FILE[:LAYER]" or "groups:G". Throws
// std::invalid_argument with the text.
RoutingSpec parse_routing(std::string_view text);

// splitmix64: it mixes the bits of a counter, so that a stream can start at any seed.
class Random {
 public:
  explicit Random(std::uint64_t seed) noexcept : state_(seed) {}
  std::uint64_t next() noexcept {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  double uniform() noexcept {
    return (static_cast<double>(next() >> 11) + 0.5) * 0x1p-53;
  }  // in (0, 1)

 private:
  std::uint64_t state_;
};

// How often each expert of a layer was chosen. Reads the file that SGLang's expert-distribution
// recorder writes (expert_load.cc). Its key "logical_count" is [layers, experts], or [steps,
// layers, experts], which is summed over steps. Layer -1 takes the layer of median skew (the
// busiest expert over the mean) among the layers with any count. Throws std::invalid_argument with
// the file and the reason.
std::vector<double> recorded_shares(const std::string& file, int layer, int num_experts);

// Popularity of each expert; the sum is 1. `tokens` (per rank) chooses between the decode and the
// prefill tables of kReal. The seed permutes kZipf and kReal, so that busy experts are on arbitrary
// ranks.
std::vector<double> expert_shares(const RoutingSpec& spec, int num_experts, std::int64_t tokens,
                                  std::uint64_t seed);

// The experts that the tokens of one rank choose, [tokens, top_k].
struct Choices {
  std::vector<std::int64_t> topk_ids;  // distinct within a token
  std::vector<float> topk_weights;     // positive; the sum for each token is 1
};

// How a token chooses its experts. Node-limited routing (DeepSeek-V3) puts the experts in `groups`
// equal groups, in order. A token then chooses experts of its best `top_groups` groups only. The
// score of a group is the sum of the scores of its best two experts.
struct Gate {
  // NOLINTNEXTLINE(google-explicit-constructor): a top-k is a gate without groups
  Gate(int k, int num_groups = 1, int num_top_groups = 1)
      : top_k(k), groups(num_groups), top_groups(num_top_groups) {}
  int top_k, groups, top_groups;
};

Gate gate_of(const RoutingSpec& spec, int top_k, int top_groups) noexcept;

// Draws experts without replacement, in proportion to their shares (the Gumbel top-k trick). The
// shares determine how often an expert is chosen; only the groups of the gate make some experts
// more likely to be chosen together. Throws std::invalid_argument if the gate does not fit the
// experts.
Choices choose_experts(const std::vector<double>& shares, std::int64_t tokens, const Gate& gate,
                       std::uint64_t seed, int rank);

// The ids of a router trace (router_trace.h), [tokens, top_k], where the routing is kIds; else
// none.
std::vector<int> ids_of(const RoutingSpec& spec, int top_k, int num_experts);

// Replaces the experts that were drawn for a rank by those of a trace, if there are any (ids_of).
// The ranks take the tokens of the trace in turn, the first for rank 0, and again from its begin
// when all were taken. Ranks with different numbers of tokens may take some of them twice.
void replay(std::span<const int> ids, int rank, Choices& choices);

}  // namespace ferry::bench

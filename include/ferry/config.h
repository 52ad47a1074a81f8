// ExchangeConfig: the configuration of an exchange. Shapes use T tokens of a rank, H hidden, K
// top-k, E experts, R ranks, L experts of a rank. docs/numerics.md has the arithmetic,
// docs/window_layout.md the order of rows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ferry/export.h"
#include "ferry/types.h"

namespace ferry {

// The rule that chooses one of the ranks with a shared expert for a token. Here and in
// ReplicaChoice, rank r is the r-th of DispatchArgs::active_ranks where they are given.
enum class SharedRule : std::uint8_t {
  kByRank,   // rank r, shared expert j: rank r % G + j * G, G = num_ranks / num_experts (CANN V2)
  kByToken,  // one shared expert: a rank divides its tokens into S runs, run i with
             // (i+1+r)*T/S - (i+r)*T/S of them; a shared rank keeps its own (CANN V1)
};

// Experts, on ranks of their own, that every active token goes to, unweighted. A token is active
// when its mask is not 0 and at least one of its entries is neither masked nor -1; the entry may
// name any expert. The row of shared expert j has k = K + j.
struct SharedExperts {
  int num_experts = 0;  // at most 4
  int num_ranks = 0;  // S, a multiple of num_experts: ranks [0, S); routed experts are on the ranks
                      // after them unless expert_rank says otherwise
  SharedRule rule = SharedRule::kByRank;
};

// Experts without a rank. Their ids follow those of the other experts, in this order. Entries for
// them are never sent: combine computes them at the source.
struct SpecialExperts {
  int zero = 0;      // add nothing
  int copy = 0;      // add w * token
  int constant = 0;  // add w * (a1 * token + a2 * v), see ConstantExperts

  int total() const noexcept { return zero + copy + constant; }
};

enum class ReplicaChoice : std::uint8_t {
  kByRank,   // instance r % count for rank r
  kByToken,  // instance token % count
  kByTable,  // DispatchArgs::replica_table
};

// Several experts as instances of one: top-k ids name logical experts, and the source chooses an
// instance. No expert is an instance of two.
struct Replicas {
  std::vector<std::vector<int>> instances = {};  // [logical experts]: experts; empty: no replicas
  ReplicaChoice choice = ReplicaChoice::kByRank;
};

// How rows are sent between nodes. On one node all values are the same.
enum class Algorithm : std::uint8_t {
  kAuto,          // chosen from the topology; Exchange::algorithm has the choice and its reason
  kFullmesh,      // a token crosses once for every rank it goes to
  kHierarchical,  // once for every group of each level, from the outermost down to the nodes; the
                  // mate there forwards to its group, and sums its rows for the return
  kAllgather,     // the same way to every node, which picks what it needs
};

// The algorithm that kAuto has chosen in an exchange.
struct AlgorithmChoice {
  Algorithm algorithm = Algorithm::kFullmesh;
  std::string reason;  // one sentence, with numbers
};

// The data that another node returns to the source of a token (docs/numerics.md).
enum class NodeSums : std::uint8_t {
  kRowType,  // the sum of its rows there, rounded to their type
  kFp32,     // the sum in float32
  kExact,    // every row: the result is that of one node, bit for bit
};

// All members but `workers` must be equal on all ranks; they are compared when the exchange is
// created.
struct ExchangeConfig {
  std::int64_t max_tokens = 0;  // most tokens that any rank gives to one dispatch
  std::int64_t hidden = 0;      // H, elements in a token
  int num_experts = 0;          // E, without shared and special ones
  int top_k = 0;                // K, at most 32
  DataType dtype = DataType::kBf16;
  Layout layout = Layout::kExpertMajor;
  // kExpertMajor: each expert's first row is a multiple of this; all layouts: rounds
  // Handle::aligned_tokens_per_expert.
  std::int64_t expert_alignment = 1;
  // Zeroes the gap rows of kExpertMajor, between an expert's last row and the next expert's first,
  // and the rows of kPadded past an expert's count.
  bool zero_gaps = false;
  // Not with kPadded: rows that a rank can receive; 0: only memory limits them.
  std::int64_t row_capacity = 0;
  // Only with kPadded: rows per expert, C in [L, C, H]; 0: max_tokens for each rank that dispatches
  // tokens, and at least 1.
  std::int64_t expert_capacity = 0;
  // Owner of each expert; empty: contiguous blocks whose sizes differ by at most one.
  std::vector<int> expert_rank = {};
  // The ranks that dispatch tokens; empty: all. A dispatch with tokens on another rank is refused.
  // With tp_size > 1 token_ranks and expert_ranks name ranks of a domain, as expert_rank does: all
  // ranks of a tensor-parallel group have the same roles.
  std::vector<int> token_ranks = {};
  // The ranks that own experts, shared ones too; empty: those of expert_rank, or all. Without
  // expert_rank they own contiguous blocks, in the order of this list.
  std::vector<int> expert_ranks = {};
  // Bytes of the widest row that combine takes; 0: hidden * 4.
  std::int64_t max_output_row_bytes = 0;
  // Operations in flight, 1 to 16.
  int depth = 2;
  // Threads that move rows for this rank, the caller included; may differ between ranks.
  int workers = 1;

  Wire wire = Wire::kNone;
  CombineWire combine_wire = CombineWire::kNone;
  ScaleOrder scale_order = ScaleOrder::kRowMajor;
  // Only with Wire::kNone: bytes of the caller's scales that are sent unchanged with each token; a
  // multiple of 4 with kColumnMajor.
  std::int64_t scale_bytes = 0;
  SharedExperts shared = {};
  SpecialExperts special = {};
  Replicas replicas = {};
  // Tensor-parallel ranks that receive the same rows, 1 to 8: rank r has tp_rank r % tp_size in its
  // group of tp_size neighbours, and is rank r / tp_size of the expert-parallel domain of that
  // tp_rank. Each domain dispatches its own tokens. Every rank of a group receives the rows of all
  // its domains: inside each expert those of its own domain first, then those of the next tp_rank
  // (cyclic). Combine adds the rows of a group, and rounds the sum to their type, before it is
  // sent.
  int tp_size = 1;

  // Between nodes.
  Algorithm algorithm = Algorithm::kAuto;
  NodeSums node_sums = NodeSums::kRowType;
};

// Bytes of shared memory of one rank, for a configuration on `num_ranks` ranks.
struct WindowBytes {
  // Committed at creation: one receive buffer, for balanced routing and a margin.
  std::uint64_t expected;
  // Reserved: all buffers, if every rank sends all its tokens here. 0 for a rank without experts.
  std::uint64_t worst;
};
// `rank` needs a receive buffer if it owns experts, and lists of the rows that it sends if it is
// one of token_ranks. Without `rank`: the bytes of a rank that has both. Throws
// Error(kInvalidArgument) for a configuration that an exchange refuses.
FERRY_EXPORT WindowBytes window_bytes(const ExchangeConfig& config, int num_ranks, int rank);
FERRY_EXPORT WindowBytes window_bytes(const ExchangeConfig& config, int num_ranks);

}  // namespace ferry

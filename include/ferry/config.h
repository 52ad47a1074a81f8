// ExchangeConfig: what an exchange is. Shapes use T tokens of a rank, H hidden, K top-k, E experts,
// R ranks, L experts of a rank. Semantics: design, sections 4 and 5; docs/numerics.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ferry/export.h"
#include "ferry/types.h"

namespace ferry {

// Which of the ranks that hold a shared expert a token goes to.
enum class SharedRule : std::uint8_t {
  kByRank,   // rank r, shared expert j: rank r % G + j * G, G = num_ranks / num_experts (CANN V2)
  kByToken,  // one shared expert: a rank deals its tokens out in S runs, run i with
             // (i+1+r)*T/S - (i+r)*T/S of them; a shared rank keeps its own (CANN V1)
};

// Experts that every token goes to that takes part, unweighted, on ranks of their own. A token
// takes part when its mask says so and one of its entries is neither masked nor -1, wherever it
// leads. The row of shared expert j has k = K + j.
struct SharedExperts {
  int num_experts = 0;  // at most 4
  int num_ranks = 0;    // S, a multiple of num_experts: ranks [0, S); routed experts start behind
                        // them unless expert_rank says otherwise
  SharedRule rule = SharedRule::kByRank;
};

// Experts without a rank: their ids follow the others, in this order, and are never sent. Combine
// computes them at the source.
struct SpecialExperts {
  int zero = 0;      // add nothing
  int copy = 0;      // add w * token
  int constant = 0;  // add w * (a1 * token + a2 * v), see ConstantExperts

  int total() const noexcept { return zero + copy + constant; }
};

enum class ReplicaChoice : std::uint8_t {
  kByRank,   // instance rank % count
  kByToken,  // instance token % count
  kByTable,  // DispatchArgs::replica_table
};

// Several experts that stand for one: top-k ids name logical experts, the source chooses. No expert
// stands for two.
struct Replicas {
  std::vector<std::vector<int>> instances = {};  // [logical experts]: experts; empty: no replicas
  ReplicaChoice choice = ReplicaChoice::kByRank;
};

// How rows cross the links between nodes. On one node all of them are the same.
enum class Algorithm : std::uint8_t {
  kAuto,          // chosen from the topology; Exchange::algorithm says what and why
  kFullmesh,      // a token crosses once for every rank it goes to
  kHierarchical,  // once for every group of each level, from the outermost down to the nodes; the
                  // mate there serves its group, and sums its rows on the way home
  kAllgather,     // the same way to every node, which picks what it needs
};

// What kAuto stands for in an exchange.
struct AlgorithmChoice {
  Algorithm algorithm = Algorithm::kFullmesh;
  std::string reason;  // one sentence, with numbers
};

// What comes home from another node for a token (design 5).
enum class NodeSums : std::uint8_t {
  kRowType,  // the sum of its rows there, rounded to their type
  kFp32,     // the sum in float32
  kExact,    // every row: the result is that of one node, bit for bit
};

// Equal on all ranks; compared when the exchange is created.
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
  // Zeroes the rows between an expert's last row and the next expert's first.
  bool zero_gaps = false;
  // Rows a rank can receive; 0: whatever comes, memory permitting.
  std::int64_t row_capacity = 0;
  // kPadded: rows per expert, C in [L, C, H]; 0: R * max_tokens.
  std::int64_t expert_capacity = 0;
  // Owner of each expert; empty: contiguous blocks, as even as can be.
  std::vector<int> expert_rank = {};
  // Widest row that combine takes; 0: hidden * 4.
  std::int64_t max_output_row_bytes = 0;
  // Operations in flight, 1 to 16.
  int depth = 2;
  // Threads that move rows for this rank, the caller included; may differ between ranks.
  int workers = 1;

  Wire wire = Wire::kNone;
  CombineWire combine_wire = CombineWire::kNone;
  ScaleOrder scale_order = ScaleOrder::kRowMajor;
  // kNone: bytes of the caller's own scales that travel with each token, as they are.
  std::int64_t scale_bytes = 0;
  SharedExperts shared = {};
  SpecialExperts special = {};
  Replicas replicas = {};
  // Tensor parallel ranks that receive the same rows, 1 to 8: rank r is rank r / tp_size of its
  // expert-parallel domain and tp_rank r % tp_size in its group of tp_size neighbours. Each domain
  // dispatches its own tokens; every rank of a group receives the rows of all, inside each expert
  // its own domain's first, then the next tp_rank's (cyclic). Combine adds the rows of a group,
  // rounded to their type, before they travel.
  int tp_size = 1;

  // Between nodes.
  Algorithm algorithm = Algorithm::kAuto;
  NodeSums node_sums = NodeSums::kRowType;

  // What a front asks for in its own words (DispatchArgs::terms). Where ranks differ in it, that is
  // what they are told.
  std::string terms = {};
};

// Bytes of shared memory of one rank, for a configuration on `num_ranks` ranks.
struct WindowBytes {
  // Committed at creation: balanced routing and a margin, one receive buffer.
  std::uint64_t expected;
  // Reserved: all buffers, every token of every rank sent here.
  std::uint64_t worst;
};
FERRY_EXPORT WindowBytes window_bytes(const ExchangeConfig& config, int num_ranks);

}  // namespace ferry

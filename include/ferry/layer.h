// Layer: a Mixture-of-Experts layer in one call: dispatch, experts, combine.
//
//   ferry::Layer layer(group, {.max_tokens = 128, .hidden = 7168, .num_experts = 256, .top_k = 8});
//   layer.run({.tokens = ..., .topk_ids = ..., .topk_weights = ..., .out = ...},
//             [&](std::span<const ferry::ExpertRows> ready) { (the GEMMs of these experts) });
//
// It schedules and computes nothing itself: every expert is the caller's.
#pragma once

#include <functional>
#include <span>

#include "ferry/exchange.h"

namespace ferry {

// What one expert of this rank computes: all its rows of this batch, n > 0.
struct ExpertRows {
  int expert = 0;      // local
  Rows rows = {};      // [n, H], dense, of the wire's type; source rank, then token
  Scales scales = {};  // of these rows, where they have any
  // [n, H], dense, of out_type, to be written in this call; combine reads it there, on other ranks
  // maybe after Layer::run returned
  void* out = nullptr;
  std::shared_ptr<const void> pin = {};  // keeps the memory of both
};
// Computes experts, one or more, in ascending order.
using Experts = std::function<void(std::span<const ExpertRows>)>;

struct LayerArgs {
  Rows tokens = {};                      // [T, H]
  TopkIds topk_ids = {};                 // [T, K]
  const float* topk_weights = nullptr;   // [T, K]; null: plain sum
  void* out = nullptr;                   // [T, H], dense, of out_type
  DataType out_type = DataType::kBf16;   // of the experts' rows and of the result
  std::chrono::nanoseconds deadline{0};  // of each call of the exchange; 0: the group's
  // As of DispatchArgs, of each batch. A rank that is left out makes the same call: no expert is
  // called, and `out` stays as it was.
  const std::int32_t* replica_table = nullptr;
  std::span<const int> active_ranks = {};
  // The second half of the tokens travels while the experts compute the first, whose results travel
  // while they compute the second. Between hosts, with FERRY_PROGRESS=thread. The same on all
  // ranks; needs depth 2.
  bool two_batches = false;
  std::vector<Handle>* handles = nullptr;  // gets what the dispatch of each batch learned
};

class FERRY_EXPORT Layer {
 public:
  Layer() = default;
  // Collective. Throws as Exchange does, and Error(kInvalidArgument) for another layout than
  // kExpertMajor.
  Layer(const Group& group, const ExchangeConfig& config);
  // Of an exchange that is there, and is used by others too; throws likewise, and is local.
  explicit Layer(Exchange exchange);

  // Collective. Each expert with rows is computed in one call. A call has all experts whose rows
  // have come since the one before, when rows of others may still be on their way; results are
  // those of dispatch, all experts and combine in a row, bit for bit. A call that throws ends this
  // one on all ranks, here with what it threw as kInvalidArgument, which the group's deadline
  // bounds; the layer goes on.
  [[nodiscard]] Status run(const LayerArgs& args, const Experts& experts) noexcept;

  Exchange& exchange() noexcept { return exchange_; }

 private:
  Exchange exchange_;
};

}  // namespace ferry

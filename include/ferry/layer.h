// Layer: a Mixture-of-Experts layer in one call: dispatch, experts, combine.
//
//   ferry::Layer layer(group, {.max_tokens = 128, .hidden = 7168, .num_experts = 256, .top_k = 8});
//   layer.run({.tokens = ..., .topk_ids = ..., .topk_weights = ..., .out = ...},
//             [&](std::span<const ferry::ExpertRows> ready) { (the GEMMs of these experts) });
//
// It only schedules; the caller computes every expert.
#pragma once

#include <functional>
#include <span>

#include "ferry/exchange.h"

namespace ferry {

// The input of one expert of this rank: all its rows of this batch, n > 0.
struct ExpertRows {
  int expert = 0;      // local
  Rows rows = {};      // [n, H], dense, of the wire's type, ordered by source rank, then token
  Scales scales = {};  // of these rows, if they have scales
  // [n, H], dense, of out_type, to be written in this call. Combine reads it in place, and other
  // ranks may still do so after Layer::run has returned
  void* out = nullptr;
  std::shared_ptr<const void> pin = {};  // keeps the memory of rows and results
};
// Computes experts, one or more, in ascending order.
using Experts = std::function<void(std::span<const ExpertRows>)>;

struct LayerArgs {
  Rows tokens = {};                      // [T, H]
  TopkIds topk_ids = {};                 // [T, K]
  const float* topk_weights = nullptr;   // [T, K]; null: plain sum
  void* out = nullptr;                   // [T, H], dense, of out_type
  DataType out_type = DataType::kBf16;   // type of the experts' results and of `out`
  std::chrono::nanoseconds deadline{0};  // for each call of the exchange; 0: that of the group
  // Both as in DispatchArgs, for each batch. A rank that is not active makes the same call: no
  // expert is called, and `out` is unchanged.
  const std::int32_t* replica_table = nullptr;
  std::span<const int> active_ranks = {};
  // The second half of the tokens is dispatched while the experts compute the first, and the
  // results of the first half are combined while they compute the second. Between hosts this needs
  // FERRY_PROGRESS=thread. The same on all ranks; needs depth 2.
  bool two_batches = false;
  std::vector<Handle>* handles = nullptr;  // cleared, then gets the handle of each batch
};

class FERRY_EXPORT Layer {
 public:
  Layer() = default;
  // Collective. Throws as Exchange does, and Error(kInvalidArgument) for a layout other than
  // kExpertMajor.
  Layer(const Group& group, const ExchangeConfig& config);
  // Makes a layer on an existing exchange, which may have other users. Throws
  // Error(kInvalidArgument) for a layout other than kExpertMajor. Local.
  explicit Layer(Exchange exchange);

  // Collective. An expert that has rows of a batch is in one call of `experts` for that batch. Each
  // call gets all experts whose rows have arrived since the previous call, while rows of others may
  // still be missing. Results equal those of dispatch, all experts and combine one after the other,
  // bit for bit. If `experts` throws, run() ends on all ranks within the group's deadline, on this
  // rank with kInvalidArgument and the exception's text. The layer stays usable, as it does when
  // it is refused memory (kCapacity).
  [[nodiscard]] Status run(const LayerArgs& args, const Experts& experts) noexcept;

  Exchange& exchange() noexcept { return exchange_; }

 private:
  Exchange exchange_;
};

}  // namespace ferry

// CANN's MegaMoe: dispatch, a product with weight1, SwiGLU, a product with weight2 and combine in
// one call, as ferry::Layer schedules them.
//
//   ferry::cann::MegaMoeContext context(group, {.moe_expert_num = 256, .max_tokens = 128,
//                                               .topk = 8, .hidden = 7168, .intermediate = 2048},
//                                       (a product of your library));
//   mega_moe(context, {.x = ..., .topk_ids = ..., .weight1 = ..., .weight2 = ..., .y = ...});
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "ferry/cann.h"
#include "ferry/layer.h"

namespace ferry::cann {

// c [rows, columns] = a [rows, depth] times weights [columns, depth] transposed; dense, of one
// type.
struct Product {
  const void* a = nullptr;
  const void* weights = nullptr;
  void* c = nullptr;
  std::int64_t rows = 0, columns = 0, depth = 0;
  DataType dtype = DataType::kBf16;
};

// The settings of all calls; equal on all ranks.
struct MegaMoeShape {
  int moe_expert_num = 0;
  std::int64_t max_tokens = 0;  // most Bs of any rank
  int topk = 0;
  std::int64_t hidden = 0, intermediate = 0;
  DataType dtype = DataType::kBf16;  // or kFp32
};

// Quantised weights and rows, biases and masks are not supported.
struct MegaMoeArgs {
  Rows x = {};                                     // (Bs, H)
  Matrix<const std::int32_t> topk_ids = {};        // (Bs, K); -1: not sent
  Matrix<const float> topk_weights = {};           // (Bs, K); null: plain sum
  std::span<const void* const> weight1 = {};       // for each local expert (2 I, H), gates first
  std::span<const void* const> weight2 = {};       // for each local expert (H, I)
  RowsOut y = {};                                  // (Bs, H)
  std::span<std::int32_t> expert_token_nums = {};  // (localE), or empty
};

// The result of get_symm_buffer_for_mega_moe: the exchange that calls of one shape share. One
// caller at a time.
class FERRY_EXPORT MegaMoeContext {
 public:
  // Collective. Throws as Layer does. `product` computes every product. If it throws, the call is
  // refused on all ranks.
  MegaMoeContext(const Group& group, const MegaMoeShape& shape,
                 std::function<void(const Product&)> product);

 private:
  friend FERRY_EXPORT Result mega_moe(MegaMoeContext& context, const MegaMoeArgs& args) noexcept;

  MegaMoeShape shape_;
  std::function<void(const Product&)> product_;
  Layer layer_;
};

// Collective. SwiGLU is computed in float32 and rounded once. A call that is refused on one rank is
// refused on all, and the next call works.
FERRY_EXPORT Result mega_moe(MegaMoeContext& context, const MegaMoeArgs& args) noexcept;

}  // namespace ferry::cann

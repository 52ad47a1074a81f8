// mega_moe compared with a dense layer in double precision, in both types; and refused arguments.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>

#include "exchange/frame.h"
#include "ferry/cann_mega_moe.h"

namespace ferry::test {
namespace {

constexpr int kRanks = 3, kExperts = 6, kLocal = 2, kTopk = 2;
constexpr std::int64_t kHidden = 8, kInner = 12;
constexpr cann::MegaMoeShape kShape{kExperts, 9, kTopk, kHidden, kInner, DataType::kFp32};

template <typename T>
double value_of(T value) {
  if constexpr (std::is_same_v<T, float>) return value;
  return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16);
}
template <typename T>
T from(float value) {
  if constexpr (std::is_same_v<T, float>) return value;
  return static_cast<T>(std::bit_cast<std::uint32_t>(value) >> 16);
}

template <typename T>
void multiply(const cann::Product& call) {
  const auto* a = static_cast<const T*>(call.a);
  const auto* weights = static_cast<const T*>(call.weights);
  for (std::int64_t row = 0; row < call.rows; ++row)
    for (std::int64_t column = 0; column < call.columns; ++column) {
      double sum = 0;
      for (std::int64_t i = 0; i < call.depth; ++i)
        sum += value_of(a[row * call.depth + i]) * value_of(weights[column * call.depth + i]);
      static_cast<T*>(call.c)[row * call.columns + column] = from<T>(static_cast<float>(sum));
    }
}

template <typename T>
std::vector<T> random(std::int64_t count, int seed) {
  std::mt19937 engine(seed);
  std::uniform_real_distribution<float> numbers(-1, 1);
  std::vector<T> all(count);
  for (T& each : all) each = from<T>(numbers(engine));
  return all;
}

// The tokens of a rank, and the weights of all experts.
template <typename T>
struct Inputs {
  explicit Inputs(int rank)
      : bs(rank == 1 ? 0 : 5 + rank),
        x(random<T>(bs * kHidden, rank)),
        topk_weights(random<float>(bs * kTopk, 50 + rank)) {
    for (int i = 0; i < bs * kTopk; ++i) ids.push_back((rank + i * i) % kExperts);
    for (int e = 0; e < kExperts; ++e) {
      gate_up.push_back(random<T>(2 * kInner * kHidden, 100 + e));
      down.push_back(random<T>(kHidden * kInner, 200 + e));
    }
    for (int e = 0; e < kLocal; ++e) {
      weight1.push_back(gate_up[rank * kLocal + e].data());
      weight2.push_back(down[rank * kLocal + e].data());
    }
    y.resize(bs * kHidden);
  }

  cann::MegaMoeArgs args(DataType dtype) {
    return {.x = {x.data(), bs, kHidden, dtype},
            .topk_ids = {ids.data(), bs, kTopk},
            .topk_weights = {topk_weights.data(), bs, kTopk},
            .weight1 = weight1,
            .weight2 = weight2,
            .y = {y.data(), bs, kHidden, dtype},
            .expert_token_nums = numbers};
  }

  double expected(std::int64_t token, std::int64_t column) const {
    double sum = 0;
    for (int k = 0; k < kTopk; ++k) {
      const std::int32_t e = ids[token * kTopk + k];
      const auto dot = [&](std::int64_t row) {
        double product = 0;
        for (std::int64_t i = 0; i < kHidden; ++i)
          product += value_of(x[token * kHidden + i]) * value_of(gate_up[e][row * kHidden + i]);
        return product;
      };
      for (std::int64_t i = 0; i < kInner; ++i) {
        const double gate = dot(i);
        sum += topk_weights[token * kTopk + k] * value_of(down[e][column * kInner + i]) * gate /
               (1 + std::exp(-gate)) * dot(kInner + i);
      }
    }
    return sum;
  }

  std::int64_t bs;
  std::vector<T> x, y;
  std::vector<float> topk_weights;
  std::vector<std::int32_t> ids;
  std::vector<std::vector<T>> gate_up, down;
  std::vector<const void*> weight1, weight2;
  std::vector<std::int32_t> numbers = std::vector<std::int32_t>(kLocal);
};

template <typename T>
void run_layer(const Group& group, DataType dtype, double tolerance) {
  cann::MegaMoeShape shape = kShape;
  shape.dtype = dtype;
  cann::MegaMoeContext context(group, shape, multiply<T>);
  Inputs<T> inputs(group.rank());
  const cann::Result result = mega_moe(context, inputs.args(dtype));
  require(result.ok(), result.message());
  for (std::int64_t i = 0; i < inputs.bs * kHidden; ++i) {
    const double wanted = inputs.expected(i / kHidden, i % kHidden);
    require(std::abs(value_of(inputs.y[i]) - wanted) < tolerance, "y[" + std::to_string(i) + "]");
  }
  std::vector<std::int32_t> counts(kLocal);
  for (int rank = 0; rank < kRanks; ++rank)
    for (const std::int32_t id : Inputs<T>(rank).ids)
      if (id / kLocal == group.rank()) ++counts[id % kLocal];
  require(inputs.numbers == counts, "expert_token_nums");
}

TEST(MegaMoe, IsTheDenseLayer) {
  run_ranks(Mode::kThreads, kRanks, [](const Group& group) {
    run_layer<float>(group, DataType::kFp32, 1e-5);
    run_layer<std::uint16_t>(group, DataType::kBf16, 0.05);
  });
}

TEST(MegaMoe, IsRefusedOnAllRanksAndGoesOn) {
  struct Wrong {
    std::function<void(cann::MegaMoeArgs&)> spoil;
    cann::StatusCode code;
    const char* part;
  };
  const std::vector<Wrong> wrong = {
      {[](auto& args) { args.topk_ids.data = nullptr; }, cann::StatusCode::kNullPointer,
       "topk_ids"},
      {[](auto& args) { args.weight2 = args.weight2.first(1); }, cann::StatusCode::kTilingError,
       "weight2 has 1 experts, need 2"},
      {[](auto& args) { args.topk_ids.columns = 1; }, cann::StatusCode::kTilingError, "2 columns"},
      {[](auto& args) { args.topk_weights.rows = 1; }, cann::StatusCode::kTilingError,
       "topk_weights is (1, 2), need (7, 2)"},
      {[](auto& args) { args.y.dtype = DataType::kFp16; }, cann::StatusCode::kInvalidParameter,
       "y"},
      {[](auto& args) { args.x.dtype = DataType::kBf16; }, cann::StatusCode::kInvalidParameter,
       "bf16"}};
  run_ranks(Mode::kThreads, kRanks, [&](const Group& group) {
    const bool odd = group.rank() == 2;
    cann::MegaMoeContext context(group, kShape, multiply<float>);
    Inputs<float> inputs(group.rank());
    for (const Wrong& each : wrong) {
      cann::MegaMoeArgs args = inputs.args(DataType::kFp32);
      if (odd) each.spoil(args);
      const cann::Result result = mega_moe(context, args);
      require(result.code == (odd ? each.code : cann::StatusCode::kTilingError) &&
                  contains(result.message(), each.part),
              result.message());
    }
    require(mega_moe(context, inputs.args(DataType::kFp32)).ok(), "it goes on");
    cann::MegaMoeShape shape = kShape;
    if (odd) shape.dtype = DataType::kFp16;
    try {
      const cann::MegaMoeContext none(group, shape, multiply<float>);
      throw Failure("a layer of fp16");
    } catch (const Error& error) {
      require(contains(error.what(), "dtype is fp16"), error.what());
    }
  });
}

}  // namespace
}  // namespace ferry::test

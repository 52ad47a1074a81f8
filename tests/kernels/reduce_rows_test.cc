// reduce_rows on every SIMD target against a plain loop, bit for bit.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernel_fixtures.h"
#include "kernels/kernels.h"

namespace ferry::internal::testing {
namespace {

constexpr DataType kTypes[] = {DataType::kBf16, DataType::kFp16, DataType::kFp32};
constexpr int kHiddens[] = {0,  1,  2,  3,  7,  8,   9,   15,  17,  31, 32,
                            33, 63, 64, 65, 96, 100, 129, 255, 257, 513};
constexpr int kRowCounts[] = {0, 1, 2, 3, 8, 9, kMaxRows};

// The definition in kernels.h, one element after the other. `volatile` keeps the compiler from
// fusing the product.
std::vector<std::byte> plain_sum(const ReduceRows& args) {
  const std::size_t row_bytes = element_bytes(args.row_type),
                    out_bytes = element_bytes(args.out_type);
  std::vector<std::byte> out(static_cast<std::size_t>(args.hidden) * out_bytes);
  for (std::size_t h = 0; h < static_cast<std::size_t>(args.hidden); ++h) {
    float sum = 0.0f;
    for (const void* bias : args.bias) {
      if (bias != nullptr)
        sum += to_float(static_cast<const std::byte*>(bias) + h * out_bytes, args.out_type);
    }
    for (int k = 0; k < args.num_rows; ++k) {
      const float x =
          to_float(static_cast<const std::byte*>(args.rows[k]) + h * row_bytes, args.row_type);
      volatile float product = x;
      if (args.weights != nullptr) product = args.weights[k] * x;
      sum += product;
    }
    from_float(sum, out.data() + h * out_bytes, args.out_type);
  }
  return out;
}

// Values of many magnitudes, and exact zeros.
void fill_values(GuardedRow& row, DataType type, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> exponent(-20, 8);
  for (std::size_t i = 0; i < row.bytes(); i += element_bytes(type)) {
    const float value = random() % 16 == 0 ? 0.0f : std::ldexp(normal(random), exponent(random));
    from_float(value, row.data() + i, type);
  }
}

struct Case {
  DataType row_type, out_type;
  int hidden, num_rows, num_biases;
  bool weighted;
  int in_place_of;  // which bias `out` is, -1 for none
  Stores stores;
};

Case random_case(DataType row_type, DataType out_type, std::mt19937& random) {
  Case c{row_type,
         out_type,
         kHiddens[random() % std::size(kHiddens)],
         kRowCounts[random() % std::size(kRowCounts)],
         static_cast<int>(random() % 3),
         random() % 2 == 0,
         -1,
         random() % 2 == 0 ? Stores::kCached : Stores::kStreaming};
  if (c.num_biases > 0 && random() % 2 == 0)
    c.in_place_of = static_cast<int>(random() % static_cast<unsigned>(c.num_biases));
  return c;
}

void check_case(const Case& c, std::mt19937& random) {
  const auto hidden = static_cast<std::size_t>(c.hidden);
  std::vector<GuardedRow> rows;
  std::vector<const void*> pointers;
  std::vector<float> weights;
  for (int k = 0; k < c.num_rows; ++k) {
    rows.emplace_back(hidden * element_bytes(c.row_type), random(), kInputGuard);
    fill_values(rows.back(), c.row_type, random);
    weights.push_back(static_cast<float>(random() % 100000) / 50000.0f - 1.0f);
  }
  pointers.reserve(rows.size());
  for (const GuardedRow& row : rows) pointers.push_back(row.data());
  GuardedRow out(hidden * element_bytes(c.out_type), random(), kOutputGuard);
  std::vector<GuardedRow> biases;
  for (int i = 0; i < c.num_biases; ++i) {
    biases.emplace_back(hidden * element_bytes(c.out_type), random(), kInputGuard);
    fill_values(biases.back(), c.out_type, random);
  }
  ReduceRows args{pointers.data(),
                  c.weighted ? weights.data() : nullptr,
                  c.num_rows,
                  c.row_type,
                  {nullptr, nullptr},
                  out.data(),
                  c.out_type,
                  c.hidden,
                  c.stores};
  for (int i = 0; i < c.num_biases; ++i) args.bias[i] = biases[static_cast<std::size_t>(i)].data();
  if (c.in_place_of >= 0) {
    std::memcpy(out.data(), args.bias[c.in_place_of], out.bytes());
    args.bias[c.in_place_of] = out.data();
  }
  const std::vector<std::byte> expected = plain_sum(args);
  reduce_rows(args);
  stores_fence();
  ASSERT_EQ(out.copy(), expected) << "hidden " << c.hidden << ", rows " << c.num_rows << ", biases "
                                  << c.num_biases;
  ASSERT_TRUE(out.guards_intact()) << "hidden " << c.hidden;
}

// Runs body(row_type, out_type) for all types on every SIMD target.
template <typename Body>
void for_each_type(Body body) {
  for_each_target_and_order([&] {
    for (const DataType row_type : kTypes) {
      for (const DataType out_type : kTypes) {
        SCOPED_TRACE(std::string(data_type_name(row_type)) + " to " + data_type_name(out_type));
        body(row_type, out_type);
      }
    }
  });
}

TEST(ReduceRows, EqualsAPlainLoopForAnyShapeTypeAndAlignment) {
  for_each_type([](DataType row_type, DataType out_type) {
    std::mt19937 random(kSeed);
    for (int i = 0; i < 300 && !::testing::Test::HasFatalFailure(); ++i) {
      check_case(random_case(row_type, out_type, random), random);
    }
  });
}

using Bytes = std::vector<std::byte>;

Bytes row_of(float value, DataType type, std::size_t hidden) {
  Bytes row(hidden * element_bytes(type));
  for (std::size_t h = 0; h < hidden; ++h) {
    from_float(value, row.data() + h * element_bytes(type), type);
  }
  return row;
}

struct WeightedRow {
  float weight;
  Bytes row;
};

using Reduce = void (*)(const ReduceRows&);
void plain_reduce(const ReduceRows& args) {
  const Bytes sum = plain_sum(args);
  std::memcpy(args.out, sum.data(), sum.size());
}

Bytes sum_of(Reduce reduce, const std::vector<WeightedRow>& terms, DataType row_type,
             DataType out_type) {
  std::vector<const void*> rows;
  std::vector<float> weights;
  for (const WeightedRow& term : terms) {
    rows.push_back(term.row.data());
    weights.push_back(term.weight);
  }
  const std::size_t hidden = terms[0].row.size() / element_bytes(row_type);
  Bytes out = row_of(7.0f, out_type, hidden);
  reduce({.rows = rows.data(),
          .weights = weights.data(),
          .num_rows = static_cast<int>(rows.size()),
          .row_type = row_type,
          .out = out.data(),
          .out_type = out_type,
          .hidden = static_cast<std::int64_t>(hidden)});
  return out;
}

// weight * x needs 31 bits; added to the negative of its rounded value it gives exactly 0, but the
// rounding error if product and sum were fused.
TEST(ReduceRows, ProductIsRoundedBeforeItIsAdded) {
  const float weight = std::bit_cast<float>(0x3f800001u), x = 1.0f + 0x1p-7f;
  volatile float product = weight * x;
  ASSERT_NE(std::fma(weight, x, -product), 0.0f);
  constexpr std::size_t kHidden = 333;
  for_each_type([&](DataType row_type, DataType out_type) {
    const Bytes one = row_of(1.0f, row_type, kHidden), other = row_of(x, row_type, kHidden);
    const Bytes sum = sum_of(reduce_rows, {{-product, one}, {weight, other}}, row_type, out_type);
    EXPECT_EQ(sum, row_of(0.0f, out_type, kHidden));
  });
}

TEST(ReduceRows, RowsAreAddedInTheirOrder) {
  constexpr DataType kType = DataType::kFp32;
  const Bytes large = row_of(1e30f, kType, 77), one = row_of(1.0f, kType, 77);
  for_each_target_and_order([&] {
    EXPECT_EQ(sum_of(reduce_rows, {{1, large}, {-1, large}, {1, one}}, kType, kType), one);
    EXPECT_EQ(sum_of(reduce_rows, {{1, large}, {1, one}, {-1, large}}, kType, kType),
              row_of(0.0f, kType, 77));
  });
}

TEST(ReduceRows, InfinitiesOverflowsAndOneNanEqualThePlainLoop) {
  const std::uint32_t specials[] = {0x7f800000, 0xff800000, 0x7fc00000, 0xffc12345, 0x7f800001,
                                    0xffbfffff, 0x7fffffff, 0xffffffff, 0x7f7fffff, 0xff7fffff,
                                    0x00000001, 0x80000000, 0x477ff000, 0x33000001};
  constexpr std::size_t kHidden = 211;
  for_each_type([&](DataType row_type, DataType out_type) {
    const std::size_t width = element_bytes(row_type);
    Bytes row(kHidden * width);
    for (std::size_t h = 0; h < kHidden; ++h) {
      from_float(std::bit_cast<float>(specials[h % std::size(specials)]), &row[h * width],
                 row_type);
    }
    const std::vector<WeightedRow> terms{{0.5f, row_of(-1.5f, row_type, kHidden)}, {1.0f, row}};
    EXPECT_EQ(sum_of(reduce_rows, terms, row_type, out_type),
              sum_of(plain_reduce, terms, row_type, out_type));
  });
}

// Floats half way between two bf16 values, just below it and just above, where the lower value is
// even and where it is odd; the largest finite value is one of them. Each float at the even
// elements meets each at the odd ones. The rows hold 0 and 1, so that each sum is one of the
// weights.
TEST(ReduceRows, EveryPairOfNeighboursRoundsToTheNearestAndHalvesToEven) {
  constexpr std::size_t kHidden = 98;
  std::vector<float> values;
  for (const std::uint32_t kept : {0x0000u, 0x0001u, 0x3f80u, 0x3f81u, 0x7f7eu, 0x7f7fu, 0xbf81u}) {
    for (const std::uint32_t cut : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      values.push_back(std::bit_cast<float>(kept << 16 | cut));
  }
  for_each_type([&](DataType row_type, DataType out_type) {
    Bytes even = row_of(0.0f, row_type, kHidden), odd = even;
    for (std::size_t h = 0; h < kHidden; ++h)
      from_float(1.0f, &(h % 2 == 0 ? even : odd)[h * element_bytes(row_type)], row_type);
    for (const float a : values) {
      for (const float b : values) {
        const std::vector<WeightedRow> terms{{a, even}, {b, odd}};
        ASSERT_EQ(sum_of(reduce_rows, terms, row_type, out_type),
                  sum_of(plain_reduce, terms, row_type, out_type))
            << a << " " << b;
      }
    }
  });
}

// NaNs at even elements only, and at odd ones only.
TEST(ReduceRows, InfinityOrNanBesideNumbersStaysWhatItIs) {
  for_each_type([&](DataType row_type, DataType out_type) {
    const std::size_t width = element_bytes(row_type);
    for (const std::uint32_t special : {0x7f800000u, 0xff800000u, 0x7fc00000u, 0xffc12345u}) {
      for (const std::size_t first : {0, 1}) {
        Bytes row = row_of(1.5f, row_type, 70);
        for (std::size_t h = first; h < 70; h += 2)
          from_float(std::bit_cast<float>(special), &row[h * width], row_type);
        const std::vector<WeightedRow> terms{{1.0f, row}};
        EXPECT_EQ(sum_of(reduce_rows, terms, row_type, out_type),
                  sum_of(plain_reduce, terms, row_type, out_type));
      }
    }
  });
}

// Some of the payloads would carry into the sign if they were rounded as numbers are.
TEST(ReduceRows, NanWeightGivesNanEverywhere) {
  constexpr std::size_t kHidden = 65;
  for_each_type([&](DataType row_type, DataType out_type) {
    for (const std::uint32_t bits : {0x7fc00000u, 0x7fffffffu, 0xffffffffu, 0x7fc08001u}) {
      const std::vector<WeightedRow> terms{
          {std::bit_cast<float>(bits), row_of(2.0f, row_type, kHidden)}};
      const Bytes sum = sum_of(reduce_rows, terms, row_type, out_type);
      EXPECT_EQ(sum, sum_of(plain_reduce, terms, row_type, out_type));
      for (std::size_t h = 0; h < kHidden; ++h) {
        EXPECT_TRUE(std::isnan(to_float(&sum[h * element_bytes(out_type)], out_type))) << h;
      }
    }
  });
}

TEST(ReduceRows, TouchesNoPageOutsideItsRows) {
  for_each_type([](DataType row_type, DataType out_type) {
    FencedPages in(4096), bias(4096), out(4096);
    for (const int hidden : kHiddens) {
      const std::size_t in_bytes = static_cast<std::size_t>(hidden) * element_bytes(row_type);
      const std::size_t out_bytes = static_cast<std::size_t>(hidden) * element_bytes(out_type);
      for (const Stores stores : {Stores::kCached, Stores::kStreaming}) {
        const void* first = in.first();
        const void* last = in.last(in_bytes);
        reduce_rows({&first,
                     nullptr,
                     1,
                     row_type,
                     {bias.first(), nullptr},
                     out.first(),
                     out_type,
                     hidden,
                     stores});
        reduce_rows({&last,
                     nullptr,
                     1,
                     row_type,
                     {nullptr, bias.last(out_bytes)},
                     out.last(out_bytes),
                     out_type,
                     hidden,
                     stores});
      }
    }
  });
}

}  // namespace
}  // namespace ferry::internal::testing

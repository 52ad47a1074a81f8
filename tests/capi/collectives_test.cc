// Collectives through the C ABI: each call against the same call of C++, and what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "capi/objects.h"
#include "ferry/collectives.h"
#include "seat.h"

namespace ferry::test {
namespace {

using Floats = std::vector<float>;

// The collectives of one rank by C, and of the same group by C++.
class Pair {
 public:
  explicit Pair(ferry_group* group)
      : rank(ferry_group_rank(group)), size(ferry_group_size(group)), cpp(group->group) {
    auto options = sized<ferry_collectives_options>();
    options.window_bytes = 8192;
    expect_ok(ferry_collectives_create(group, &options, &c));
    for (int peer = 0; peer < size; ++peer) counts.push_back(1000 * ((peer + 1) % size) + peer);
    for (const std::int64_t count : counts) sum += count;
    for (std::int64_t i = 0; i < sum; ++i) in.push_back(static_cast<float>(rank * 100'000 + i) / 8);
  }
  ~Pair() { ferry_collectives_destroy(c); }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;

  ferry_collective_args args(const float* from, float* to) const {
    auto args = sized<ferry_collective_args>();
    args.in = from;
    args.out = to;
    args.count = counts[static_cast<std::size_t>(rank)];
    args.counts = counts.data();
    args.dtype = FERRY_TYPE_FP32;
    args.op = FERRY_REDUCE_AVG;
    args.root = 1;
    return args;
  }

  // Makes the call by C and by C++, each with `elements` of its own for the result.
  template <typename ByC, typename ByCpp>
  void compare(std::int64_t elements, const ByC& by_c, const ByCpp& by_cpp) {
    Floats seen(static_cast<std::size_t>(elements), -1), expected = seen;
    expect_ok(by_c(seen.data()));
    const Status status = by_cpp(expected.data());
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(seen, expected);
  }

  int rank, size;
  Collectives cpp;
  ferry_collectives* c = nullptr;
  std::vector<std::int64_t> counts;
  std::int64_t sum = 0;
  Floats in;
};

constexpr auto kType = DataType::kFp32;
constexpr auto kOp = ReduceOp::kAvg;
constexpr int kRoot = 1, kMembers = 3;

TEST(CapiCollectives, ReductionsAreThoseOfCpp) {
  on_ranks(kMembers, [](ferry_group* group) {
    Pair pair(group);
    const float* const in = pair.in.data();
    const std::int64_t own = pair.counts[static_cast<std::size_t>(pair.rank)];
    const auto whole = [&](float* out) {
      auto args = pair.args(in, out);
      args.count = pair.sum;
      return args;
    };
    pair.compare(
        own,
        [&](float* out) {
          const auto args = pair.args(in, out);
          return ferry_reduce_scatter_v(pair.c, &args);
        },
        [&](float* out) { return pair.cpp.reduce_scatter_v(in, pair.counts, out, kType, kOp); });
    pair.compare(
        pair.sum,
        [&](float* out) {
          const auto args = whole(out);
          return ferry_all_reduce(pair.c, &args);
        },
        [&](float* out) { return pair.cpp.all_reduce(in, out, pair.sum, kType, kOp); });
    pair.compare(
        pair.sum,
        [&](float* out) {
          const auto args = whole(pair.rank == kRoot ? out : nullptr);
          return ferry_reduce(pair.c, &args);
        },
        [&](float* out) { return pair.cpp.reduce(in, out, pair.sum, kType, kOp, kRoot); });
  });
}

TEST(CapiCollectives, MovesAreThoseOfCpp) {
  on_ranks(kMembers, [](ferry_group* group) {
    Pair pair(group);
    const float* const in = pair.in.data();
    const auto own = pair.counts[static_cast<std::size_t>(pair.rank)];
    const std::vector<std::int64_t> each(static_cast<std::size_t>(pair.size), own);
    pair.compare(
        own * pair.size,
        [&](float* out) {
          auto args = pair.args(in, out);
          args.out_counts = each.data();
          return ferry_all_to_all_v(pair.c, &args);
        },
        [&](float* out) { return pair.cpp.all_to_all_v(in, pair.counts, out, each, kType); });
    pair.compare(
        pair.sum,
        [&](float* out) {
          const auto args = pair.args(in, out);
          return ferry_all_gather_v(pair.c, &args);
        },
        [&](float* out) { return pair.cpp.all_gather_v(in, own, out, pair.counts, kType); });
    pair.compare(
        pair.sum,
        [&](float* out) {
          const auto args = pair.args(in, out);
          return ferry_gather_v(pair.c, &args);
        },
        [&](float* out) { return pair.cpp.gather_v(in, out, pair.counts, kType, kRoot); });
    pair.compare(
        own,
        [&](float* out) {
          const auto args = pair.args(pair.rank == kRoot ? in : nullptr, out);
          return ferry_scatter_v(pair.c, &args);
        },
        [&](float* out) { return pair.cpp.scatter_v(in, out, pair.counts, kType, kRoot); });
    pair.compare(
        pair.sum,
        [&](float* out) {
          std::copy(pair.in.begin(), pair.in.end(), out);
          auto args = pair.args(nullptr, out);
          args.count = pair.sum;
          return ferry_broadcast(pair.c, &args);
        },
        [&](float* out) {
          std::copy(pair.in.begin(), pair.in.end(), out);
          return pair.cpp.broadcast(out, pair.sum, kType, kRoot);
        });
  });
}

TEST(CapiCollectives, MemoryIsReadInPlace) {
  on_ranks(2, [](ferry_group* group) {
    constexpr std::int64_t kCount = 8192;
    constexpr auto kBytes = static_cast<std::int64_t>(kCount * sizeof(float));
    auto options = sized<ferry_collectives_options>();
    options.shared_bytes = 2 * kBytes;
    ferry_collectives* c = nullptr;
    expect_ok(ferry_collectives_create(group, &options, &c));
    ferry_memory *memory = nullptr, *more = nullptr;
    expect_ok(ferry_collectives_allocate(c, 2 * kBytes, &memory));
    auto* const data = static_cast<float*>(ferry_memory_data(memory));
    expect_error(ferry_collectives_allocate(c, 1, &more), FERRY_CAPACITY, {"shared_bytes"});
    EXPECT_EQ(more, nullptr);
    expect_error(ferry_collectives_allocate(c, -1, &more), FERRY_INVALID_ARGUMENT, {"bytes is -1"});
    expect_error(ferry_collectives_allocate(nullptr, 1, &more), FERRY_INVALID_ARGUMENT,
                 {"collectives is NULL"});
    expect_error(ferry_collectives_allocate(c, 1, nullptr), FERRY_INVALID_ARGUMENT,
                 {"memory is NULL"});
    const std::int64_t counts[] = {kCount, kCount};
    const int rank = ferry_group_rank(group);
    float* const mine = data + rank * kCount;
    std::fill_n(mine, kCount, static_cast<float>(rank + 1));
    auto args = sized<ferry_collective_args>();
    args.in = mine;
    args.out = data;
    args.count = kCount;
    args.counts = counts;
    args.dtype = FERRY_TYPE_FP32;
    expect_ok(ferry_all_gather_v(c, &args));
    for (std::int64_t i = 0; i < 2 * kCount; ++i) ASSERT_EQ(data[i], i < kCount ? 1.F : 2.F);
    ferry_memory_release(memory);
    ferry_memory_release(nullptr);
    EXPECT_EQ(ferry_memory_data(nullptr), nullptr);
    expect_ok(ferry_collectives_allocate(c, 2 * kBytes, &memory));
    ferry_collectives_destroy(c);
    *static_cast<float*>(ferry_memory_data(memory)) = 1;  // it outlives the collectives
    ferry_memory_release(memory);
  });
}

TEST(CapiCollectives, Messages) {
  on_ranks(2, [](ferry_group* group) {
    Pair pair(group);
    float data[3] = {1, 2, 3};
    auto args = sized<ferry_message_args>();
    args.count = 3;
    args.tag = -7;
    args.dtype = FERRY_TYPE_FP32;
    std::int32_t source = -1;
    if (pair.rank == 1) {
      args.in = data;
      expect_ok(ferry_send(pair.c, &args));
    } else {
      float out[3] = {};
      args.out = out;
      args.peer = -1;
      args.count = 2;
      expect_error(ferry_recv(pair.c, &args, &source), FERRY_MISMATCH,
                   {"rank 1 sent 12 bytes of fp32 with tag -7"});
      args.count = 3;
      expect_ok(ferry_recv(pair.c, &args, &source));
      EXPECT_TRUE(source == 1 && out[2] == 3);
      args.peer = 1;
      args.deadline_ns = -1;
      expect_error(ferry_recv(pair.c, &args, nullptr), FERRY_INVALID_ARGUMENT, {"-1 ns"});
      args.struct_size = 15;
      expect_error(ferry_recv(pair.c, &args, nullptr), FERRY_INVALID_ARGUMENT, {"struct_size"});
      expect_error(ferry_send(nullptr, &args), FERRY_INVALID_ARGUMENT, {"collectives is NULL"});
    }
    expect_ok(ferry_barrier(pair.c, 0));
  });
}

TEST(CapiCollectives, ARefusalOfOneRankReachesTheOthers) {
  on_ranks(kMembers, [](ferry_group* group) {
    Pair pair(group);
    std::vector<float> memory(static_cast<std::size_t>(pair.sum));
    float* const data = memory.data();
    const auto refused = [&](auto change, const char* text) {
      auto args = pair.args(data, data);
      args.count = 4;
      if (pair.rank == 2) change(args);
      expect_error(ferry_all_reduce(pair.c, &args),
                   pair.rank == 2 ? FERRY_INVALID_ARGUMENT : FERRY_PEER_REJECTED, {text});
      EXPECT_EQ(ferry_last_error_rank(), 2);
    };
    refused([](ferry_collective_args& args) { args.struct_size = 12; }, "struct_size is 12");
    refused([](ferry_collective_args& args) { args.version = 9; }, "version is 9");
    refused([](ferry_collective_args& args) { args.in = nullptr; }, "in is null");
    refused([](ferry_collective_args& args) { args.dtype = 300; }, "dtype is 255");
    refused([](ferry_collective_args& args) { args.op = -1; }, "cannot be reduced with op unknown");
    refused([](ferry_collective_args& args) { args.count = INT64_MAX; },
            "count is 9223372036854775807");
    refused([](ferry_collective_args& args) { args.deadline_ns = -5; }, "the deadline is -5 ns");
    auto args = pair.args(data, data);
    args.count = 4;
    if (pair.rank == 2) args.root = std::int64_t{1} << 32;  // 0 as an int
    expect_error(ferry_broadcast(pair.c, &args),
                 pair.rank == 2 ? FERRY_INVALID_ARGUMENT : FERRY_PEER_REJECTED, {"root is -1"});
    if (pair.rank == 2) args.counts = nullptr;
    args.root = 0;
    expect_error(ferry_gather_v(pair.c, &args),
                 pair.rank == 2 ? FERRY_INVALID_ARGUMENT : FERRY_PEER_REJECTED,
                 {"counts has 0 elements"});
    expect_ok(ferry_barrier(pair.c, 0));
  });
}

TEST(CapiCollectives, CreationIsRefusedOnAllRanks) {
  on_ranks(2, [](ferry_group* group) {
    const bool bad = ferry_group_rank(group) == 1;
    ferry_collectives* made = nullptr;
    auto options = sized<ferry_collectives_options>();
    if (bad) options.struct_size = 20;
    expect_error(ferry_collectives_create(group, &options, &made),
                 bad ? FERRY_INVALID_ARGUMENT : FERRY_PEER_REJECTED, {"struct_size is 20"});
    EXPECT_EQ(made, nullptr);
    options = sized<ferry_collectives_options>();
    expect_error(ferry_collectives_create(group, &options, bad ? nullptr : &made),
                 bad ? FERRY_INVALID_ARGUMENT : FERRY_PEER_REJECTED, {"collectives is NULL"});
    expect_error(ferry_collectives_create(nullptr, nullptr, &made), FERRY_INVALID_ARGUMENT,
                 {"group is NULL"});
    options.window_bytes = bad ? 8192 : 4096;
    expect_error(ferry_collectives_create(group, &options, &made), FERRY_MISMATCH,
                 {"window_bytes", "4096", "8192"});
    expect_ok(ferry_collectives_create(group, nullptr, &made));
    expect_ok(ferry_barrier(made, 0));
    ferry_collectives_destroy(made);
    ferry_collectives_destroy(nullptr);
  });
}

TEST(CapiCollectives, NamesOfOperations) {
  EXPECT_STREQ(ferry_reduce_op_name(FERRY_REDUCE_BXOR), "bxor");
  EXPECT_STREQ(ferry_reduce_op_name(8), "unknown");
  EXPECT_EQ(ferry_element_bytes(FERRY_TYPE_UINT64), 8U);
}

}  // namespace
}  // namespace ferry::test

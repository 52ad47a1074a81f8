// Shared by the tests of the C ABI: sized structs, ranks as threads, and a small exchange with
// calls that fit it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ferry/ferry.h"

namespace ferry::test {

template <typename Struct>
Struct sized() {
  Struct made = {};
  made.struct_size = sizeof made;
  made.version = FERRY_ABI_VERSION;
  return made;
}

inline std::string last_message() { return ferry_last_error_message(); }

inline void expect_ok(ferry_code code) { EXPECT_EQ(code, FERRY_OK) << last_message(); }

// Expects the code, and a message with all parts.
inline void expect_error(ferry_code seen, ferry_code expected,
                         const std::vector<std::string>& parts) {
  EXPECT_EQ(seen, expected) << last_message();
  for (const std::string& part : parts)
    EXPECT_NE(last_message().find(part), std::string::npos)
        << part << " not in: " << last_message();
}

using Body = std::function<void(ferry_group*)>;

inline void on_ranks(int size, const Body& body, const ferry_group_options* options = nullptr) {
  const auto play = [](ferry_group* group, void* context) {
    (*static_cast<const Body*>(context))(group);
    return FERRY_OK;
  };
  expect_ok(ferry_run_threads(size, play, const_cast<Body*>(&body), options));
}

// 8 tokens of 32 float32 for 6 experts, two each.
inline constexpr int kTokens = 8, kHidden = 32, kExperts = 6, kTopK = 2;

inline ferry_config small_config() {
  auto config = sized<ferry_config>();
  config.max_tokens = kTokens;
  config.hidden = kHidden;
  config.num_experts = kExperts;
  config.top_k = kTopK;
  config.dtype = FERRY_TYPE_FP32;
  config.layout = FERRY_LAYOUT_EXPERT_MAJOR;
  return config;
}

// The exchange of one rank and the arrays of its calls. Token t goes to experts t and t + 3 with
// weights 1/2: with experts that return their rows, the result of a token is the token.
class Seat {
 public:
  explicit Seat(ferry_group* group, const ferry_config& config = small_config()) {
    for (int t = 0; t < kTokens; ++t) {
      for (int i = 0; i < kHidden; ++i)
        tokens.push_back(static_cast<float>(ferry_group_rank(group) * 1000 + t * 10 + i));
      ids.insert(ids.end(), {t % kExperts, (t + 3) % kExperts});
    }
    expect_ok(ferry_exchange_create(group, &config, &exchange));
  }
  ~Seat() {
    ferry_received_release(&received);
    ferry_exchange_destroy(exchange);
  }
  Seat(const Seat&) = delete;
  Seat& operator=(const Seat&) = delete;

  ferry_dispatch_args dispatch_args() const {
    auto args = sized<ferry_dispatch_args>();
    args.tokens = tokens.data();
    args.num_tokens = kTokens;
    args.hidden = kHidden;
    args.dtype = FERRY_TYPE_FP32;
    args.topk_ids = ids.data();
    args.topk_ids_type = FERRY_INDEX_INT64;
    args.top_k = kTopK;
    return args;
  }
  ferry_combine_args combine_args() {
    auto args = sized<ferry_combine_args>();
    args.handle = received.handle;
    args.expert_rows = received.data;
    args.num_rows = received.num_rows;
    args.hidden = received.hidden;
    args.dtype = received.dtype;
    args.topk_weights = weights.data();
    args.out = out.data();
    args.out_dtype = FERRY_TYPE_FP32;
    return args;
  }

  ferry_code dispatch() {
    const ferry_dispatch_args args = dispatch_args();
    return ferry_dispatch(exchange, &args, &received);
  }
  ferry_code combine() {
    const ferry_combine_args args = combine_args();
    return ferry_combine(exchange, &args);
  }
  // A dispatch and a combine, which must work after a failed call.
  void expect_works() {
    std::fill(out.begin(), out.end(), -1.0F);
    expect_ok(dispatch());
    expect_ok(combine());
    EXPECT_EQ(out, tokens);
  }

  ferry_exchange* exchange = nullptr;
  ferry_received received = sized<ferry_received>();
  std::vector<float> tokens, out = std::vector<float>(kTokens * kHidden);
  std::vector<float> weights = std::vector<float>(kTokens * kTopK, 0.5F);
  std::vector<std::int64_t> ids;
};

}  // namespace ferry::test

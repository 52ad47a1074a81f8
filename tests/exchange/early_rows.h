// For tests of tokens that are reduced early: choices of experts with which some tokens can be
// reduced early, and the rows of the result that are written while a combine waits.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <vector>

#include "player.h"

namespace ferry::test {

inline bool is_early(std::int64_t token) { return token % 2 == 0; }

inline ExchangeConfig early_config() {
  return {.max_tokens = 24, .hidden = 96, .num_experts = 12, .top_k = 3};
}

// Each member owns a block of equally many experts. Early tokens have no expert of the last member,
// the others have one. Tokens 4, 12 and so on have no row at all; only special experts add to them.
inline std::vector<std::int64_t> early_ids(const ExchangeConfig& config, int rank,
                                           int num_members) {
  const int last = config.num_experts / num_members * (num_members - 1);
  std::vector<std::int64_t> ids;
  for (std::int64_t token = 0; token < config.max_tokens; ++token) {
    for (int k = 0; k < config.top_k; ++k) ids.push_back((token + k + rank) % last);
    if (!is_early(token)) ids.end()[-1] = last + token % (config.num_experts - last);
    if (token % 8 == 4) std::fill_n(ids.end() - config.top_k, config.top_k, -1);
    if (token % 8 == 4 && config.special.copy > 0) ids.back() = config.num_experts;
  }
  return ids;
}

// A thread that plays a rank calls this now and then while it waits.
inline thread_local std::function<void()> while_waiting;

inline GroupOptions that_look() {
  const auto look = [] {
    if (while_waiting) while_waiting();
    return false;
  };
  return {.deadline = std::chrono::seconds(30), .interrupted = look};
}

// The rows of `out` of a call that is not finished.
class Rows {
 public:
  Rows(const CombineCall& call, const CombineCase& combine, int rank)
      : args_(call.args()), expected_(combine.expected[rank].out) {
    row_bytes_ = combine.hidden * static_cast<std::int64_t>(element_bytes(args_.out_dtype));
  }

  bool done(std::int64_t token) const {
    return std::memcmp(row(token), &expected_[token * row_bytes_], row_bytes_) == 0;
  }
  bool untouched(std::int64_t token) const {
    return std::all_of(row(token), row(token) + row_bytes_,
                       [](std::byte b) { return b == std::byte{0xa5}; });
  }
  // Whether all early tokens are reduced and no other row has been written.
  bool early_ones_are_done() const {
    for (std::int64_t token = 0; token < count(); ++token)
      if (is_early(token) ? !done(token) : !untouched(token)) return false;
    return true;
  }

 private:
  std::int64_t count() const { return std::ssize(expected_) / row_bytes_; }
  const std::byte* row(std::int64_t token) const {
    const std::int64_t pitch = args_.out_pitch_bytes ? args_.out_pitch_bytes : row_bytes_;
    return static_cast<const std::byte*>(args_.out) + token * pitch;
  }

  const CombineArgs& args_;
  const std::vector<std::byte>& expected_;
  std::int64_t row_bytes_;
};

}  // namespace ferry::test

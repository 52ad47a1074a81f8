// Limits on the arguments of a collective call, as pure functions. Each returns ok, or a refusal
// that names the value and the limit. They are applied before a rank writes anything.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ferry/status.h"
#include "ferry/types.h"

namespace ferry::internal {

class CallArguments {
 public:
  // `members` [ranks]: those with which data can be exchanged; null: all. Must outlive this.
  CallArguments(int rank, int num_ranks, DataType dtype,
                const std::vector<bool>* members = nullptr) noexcept;

  // The first refusal of all checks so far; ok while there is none.
  const Status& refusal() const noexcept { return refusal_; }

  // Returns the sum, or 0 after a refusal.
  std::int64_t counts(const char* name, std::span<const std::int64_t> counts);
  void count(std::int64_t count);
  // counts[rank] is the count of this rank.
  void own_count(std::int64_t count, std::span<const std::int64_t> counts);
  // Checks that there is memory at `data` if `count` is not 0.
  void memory(const char* name, const void* data, std::int64_t count);
  struct Memory {
    const void* data;
    std::int64_t count;
  };
  // Checks that `in` and `out` share no byte. With `place`, `in` may begin `place` elements after
  // `out`.
  void apart(const Memory& in, const Memory& out, std::optional<std::int64_t> place = {});
  void op(ReduceOp op);
  void peer(const char* name, int peer, int least = 0);
  void deadline(std::int64_t ns);

 private:
  template <typename... Values>
  void refuse(fmt::format_string<Values...> text, Values&&... values) noexcept;

  int rank_, num_ranks_;
  DataType dtype_;
  const std::vector<bool>* members_;
  Status refusal_;
};

}  // namespace ferry::internal

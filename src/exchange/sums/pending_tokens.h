// PendingTokens: the tokens of a combine that are not reduced yet, and those of them that can be
// reduced now. Tokens are reduced in passes while outputs or sums of some ranks are missing. The
// exchange keeps this object, so that its memory is allocated once.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ferry::internal {

class PendingTokens {
 public:
  // Makes all tokens [0, num_tokens) pending.
  void restart(std::int64_t num_tokens);

  // Makes pending tokens ready for which `is_ready(token)` holds: the first ones, at most `most`.
  // If these are too few for a pass, makes none ready and returns false.
  template <typename IsReady>
  bool find_ready(const IsReady& is_ready, std::int64_t most) {
    ready_.clear();
    for (const std::int32_t token : pending_) {
      if (std::ssize(ready_) == most) break;
      if (is_ready(token)) ready_.push_back(token);
    }
    return keep_if_worth_a_pass();
  }
  // The most tokens of a pass during which other ranks may wait for this rank.
  std::int64_t few() const noexcept { return (num_tokens_ + kPasses - 1) / kPasses; }

  // Both are in ascending order.
  std::span<const std::int32_t> ready() const noexcept { return ready_; }
  std::span<const std::int32_t> pending() const noexcept { return pending_; }
  // Call when the ready tokens are reduced.
  void drop_ready();

 private:
  // A pass reduces tokens out of order, which takes longer, so it must have at least one in kPasses
  // of all tokens. So there are at most kPasses passes.
  static constexpr std::int64_t kPasses = 16;

  bool keep_if_worth_a_pass();

  std::int64_t num_tokens_ = 0;
  std::vector<std::int32_t> pending_, ready_;
};

}  // namespace ferry::internal

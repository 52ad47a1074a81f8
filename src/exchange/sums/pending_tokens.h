// PendingTokens: the tokens of a combine that are not reduced, and those of them that can be
// reduced now. They are reduced in passes while outputs or sums of some ranks are missing. Kept by
// the exchange, so that its memory is allocated once.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ferry::internal {

class PendingTokens {
 public:
  // All of [0, num_tokens).
  void restart(std::int64_t num_tokens);

  // Makes ready the first pending tokens for which `is_ready(token)` holds, at most `most`. False,
  // and none is ready, where they are too few to be worth a pass.
  template <typename IsReady>
  bool find_ready(const IsReady& is_ready, std::int64_t most) {
    ready_.clear();
    for (const std::int32_t token : pending_) {
      if (std::ssize(ready_) == most) break;
      if (is_ready(token)) ready_.push_back(token);
    }
    return keep_if_worth_a_pass();
  }
  // As many as a pass takes where other ranks may wait for this one meanwhile.
  std::int64_t few() const noexcept { return (num_tokens_ + kPasses - 1) / kPasses; }

  // Both ascend.
  std::span<const std::int32_t> ready() const noexcept { return ready_; }
  std::span<const std::int32_t> pending() const noexcept { return pending_; }
  // The ready tokens are reduced.
  void drop_ready();

 private:
  // A pass walks tokens out of order, which pays only for at least one in kPasses of them. So there
  // are at most kPasses passes.
  static constexpr std::int64_t kPasses = 16;

  bool keep_if_worth_a_pass();

  std::int64_t num_tokens_ = 0;
  std::vector<std::int32_t> pending_, ready_;
};

}  // namespace ferry::internal

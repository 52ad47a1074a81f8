#include "exchange/sums/pending_tokens.h"

#include <numeric>

#include "base/check.h"

namespace ferry::internal {

void PendingTokens::restart(std::int64_t num_tokens) {
  num_tokens_ = num_tokens;
  ready_.clear();
  pending_.resize(num_tokens);
  std::iota(pending_.begin(), pending_.end(), 0);
}

bool PendingTokens::keep_if_worth_a_pass() {
  if (std::ssize(ready_) * kPasses < num_tokens_) ready_.clear();
  return !ready_.empty();
}

// Both lists ascend. Tokens that became ready since find_ready() stay pending.
void PendingTokens::drop_ready() {
  const std::size_t remaining = pending_.size() - ready_.size();
  auto next = ready_.cbegin();
  std::erase_if(pending_, [&](std::int32_t token) {
    const bool reduced = next != ready_.cend() && *next == token;
    if (reduced) ++next;
    return reduced;
  });
  ready_.clear();
  FERRY_CHECK(pending_.size(), ==, remaining);
}

}  // namespace ferry::internal

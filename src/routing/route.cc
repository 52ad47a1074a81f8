#include "routing/route.h"

#include <utility>

namespace ferry::internal {

namespace {

template <typename T>
std::vector<T> emptied(std::vector<T>& from) noexcept {
  from.clear();
  return std::move(from);
}

}  // namespace

void Route::clear() noexcept {
  *this =
      Route{.columns = emptied(columns),
            .refs = emptied(refs),
            .shifts = emptied(shifts),
            .section_rows = emptied(section_rows),
            .tokens_per_rank = emptied(tokens_per_rank),
            .rows_sent = emptied(rows_sent),
            .received = {.tokens_per_expert = emptied(received.tokens_per_expert),
                         .aligned_tokens_per_expert = emptied(received.aligned_tokens_per_expert),
                         .expert_offsets = emptied(received.expert_offsets),
                         .running_counts = emptied(received.running_counts),
                         .running_rows_per_rank = emptied(received.running_rows_per_rank)}};
}

}  // namespace ferry::internal

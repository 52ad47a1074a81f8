// LearnedStores: the stores that were faster in the trials of this process, by the size of the rows
// (store_choice.h). An exchange that is made later starts from them, so its first dispatches are no
// trial. All ranks and exchanges of the process use one object for each number of ranks; any
// thread may call.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>

#include "kernels/kernels.h"

namespace ferry::internal {

class LearnedStores {
 public:
  static constexpr int kSizes = 65;  // bits of the bytes of all ranks together, 0 to 64

  // The results of trials of groups of `num_ranks` ranks. The caches are the same for all groups of
  // the process, but not the number of ranks that share them. Lives as long as the process.
  static LearnedStores& of_groups(int num_ranks);

  // Empty: no trial of this size has ended.
  std::optional<Stores> find(int bits) const noexcept;
  void keep(int bits, Stores stores) noexcept;

 private:
  enum Entry : std::uint8_t { kNothing, kCached, kStreaming };
  // Relaxed in find() and keep(): an entry is complete by itself, and publishes no other memory.
  std::array<std::atomic<Entry>, kSizes> entries_ = {};
};

}  // namespace ferry::internal

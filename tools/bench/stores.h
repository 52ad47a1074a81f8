// The stores with which the dispatches of timed pairs wrote their rows: cached or streaming
// (docs/decisions/streaming_stores.md). Each rank chooses by itself. The times of two runs in which
// ranks chose differently cannot be compared.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "ferry/exchange.h"

namespace ferry::bench {

// Counts of the dispatches of one rank. A dispatch of a trial counts in `trials` only.
struct StoreCounts {
  std::uint64_t cached = 0, streaming = 0, trials = 0;

  void add(const OperationTimes& dispatch) noexcept;
  // "cached", "streaming", "both" in turn, "trying": nothing but a trial. Empty: no dispatches.
  const char* name() const noexcept;
  bool operator==(const StoreCounts&) const = default;
};

// "cached on all ranks", or "cached on ranks 0 2 3, streaming on rank 1". Empty: no dispatches.
std::string stores_names(std::span<const StoreCounts> ranks);

// A line with stores_names(), and with reasons why the times of the next run may differ.
std::string stores_text(std::span<const StoreCounts> ranks);

}  // namespace ferry::bench

#include "tools/bench/stores.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>

namespace ferry::bench {
namespace {

constexpr std::array<std::string_view, 4> kNames = {"cached", "streaming", "both", "trying"};

// "all ranks", "rank 1", "ranks 0 2 3"; empty: none.
std::string ranks_with(std::string_view name, std::span<const StoreCounts> ranks) {
  std::string text;
  std::size_t count = 0;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].name() != name) continue;
    text += fmt::format(" {}", rank);
    ++count;
  }
  if (count == 0) return "";
  return count == ranks.size() ? "all ranks" : fmt::format("rank{}{}", count == 1 ? "" : "s", text);
}

}  // namespace

void StoreCounts::add(const OperationTimes& dispatch) noexcept {
  if (dispatch.store_trial) {
    ++trials;
  } else if (dispatch.streaming_stores) {
    ++streaming;
  } else {
    ++cached;
  }
}

const char* StoreCounts::name() const noexcept {
  if (cached > 0 && streaming > 0) return "both";
  if (cached > 0) return "cached";
  if (streaming > 0) return "streaming";
  return trials > 0 ? "trying" : "";
}

std::string stores_names(std::span<const StoreCounts> ranks) {
  std::string text;
  for (const std::string_view name : kNames) {
    const std::string with = ranks_with(name, ranks);
    if (!with.empty()) text += fmt::format("{}{} on {}", text.empty() ? "" : ", ", name, with);
  }
  return text;
}

std::string stores_text(std::span<const StoreCounts> ranks) {
  const std::string names = stores_names(ranks);
  if (names.empty()) return "";
  std::string text = fmt::format("#   stores: {}", names);
  const auto most = std::ranges::max_element(ranks, {}, &StoreCounts::trials);
  if (most->trials > 0) {
    text += fmt::format("; {} of {} timed pairs were a trial", most->trials,
                        most->trials + most->cached + most->streaming);
  }
  text += '\n';
  const bool differ = std::ranges::any_of(ranks, [&](const StoreCounts& rank) {
    return rank.name() != std::string_view(ranks[0].name());
  });
  if (differ) text += "#   The ranks chose differently. Compare runs with the same stores.\n";
  return text;
}

}  // namespace ferry::bench

// Layouts of small exchanges, as message_layout's readers check against them.
#pragma once

#include <array>
#include <cstdint>

#include "exchange/setup/record.h"
#include "memory/window_layout.h"

namespace ferry::fuzz {

constexpr int kRanks = 6;

inline const internal::WindowLayout& layout(std::uint8_t which) {
  const auto make = [](Layout kind) {
    ExchangeConfig config{.max_tokens = 8, .hidden = 5, .num_experts = 12, .top_k = 3};
    config.layout = kind;
    config.max_output_row_bytes = 20;
    config.expert_capacity = 16;
    return internal::WindowLayout(config, {.num_ranks = kRanks,
                                           .num_sources = kRanks,
                                           .node_ranks = 2,
                                           .num_row_lists = 2,
                                           .num_windows = 2,
                                           .num_columns = 12,
                                           .max_local = 2,
                                           .row_bytes = 10,
                                           .scale_bytes = 8,
                                           .flags_bytes = sizeof(internal::ControlFlags),
                                           .record_bytes = sizeof(internal::Record)});
  };
  static const std::array layouts{make(Layout::kRankMajor), make(Layout::kExpertMajor),
                                  make(Layout::kPadded)};
  return layouts[which % layouts.size()];
}

}  // namespace ferry::fuzz

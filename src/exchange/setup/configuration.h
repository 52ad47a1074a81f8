// Limits on the fields of an ExchangeConfig, and its fields as text.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "ferry/config.h"

namespace ferry::internal {

// Throws Error(kInvalidArgument) if a field is outside its limits for `num_ranks` ranks, or
// contradicts another; fills in the defaults. Setup checks expert_rank, token_ranks and
// expert_ranks.
ExchangeConfig complete_config(ExchangeConfig config, int num_ranks);

// The name and the value of each field that must be equal on all ranks. The names are those of
// ExchangeConfig.
std::vector<std::pair<std::string, std::string>> config_fields(const ExchangeConfig& config);
// The same fields as lines of "name is value" (differences.h).
std::string config_text(const ExchangeConfig& config);

}  // namespace ferry::internal

// Best: which prediction wins, and why, in one sentence. Called by plan.cc and choose.cc.
#pragma once

#include <string>
#include <vector>

#include "ferry/plan.h"

namespace ferry::internal {

// The fastest first; of equally fast ones, and where no rate is known, the one with the fewest
// bytes on the outermost links; of equal ones the earlier.
void put_best_first(std::vector<Prediction>& predictions);

std::string why(const std::vector<Prediction>& best_first);

// "14.3 KB": 1 KB = 1000 bytes, as in the GB/s of links.
std::string bytes_text(double bytes);
// "27.5 us".
std::string time_text(double us);

}  // namespace ferry::internal

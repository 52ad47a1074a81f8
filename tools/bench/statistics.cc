// Owns the definition of a quantile; see statistics.h.
#include "bench/statistics.h"

#include <algorithm>
#include <cstddef>

namespace ferry::bench {

Quantiles quantiles(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto at = [&values](double part) {
    return values[std::min(values.size() - 1,
                           static_cast<std::size_t>(part * static_cast<double>(values.size())))];
  };
  return {values.front(), at(0.5), at(0.99)};
}

}  // namespace ferry::bench

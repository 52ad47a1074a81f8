#include "tools/bench/statistics.h"

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

std::vector<double> spans_us(const Interval* intervals, std::size_t ranks, std::size_t count) {
  std::vector<double> spans;
  for (std::size_t i = 0; i < count; ++i) {
    Interval span = intervals[i];
    for (std::size_t rank = 1; rank < ranks; ++rank) {
      span.begin_ns = std::min(span.begin_ns, intervals[rank * count + i].begin_ns);
      span.end_ns = std::max(span.end_ns, intervals[rank * count + i].end_ns);
    }
    spans.push_back(static_cast<double>(span.end_ns - span.begin_ns) * 1e-3);
  }
  return spans;
}

}  // namespace ferry::bench

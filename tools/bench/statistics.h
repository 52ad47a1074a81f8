// Order statistics of measured times. Used by limit.cc and measure.cc.
#pragma once

#include <vector>

namespace ferry::bench {

struct Quantiles {
  double min = 0;
  double median = 0;
  double p99 = 0;
};

// All zero without values.
Quantiles quantiles(std::vector<double> values);

}  // namespace ferry::bench

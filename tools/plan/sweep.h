// `ferry plan --sweep`: one option with several values.
#pragma once

#include <string>
#include <vector>

#include "tools/plan/options.h"

namespace ferry::tools {

struct SweptPoint {
  std::string text;  // "tokens=128"; empty without a sweep
  PlanRequest request;
};

// "tokens=128,4096": the request with each of these values. The key is an option without "--"; an
// empty text is the request alone. Throws std::invalid_argument with the keys that there are.
std::vector<SweptPoint> swept(const PlanRequest& request, const std::string& sweep);

// The option that a sweep sets: "--tokens".
std::string swept_option(const std::string& sweep);

}  // namespace ferry::tools

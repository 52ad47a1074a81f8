// `ferry plan --sweep`: plans with several values of one option.
#pragma once

#include <string>
#include <vector>

#include "tools/plan/options.h"

namespace ferry::tools {

struct SweptPoint {
  std::string text;  // such as "tokens=128"; empty without a sweep
  PlanRequest request;
};

// Reads a text such as "tokens=128,4096" and returns the request with each of these values. The key
// is the name of an option without "--". For an empty text it returns the request alone. Throws
// std::invalid_argument that lists the valid keys.
std::vector<SweptPoint> swept(const PlanRequest& request, const std::string& sweep);

// Returns the option that a sweep sets, such as "--tokens".
std::string swept_option(const std::string& sweep);

}  // namespace ferry::tools

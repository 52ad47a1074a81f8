// The cores this process may use, and pinning.
#pragma once

#include <string>
#include <vector>

namespace ferry::bench {

// In ascending order; never empty.
std::vector<int> allowed_cores();

// Binds the calling thread, and threads it will start, to `count` of `cores`, from index `first`
// on, wrapping.
void pin_to(const std::vector<int>& cores, int first, int count);

// Such as "AMD EPYC 9B14", or "" where the system does not say.
std::string processor_name();

}  // namespace ferry::bench

// Finds the cores that this process may use, and pins threads to them.
#pragma once

#include <string>
#include <vector>

namespace ferry::bench {

// The cores that this process may use, in ascending order. There is at least one.
std::vector<int> allowed_cores();

// Binds the calling thread, and threads that it starts later, to `count` cores of `cores`. The
// first is the one with index `first`, and index 0 follows the last index.
void pin_to(const std::vector<int>& cores, int first, int count);

// The name of the processor, such as "AMD EPYC 9B14", or "" if the system does not give one.
std::string processor_name();

}  // namespace ferry::bench

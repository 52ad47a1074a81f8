// Chrome trace JSON (chrome://tracing, Perfetto): one track per rank. Called by measure.cc.
#pragma once

#include <string>

#include "bench/results.h"

namespace ferry::bench {

// A span per operation, holding the wait for each source, and inside it a span per phase. Times
// start at the first operation. What ranks sent to other nodes is under otherData. Throws
// std::runtime_error when the file cannot be written.
void write_trace(const std::string& file, const Results& results);

}  // namespace ferry::bench

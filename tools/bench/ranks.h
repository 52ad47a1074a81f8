// Runs the ranks of a bench, as processes or threads. Owns forking, pinning and the reporting of
// failures. Called by measure.cc. The caller must be single-threaded, and sleeps until the ranks
// are done.
#pragma once

#include <functional>

#include "bench/options.h"
#include "ferry/group.h"

namespace ferry::bench {

// Calls body(group) once on every rank and waits for all. Throws std::runtime_error naming the
// first rank at fault: one that threw, died of a signal, or left without a word; ranks that only
// met its absence are not to blame.
void run_ranks(const Options& options, const std::function<void(Group)>& body);

}  // namespace ferry::bench

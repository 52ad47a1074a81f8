// Runs the ranks of a bench, as processes or threads, or as the rank that this process is. Owns
// forking, pinning and the reporting of failures. The caller must be single-threaded, and sleeps
// until the ranks are done.
#pragma once

#include <functional>

#include "ferry/group.h"
#include "tools/bench/options.h"

namespace ferry::bench {

// With Mode::kEnvironment, joins the ranks that the launcher started, once for all runs, and sets
// ranks and rank; else does nothing. Throws ferry::Error.
void join_launched(Options& options);

// Calls body(group) once on every rank and waits for all. Throws std::runtime_error naming the
// first rank at fault: one that threw, died of a signal, or ended without a message; ranks
// that failed only because that rank had ended are not named. With Mode::kEnvironment this process
// is one rank.
void run_ranks(const Options& options, const std::function<void(Group)>& body);

}  // namespace ferry::bench

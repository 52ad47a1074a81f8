// Runs the ranks of a bench, as processes or threads; under a launcher this process is one rank.
// Forks and pins the ranks and reports their failures. The caller must be single-threaded, and
// sleeps until the ranks have ended.
#pragma once

#include <functional>

#include "ferry/group.h"
#include "tools/bench/options.h"

namespace ferry::bench {

// With Mode::kEnvironment, joins the ranks that the launcher started, once for all runs, and sets
// `ranks` and `rank`. In other modes it does nothing. Throws ferry::Error.
void join_launched(Options& options);

// Calls body(group) once on every rank and waits for all ranks. With Mode::kEnvironment this
// process is one rank. Throws std::runtime_error with the first rank at fault: one that threw, died
// of a signal, or ended without a message. A rank that failed only because another had ended is not
// at fault.
void run_ranks(const Options& options, const std::function<void(Group)>& body);

}  // namespace ferry::bench

// Limits the process to one processor: ferry's behaviour depends on the number of processors on
// which its threads may run, and a run must be the same on every machine.
#pragma once

#include <sched.h>

#include <cstdlib>

namespace ferry::test {

inline void use_one_processor() {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  sched_setaffinity(0, sizeof one, &one);
  unsetenv("FERRY_PROGRESS");
  unsetenv("FERRY_TOPOLOGY");
  unsetenv("FERRY_METRICS");
}

}  // namespace ferry::test

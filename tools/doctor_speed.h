// Quick measurements of what ferry's speed rests on; less than a second together. Called by
// doctor.cc.
#pragma once

#include <vector>

namespace ferry::tools {

struct Speed {
  double touch_ns =
      0;  // first touch of 4 KiB of shared memory, small pages; 0: could not be measured
  double commit_ns = 0;          // the same through Segment::commit, huge where the kernel allows
  double hop_ns = 0;             // a flag from one thread to another
  bool hop_on_two_cpus = false;  // false: both threads shared the only processor
  double copy_bytes_per_s = 0;   // payload, one thread, memory beyond the caches
};

// `cpus`: those that this process may use.
Speed measure_speed(const std::vector<int>& cpus);

}  // namespace ferry::tools

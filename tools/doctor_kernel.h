// Tries what ferry needs from the kernel, for real. Called by doctor.cc, before any thread is
// started (it forks).
#pragma once

#include <string>
#include <vector>

namespace ferry::tools {

struct Trial {
  std::string name;    // of the kernel's facility
  bool needed = true;  // ferry cannot work without it
  bool ok = false;
  std::string detail;  // what was done, or what failed and why
};

// In the order in which ferry builds on them; the last one is two processes that form a group.
std::vector<Trial> try_kernel();

}  // namespace ferry::tools

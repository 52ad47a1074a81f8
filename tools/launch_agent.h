// The part of `ferry launch --hosts` that runs on each of the hosts. Called by launch.cc.
#pragma once

namespace ferry::tools {

// Reads a task from the input and runs its ranks; what is said to it after that, see
// launch_orders.h. Returns the exit code.
int run_agent();

}  // namespace ferry::tools

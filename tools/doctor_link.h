// `ferry doctor --link`: latency and bandwidth between nodes, through the messages that dispatch
// and combine use. Run as a rank of a job that a launcher started, or with two threads that talk
// over this host's network. Called by doctor.cc; calls the insides of Group.
#pragma once

#include <string>

namespace ferry::tools {

struct LinkTestOptions {
  bool threads = false;  // else Group::from_environment
  bool json = false;
};

// Prints on rank 0. Returns the exit code. Throws ferry::Error.
int test_links(const LinkTestOptions& options);

}  // namespace ferry::tools

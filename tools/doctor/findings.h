// The findings of `ferry doctor`, and the advice that follows from them. doctor.cc fills them;
// advice.cc and report.cc are pure functions of them, which are tested with invented machines.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bootstrap/launcher.h"
#include "tools/machine.h"
#include "tools/report.h"

namespace ferry::tools {

// Something that ferry needs from the kernel, tried for real (kernel.cc).
struct Trial {
  std::string name;    // of the kernel's facility
  bool needed = true;  // ferry cannot work without it
  bool ok = false;
  std::string detail;  // what was done, or what failed and why
};

// In the order in which ferry builds on them; the last one is two processes that form a group. Call
// it before any thread is started, because it forks.
std::vector<Trial> try_kernel();

// Measurements that limit the speed of ferry, made in less than a second (speed.cc).
struct Speed {
  double touch_ns = 0;   // first touch of 4 KiB of shared memory, small pages; 0: not measured
  double commit_ns = 0;  // the same through Segment::commit, huge where the kernel allows
  double flag_ns = 0;    // a flag from one thread to another
  bool flag_on_two_cpus = false;  // false: both threads shared the only processor
  double copy_bytes_per_s = 0;    // payload, one thread, memory beyond the caches
};

// `cpus`: those that this process may use.
Speed measure_speed(const std::vector<int>& cpus);

struct NetworkInterface {
  std::string name, address;  // an interface with two addresses is there twice
  bool up = false;
};

// What this host has for groups that span hosts (network.cc).
struct Network {
  std::string ucx;                           // version and file of libucp, empty: not found
  std::string link;                          // what UCX would use, as ferry's Link describes it
  std::string no_link;                       // why there is none
  std::vector<NetworkInterface> interfaces;  // without the loopback
};

// Call it after everything that forks, because UCX starts threads.
Network find_network();

struct Findings {
  MachineFacts machine;
  std::vector<Trial> trials;
  std::optional<Speed> speed;     // none where a needed trial failed
  std::vector<std::string> simd;  // best first; the first is in use
  Network network;
  std::optional<internal::Launch> launch;  // the launcher in the environment
  std::string no_launch;                   // why there is none
};

struct Advice {
  std::string finding, consequence, remedy;
};

// What keeps ferry from working here; empty when it can.
std::vector<Advice> problems(const Findings& findings);

// What to change for speed: only what applies.
std::vector<Advice> advise(const Findings& findings);

Report doctor_report(const Findings& findings);

// `ferry doctor --link`: latency and bandwidth between nodes, through the messages that dispatch
// and combine use (link.cc). Runs as a rank of a job that a launcher started, or with two
// threads that send over the network of this host. Prints on rank 0. Throws ferry::Error.
struct LinkTestOptions {
  bool threads = false;  // else Group::from_environment
  bool json = false;
  double deadline_s = 0;  // of each call; of joining, too
};
void test_links(const LinkTestOptions& options);

}  // namespace ferry::tools

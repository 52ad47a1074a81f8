// The findings of `ferry doctor`, and the advice that follows from them. doctor.cc fills in the
// findings. advice.cc and report.cc are pure functions of them, so that tests can run them on
// invented machines.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bootstrap/launcher.h"
#include "tools/machine.h"
#include "tools/report.h"

namespace ferry::tools {

// One kernel facility that ferry needs, and the result of trying it (kernel.cc).
struct Trial {
  std::string name;    // the name of the kernel's facility
  bool needed = true;  // whether ferry cannot work without it
  bool ok = false;
  std::string detail;  // what was tried, or what failed and why
};

// Tries the facilities in the order in which ferry uses them. In the last trial two processes form
// a group. Must run before any thread is started, because it forks.
std::vector<Trial> try_kernel();

// Measurements that limit the speed of ferry, made in less than a second (speed.cc).
struct Speed {
  // Time of a first access to 4 KiB of shared memory in small pages; 0: not measured.
  double touch_ns = 0;
  // The same with Segment::commit, which uses huge pages if the kernel allows them.
  double commit_ns = 0;
  double flag_ns = 0;             // the time of a flag from one thread to another
  bool flag_on_two_cpus = false;  // false: both threads ran on the only processor
  double copy_bytes_per_s = 0;    // copied bytes per second, by one thread, beyond the caches
};

// `cpus` lists the processors that this process may use.
Speed measure_speed(const std::vector<int>& cpus);

struct NetworkInterface {
  std::string name, address;  // an interface with two addresses is listed twice
  bool up = false;
};

// The network of this host, as groups that span hosts use it (network.cc).
struct Network {
  std::string ucx;      // the version and file of libucp; empty: not found
  std::string link;     // the transport that UCX would choose, as Transport::describe() names it
  std::string no_link;  // why there is no transport; empty: there is one
  std::vector<NetworkInterface> interfaces;  // all but the loopback
};

// Must run after all forks, because UCX starts threads.
Network find_network();

struct Findings {
  MachineFacts machine;
  std::vector<Trial> trials;
  std::optional<Speed> speed;     // empty if a needed trial failed
  std::vector<std::string> simd;  // best first; the first one is in use
  Network network;
  std::optional<internal::Launch> launch;  // the launcher that the environment names
  std::string no_launch;                   // why no launcher was found; empty: there is one
};

struct Advice {
  std::string finding, consequence, remedy;
};

// The problems that keep ferry from working on this host; empty if it can work.
std::vector<Advice> problems(const Findings& findings);

// The changes that would make ferry faster. Advice that does not apply to this host is left out.
std::vector<Advice> advise(const Findings& findings);

Report doctor_report(const Findings& findings);

// `ferry doctor --link`: measures latency and bandwidth between nodes, with the messages that
// dispatch and combine use (link.cc). It runs as a rank of a job that a launcher started, or with
// two threads that send over the network of this host. Prints on rank 0. Throws ferry::Error.
struct LinkTestOptions {
  bool threads = false;  // false: the group comes from Group::from_environment
  bool json = false;
  double deadline_s = 0;  // the deadline of each call, and of joining the group
};
void test_links(const LinkTestOptions& options);

}  // namespace ferry::tools

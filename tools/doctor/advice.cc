// Derives advice from the findings; each rule is a function.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ferry/exchange.h"
#include "tools/doctor/findings.h"
#include "tools/text.h"

namespace ferry::tools {
namespace {

constexpr std::uint64_t kFewFiles = 1024;
constexpr double kSlowFlagNs = 500;  // two cores with a common cache take 50 to 150 ns

using Advices = std::vector<Advice>;

const Trial* trial(const Findings& findings, const std::string& name) {
  const auto found = std::find_if(findings.trials.begin(), findings.trials.end(),
                                  [&](const Trial& candidate) { return candidate.name == name; });
  return found == findings.trials.end() ? nullptr : &*found;
}

void check_cpus(const MachineFacts& machine, Advices& out) {
  const auto usable = static_cast<int>(machine.cpus.size());
  if (usable >= machine.num_threads) return;
  out.push_back(
      {fmt::format("this process may use {} of {} hardware threads (cpus {})", usable,
                   machine.num_threads, ranges_text(machine.cpus)),
       usable == 1 ? "all ranks take turns on one core: each flag waits for a switch of processes"
                   : "ranks beyond that number take turns",
       "widen the affinity (taskset, the container's cpuset, the job's --cpus-per-task)"});
}

void check_cpu_limit(const MachineFacts& machine, Advices& out) {
  if (machine.cpu_limit <= 0 || machine.cpu_limit >= static_cast<double>(machine.cpus.size()))
    return;
  out.push_back(
      {fmt::format("the control group grants the time of {:.3g} processors for {} usable ones",
                   machine.cpu_limit, machine.cpus.size()),
       "ranks that spin are throttled for tens of milliseconds in the middle of an exchange",
       fmt::format("raise cpu.max, or run at most {} ranks",
                   std::max(1, static_cast<int>(std::floor(machine.cpu_limit))))});
}

void check_smt(const MachineFacts& machine, Advices& out) {
  if (machine.num_threads <= machine.num_cores ||
      static_cast<int>(machine.cpus.size()) <= machine.num_cores)
    return;
  out.push_back(
      {fmt::format("{} hardware threads share {} cores", machine.num_threads, machine.num_cores),
       "two ranks on one core share its load and store units and its caches",
       fmt::format("start one rank per core, {} in all, and pin it", machine.num_cores)});
}

void check_numa(const MachineFacts& machine, Advices& out) {
  if (machine.num_numa < 2) return;
  out.push_back(
      {fmt::format("{} NUMA domains", machine.num_numa),
       "a rank's window lies where the rank first ran; rows between domains cross the link",
       "pin each rank before it creates its group (numactl, OMP_PROC_BIND=true, ferry bench "
       "--pin)"});
}

void check_ranks(const Findings& findings, Advices& out) {
  if (!findings.launch) return;
  const int ranks =
      findings.launch->local_size > 0 ? findings.launch->local_size : findings.launch->size;
  const auto usable = static_cast<int>(findings.machine.cpus.size());
  if (ranks <= usable) return;
  out.push_back(
      {fmt::format("{} started {} ranks for {} usable processors", findings.launch->launcher, ranks,
                   usable),
       "ranks take turns: expect 1 to 4 us more for each switch on the path of an exchange",
       fmt::format("start at most {} ranks here; each then owns more experts", usable)});
}

// Compares the available memory with twice the memory of the windows for the shape that `make run`
// uses for prefill.
void check_memory(const MachineFacts& machine, Advices& out) {
  constexpr int kRanks = 8;
  const ExchangeConfig config{.max_tokens = 1024, .hidden = 7168, .num_experts = 256, .top_k = 8};
  const std::uint64_t needed = kRanks * window_bytes(config, kRanks).expected;
  if (machine.memory_available >= 2 * needed) return;
  out.push_back(
      {fmt::format("{} of memory are available", bytes_text(machine.memory_available)),
       fmt::format("{} ranks with {} tokens of hidden {} and top-{} need about {} of windows alone",
                   kRanks, config.max_tokens, config.hidden, config.top_k, bytes_text(needed)),
       "free memory or raise the control group's limit; fewer tokens per dispatch need less"});
}

void check_huge_pages(const Findings& findings, Advices& out) {
  const Trial* const collapse = trial(findings, "huge pages");
  const std::string& mode = findings.machine.shmem_thp;
  const bool given =
      mode == "always" || mode == "within_size" || mode == "advise" || mode == "force";
  if (!collapse || collapse->ok || given) return;
  const double touch_ns = findings.speed ? findings.speed->touch_ns : 2000;
  out.push_back(
      {"shared memory comes in pages of 4 KiB: " + collapse->detail,
       fmt::format("setting up 1 GiB of windows takes {:.2g} s; steady speed hardly changes",
                   touch_ns * 262144 / 1e9),
       "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled, or Linux 6.1 and newer"});
}

void check_limits(const MachineFacts& machine, Advices& out) {
  if (machine.limit_address_space != kUnlimited) {
    out.push_back(
        {fmt::format("address space is limited to {} (ulimit -v)",
                     bytes_text(machine.limit_address_space)),
         "windows are reserved for the worst case and may be refused, though little memory is used",
         "ulimit -v unlimited"});
  }
  if (machine.limit_file_size != kUnlimited) {
    out.push_back(
        {fmt::format("file size is limited to {} (ulimit -f)", bytes_text(machine.limit_file_size)),
         "the limit counts for shared memory too: larger windows are refused",
         "ulimit -f unlimited"});
  }
  if (machine.limit_open_files < kFewFiles) {
    out.push_back({fmt::format("{} open files are allowed (ulimit -n)", machine.limit_open_files),
                   "each rank holds a few descriptors per peer; large groups are refused",
                   fmt::format("ulimit -n {}", kFewFiles)});
  }
}

void check_pidfd(const Findings& findings, Advices& out) {
  const Trial* const pidfd = trial(findings, "pidfd");
  if (!pidfd || pidfd->ok) return;
  out.push_back({"no pidfd: " + pidfd->detail,
                 "dead ranks are looked for in /proc, which costs a little more",
                 "Linux 5.3 or newer, or a sandbox that allows pidfd_open"});
}

void check_flag(const Findings& findings, Advices& out) {
  if (!findings.speed || !findings.speed->flag_on_two_cpus || findings.speed->flag_ns < kSlowFlagNs)
    return;
  out.push_back({fmt::format("a flag takes {:.2g} us from one processor to another",
                             findings.speed->flag_ns / 1e3),
                 "small exchanges wait for flags more than for bytes",
                 "run on processors with a common cache, and on an idle machine"});
}

}  // namespace

std::vector<Advice> problems(const Findings& findings) {
  Advices out;
  for (const Trial& trial : findings.trials) {
    if (!trial.needed || trial.ok) continue;
    out.push_back(
        {trial.name + ": " + trial.detail, "ranks cannot form a group or share memory here",
         "allow it in the sandbox or container (seccomp, memory limit), or use another kernel"});
  }
  return out;
}

std::vector<Advice> advise(const Findings& findings) {
  Advices out;
  check_cpus(findings.machine, out);
  check_cpu_limit(findings.machine, out);
  check_smt(findings.machine, out);
  check_numa(findings.machine, out);
  check_ranks(findings, out);
  check_memory(findings.machine, out);
  check_huge_pages(findings, out);
  check_limits(findings.machine, out);
  check_pidfd(findings, out);
  check_flag(findings, out);
  return out;
}

}  // namespace ferry::tools

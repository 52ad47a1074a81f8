// CallTimes: checks how long the calls of each process take in a simulation with views, and lets
// the process compute between calls. A call may last until its deadline. Where no process is
// stopped or cut off for good, it takes less than a second, since a lost rank is named within a
// second (README.md).
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "simulator/simulation.h"

namespace ferry::test {

class CallTimes {
 public:
  struct Rules {
    int num_processes;
    std::chrono::nanoseconds deadline;  // of a call
    bool may_be_late;                   // a call may wait for another process until its deadline
    const char* noun;                   // what complaints call a process
  };
  using Complain = std::function<void(const std::string& what)>;

  CallTimes(Simulation& simulation, const Rules& rules, Complain complain)
      : simulation_(simulation),
        rules_(rules),
        complain_(std::move(complain)),
        began_(rules.num_processes) {}

  // The running process begins a call.
  void begin() { began_[simulation_.running()] = {simulation_.time_ns(), stopped_ns()}; }

  // The call `what` of the running process, which had this deadline, ends.
  void check(const std::string& what, std::chrono::nanoseconds deadline) {
    const int process = simulation_.running();
    const Began& began = began_[process];
    const std::int64_t took_ns = simulation_.time_ns() - began.at_ns;
    const std::int64_t paused_ns =
        rules_.may_be_late ? simulation_.stopped_ns(process) : stopped_ns() - began.stopped_ns;
    if (took_ns > deadline.count() + kGraceNs + paused_ns)
      complain_(
          fmt::format("{} {}: {} took {} ms", rules_.noun, process, what, took_ns / 1'000'000));
  }

  // The same in view `view`. `waits`: how long the call may wait although nothing is wrong.
  void end(const std::string& what, std::uint64_t view, std::chrono::nanoseconds waits) {
    constexpr std::chrono::nanoseconds kPrompt(kPromptNs - kGraceNs);
    check(what, std::max(rules_.may_be_late ? rules_.deadline : kPrompt, waits));
    simulation_.note("returns", view);
  }

  // Between two calls.
  void compute() {
    const int kind = simulation_.choose(kComputeNs.size(), kComputeRarity);
    if (kind > 0) simulation_.sleep(nullptr, kComputeNs[static_cast<std::size_t>(kind)]);
    begin();
  }

 private:
  // What a call may take beyond its deadline, and what a call may take at most where no process is
  // stopped.
  static constexpr std::int64_t kGraceNs = 900'000'000, kPromptNs = 1'000'000'000;
  static constexpr int kComputeRarity = 5;
  static constexpr std::array<std::int64_t, 4> kComputeNs = {0, 50'000, 2'000'000, 60'000'000};
  struct Began {
    std::int64_t at_ns = 0, stopped_ns = 0;
  };

  // The time in which processes were stopped, in all: a call may wait for a stopped process.
  std::int64_t stopped_ns() const {
    std::int64_t all = 0;
    for (int process = 0; process < rules_.num_processes; ++process)
      all += simulation_.stopped_ns(process);
    return all;
  }

  Simulation& simulation_;
  const Rules rules_;
  const Complain complain_;
  std::vector<Began> began_;  // [processes]
};

}  // namespace ferry::test

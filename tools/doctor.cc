// `ferry doctor`: gathers the findings in an order that keeps fork before threads. Called by
// main.cc; calls calibrate.h and what doctor_findings.h declares.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <memory>

#include "calibrate.h"
#include "commands.h"
#include "doctor_findings.h"
#include "ferry/status.h"
#include "kernels/kernels.h"

namespace ferry::tools {
namespace {

void find_launcher(Findings& findings) {
  try {
    findings.launch = internal::launch_from_environment(internal::environment);
  } catch (const Error& error) {
    findings.no_launch = error.what();
  }
}

Findings examine() {
  Findings findings;
  findings.machine = this_machine();
  findings.trials = try_kernel();
  if (problems(findings).empty()) findings.speed = measure_speed(findings.machine.cpus);
  int num_targets = 0;
  const char* const* const targets = internal::simd_targets(&num_targets);
  findings.simd.assign(targets, targets + num_targets);
  findings.network = find_network();
  find_launcher(findings);
  return findings;
}

}  // namespace

void add_doctor(CLI::App& app, int& exit_code) {
  CLI::App* const verb =
      app.add_subcommand("doctor", "What this machine offers, and what to change for speed");
  verb->footer("Exit code: 0 if ferry can work here, 1 if not.");
  const auto json = std::make_shared<bool>(false), link = std::make_shared<bool>(false);
  const auto mode = std::make_shared<std::string>("environment");
  verb->add_flag("--json", *json, "One JSON object instead of text");
  verb->add_flag("--link", *link,
                 "Test the links between nodes instead; run by ferry launch --hosts, torchrun, ..");
  verb->add_option("--mode", *mode, "Of --link: environment | threads (two, on this host)")
      ->check(CLI::IsMember({"environment", "threads"}))
      ->capture_default_str();
  const auto calibrated = std::make_shared<std::string>();
  verb->add_option("--calibrate", *calibrated,
                   "Measure dispatch and combine here instead, for ferry plan: FILE.json");
  verb->callback([json, link, mode, calibrated, &exit_code] {
    if (!calibrated->empty()) {
      std::cout << calibrate(*calibrated) << std::flush;
      return;
    }
    if (*link) {
      return test_links({.threads = *mode == "threads", .json = *json});
    }
    const Findings findings = examine();
    std::cout << doctor_report(findings).render(*json) << std::flush;
    exit_code = problems(findings).empty() ? 0 : 1;
  });
}

}  // namespace ferry::tools

// Runs `ferry doctor`. It gathers the findings in an order in which each fork comes before the
// first thread. Calls calibrate.h and the functions of findings.h.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <iostream>
#include <memory>

#include "ferry/status.h"
#include "kernels/kernels.h"
#include "tools/calibrate/calibrate.h"
#include "tools/calibrate/links.h"
#include "tools/commands.h"
#include "tools/doctor/findings.h"
#include "tools/launch/remote.h"

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

std::string tree_of(const std::string& hosts) {
  std::vector<int> ranks;
  for (const HostRanks& host : parse_hosts(hosts)) ranks.push_back(host.num_ranks);
  return fmt::format("host:{},rank:{}", ranks.size(), fmt::join(ranks, "+"));
}

std::string calibrated(LinkCalibration& calibration) {
  if (calibration.hosts.empty()) return calibrate(calibration.file, calibration.rounds);
  if (calibration.topology.empty()) calibration.topology = tree_of(calibration.hosts);
  return calibrate_links(calibration);
}

void add_calibration(CLI::App& verb, LinkCalibration& calibration) {
  CLI::Option* const file =
      verb.add_option("--calibrate", calibration.file,
                      "Measure dispatch and combine here instead, for ferry plan: FILE.json");
  verb.add_option("--rounds", calibration.rounds,
                  "Of --calibrate: runs of each shape; on one host the fastest counts, between "
                  "hosts all do")
      ->needs(file)
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  CLI::Option* const hosts =
      verb.add_option(
              "--hosts", calibration.hosts,
              "With --calibrate: also what crosses between hosts, NAME:RANKS,.. as of ferry launch")
          ->needs(file);
  verb.add_option(
          "--topology", calibration.topology,
          "Of these hosts, as ferry topology reads it (default: hosts, each with its ranks)")
      ->needs(hosts);
  verb.add_option(
          "--machine", calibration.machine,
          "What --calibrate wrote for one of these hosts: FILE.json (default: measured first)")
      ->needs(hosts);
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
  const auto deadline_s = std::make_shared<double>(100);
  verb->add_option("--deadline", *deadline_s,
                   "Of --link: seconds that joining, and each test, may take")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  const auto calibration = std::make_shared<LinkCalibration>();
  add_calibration(*verb, *calibration);
  verb->callback([json, link, mode, deadline_s, calibration, &exit_code] {
    if (!calibration->file.empty()) {
      std::cout << calibrated(*calibration) << std::flush;
      return;
    }
    if (*link) {
      return test_links({.threads = *mode == "threads", .json = *json, .deadline_s = *deadline_s});
    }
    const Findings findings = examine();
    std::cout << doctor_report(findings).render(*json) << std::flush;
    exit_code = problems(findings).empty() ? 0 : 1;
  });
}

}  // namespace ferry::tools

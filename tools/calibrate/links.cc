// Runs `ferry bench` between hosts and fits the constants of links; see links.h.
#include "tools/calibrate/links.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "tools/calibrate/calibrate.h"
#include "tools/calibrate/runs.h"
#include "tools/plan/expect.h"
#include "tools/plan/machine_json.h"
#include "tools/refuse.h"

namespace ferry::tools {

namespace {

using nlohmann::json;

constexpr std::array kAlgorithmNames = {"hierarchical", "fullmesh", "allgather"};
constexpr std::array<int, 2> kTokens = {24, 96};

// The values with which the search begins: the rates of links and of processors, and a latency.
constexpr double kFirstGbS = 1, kFirstNetworkGbS = 100, kFirstLatencyUs = 100;
constexpr double kLeastLatencyUs = 1;

// Returns 0 for a latency that is too small to be measured.
double latency_of(double us) { return us < kLeastLatencyUs ? 0 : us; }

const Prediction& prediction_of(const Plan& plan, const std::string& algorithm) {
  const auto found = std::ranges::find(plan.predictions, algorithm, &Prediction::strategy);
  if (found == plan.predictions.end())
    refuse("a bench ran '{}', which is not planned for this machine", algorithm);
  return *found;
}

// The constants that are fitted, as a vector of positive numbers.
class LinkFit {
 public:
  LinkFit(const Machine& machine, const std::vector<LinkSample>& samples)
      : machine_(machine), samples_(samples) {
    for (int level = 0; level <= machine.tree.find_level(Topology::kHost); ++level)
      if (level == 0 || machine.tree.level(level).link.bandwidth_gb_s > 0) levels_.push_back(level);
    for (const int level : levels_) {
      const double rate = machine.tree.level(level).link.bandwidth_gb_s;
      best_.push_back(rate > 0 ? rate : kFirstGbS);
    }
    best_.push_back(kFirstLatencyUs);
    best_.push_back(machine.host.network_gb_s > 0 ? machine.host.network_gb_s : kFirstNetworkGbS);
  }

  // Searches for the best constants. A step multiplies one constant by a factor or divides it; or
  // it multiplies one and divides another, because the times may hardly change when both grow. The
  // factor shrinks from round to round.
  Machine run() {
    const auto count = static_cast<int>(best_.size());
    double least = squares(best_);
    for (double factor = 4; factor > 1.002; factor = std::sqrt(factor)) {
      for (bool better = true; better;) {
        better = false;
        for (int up = -1; up < count; ++up)
          for (int down = -1; down < count; ++down)
            better = improve(up, down, factor, least) || better;
      }
    }
    return with(best_);
  }

 private:
  // Tries one step: multiplies constant `up` by the factor and divides constant `down` by it. The
  // index -1 names no constant.
  bool improve(int up, int down, double factor, double& least) {
    if (up == down) return false;
    std::vector<double> other = best_;
    if (up >= 0) other[up] *= factor;
    if (down >= 0) other[down] /= factor;
    const double found = squares(other);
    // A constant that does not change the errors stays as it is.
    if (found >= least * (1 - 1e-9)) return false;
    least = found;
    best_ = std::move(other);
    return true;
  }

  Machine with(const std::vector<double>& constants) const {
    Machine machine = machine_;
    for (std::size_t i = 0; i < levels_.size(); ++i) {
      Topology::Link link = machine.tree.level(levels_[i]).link;
      // The rates of both ways keep their ratio.
      if (link.second_way && link.bandwidth_gb_s > 0)
        link.second_way->bandwidth_gb_s *= constants[i] / link.bandwidth_gb_s;
      link.bandwidth_gb_s = constants[i];
      if (levels_[i] == 0) link.latency_us = latency_of(constants[levels_.size()]);
      machine.tree = machine.tree.with_link(levels_[i], link);
    }
    machine.host.network_gb_s = constants.back();
    return machine;
  }

  // The sum of squared errors. An error is a difference of logarithms, so that twice and half the
  // time count equally.
  double squares(const std::vector<double>& constants) const {
    const Machine machine = with(constants);
    double sum = 0;
    for (const LinkSample& sample : samples_) {
      const Plan planned = plan(machine, sample.workload, {.doubled = false});
      for (const LinkSample::Times& measured : sample.times) {
        const Prediction& predicted = prediction_of(planned, measured.algorithm);
        for (const double ratio :
             {predicted.dispatch_us / measured.dispatch_us,
              predicted.combine_us / measured.combine_us, predicted.pair_us() / measured.pair_us})
          sum += std::pow(std::log(ratio), 2);
      }
    }
    return sum;
  }

  const Machine& machine_;
  const std::vector<LinkSample>& samples_;
  std::vector<int> levels_;   // the levels whose rates are fitted, outermost first
  std::vector<double> best_;  // the rates of the levels, the latency, and Host::network_gb_s
};

// Runs each algorithm once and adds the times to those of earlier rounds.
void measure(const LinkCalibration& options, int tokens, LinkSample& sample) {
  for (const char* algorithm : kAlgorithmNames) {
    const json measured = run_bench(
        fmt::format("launch --hosts '{}' --no-tag -- '{}'", options.hosts, own_program()),
        fmt::format("--mode environment --topology '{}' --algorithm {} --tokens {} --hidden 6144 "
                    "--experts 96 --top-k 8 --warmup 4 --iterations 10",
                    options.topology, algorithm, tokens));
    sample.workload = workload_of_bench(measured);
    const auto median = [&](const char* what) {
      return measured.at(what).at("median").get<double>();
    };
    sample.times.push_back(
        {algorithm, median("dispatch_us"), median("combine_us"), median("pair_us")});
  }
}

std::string constants_text(const Machine& machine) {
  std::string text;
  for (int level = 0; level <= machine.tree.find_level(Topology::kHost); ++level) {
    const Topology::Link& link = machine.tree.level(level).link;
    if (link.bandwidth_gb_s > 0)
      text += fmt::format("{} {:.3g} GB/s, ", machine.tree.level(level).name, link.bandwidth_gb_s);
    if (link.latency_us > 0) text += fmt::format("{:.3g} us, ", link.latency_us);
  }
  return text + fmt::format("processors {:.3g} GB/s of what crosses", machine.host.network_gb_s);
}

}  // namespace

Machine fit_links(const Machine& machine, const std::vector<LinkSample>& samples) {
  return LinkFit(machine, samples).run();
}

std::string calibrate_links(const LinkCalibration& options) {
  std::string here;
  if (options.machine.empty())
    here = calibrate(options.file, options.rounds);
  else
    read_machine(options.machine);  // reports an error in the machine before the benches run
  auto written = nlohmann::ordered_json::parse(
      read_file(options.machine.empty() ? options.file : options.machine));
  written["tree"] = options.topology;
  std::vector<LinkSample> samples(kTokens.size());
  for (int round = 0; round < options.rounds; ++round)
    for (std::size_t i = 0; i < kTokens.size(); ++i) measure(options, kTokens[i], samples[i]);
  const Machine found = fit_links(machine_from_json(written.dump()), samples);
  written["tree"] = found.tree.to_text();
  written["host"]["network_gb_s"] = found.host.network_gb_s;
  write_machine(options.file, written);
  return fmt::format("{}{}: {}\n", here, options.file, constants_text(found));
}

}  // namespace ferry::tools

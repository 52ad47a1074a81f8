// Runs `ferry bench`: parses options, measures each point, prints the reports and chooses the exit
// code.
#include <fmt/format.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "tools/bench/cuda.h"
#include "tools/bench/measure.h"
#include "tools/bench/options.h"
#include "tools/bench/ranks.h"
#include "tools/commands.h"

namespace ferry::bench {
namespace {

constexpr int kWrong = 1;

// Shows the progress in one line on stderr, which is overwritten each time. Without a terminal it
// shows nothing.
Progress progress_of(std::int64_t tokens, std::string left) {
  if (isatty(STDERR_FILENO) == 0) return [](const char*) {};
  return [tokens, left = std::move(left)](const char* stage) {
    fmt::print(stderr, "\r\033[K");
    if (*stage != '\0') fmt::print(stderr, "  {} tokens per rank: {}{} ..", tokens, stage, left);
    std::fflush(stderr);
  };
}

// The remaining time, as in ", about 40 s remaining", once at least one point was measured. All
// points take about the same time, because the numbers of iterations are chosen for that.
std::string time_left(std::int64_t began_ns, std::size_t done, std::size_t points) {
  if (done == 0) return {};
  const auto each = static_cast<double>(internal::now_ns() - began_ns) / static_cast<double>(done);
  return fmt::format(", about {:.0f} s remaining",
                     each * 1e-9 * static_cast<double>(points - done));
}

// Where a launcher started several ranks, only rank 0 prints.
void print(const Options& options, const std::string& text) {
  if (options.rank > 0) return;
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);  // a rank that is forked later must not inherit unwritten text
}

// The points that are measured one after the other. A sweep has one point for each number of
// tokens. --rebalance has three: experts in blocks, balanced experts, and a routing that needs no
// balance.
std::vector<Options> measured_points(const Options& options) {
  if (options.rebalance) {
    std::vector<Options> ways(3, options);
    ways[0].rebalance = ways[2].rebalance = false;
    ways[2].routing = {};
    return ways;
  }
  std::vector<Options> points(std::max<std::size_t>(options.sweep_tokens.size(), 1), options);
  for (std::size_t i = 0; i < options.sweep_tokens.size(); ++i)
    points[i].shape.max_tokens = options.sweep_tokens[i];
  return points;
}

int run_on_cuda(const Options& options) {
  std::vector<Plan> plans;
  std::vector<CudaTimes> times;
  std::uint64_t wrong = 0;
  for (const Options& point : measured_points(options)) {
    plans.push_back(make_plan(point, point.shape.max_tokens));
    times.push_back(measure_on_cuda(plans.back()));
    wrong += times.back().wrong;
  }
  print(options, cuda_table(plans, times));
  if (options.json) print(options, cuda_json(plans.back(), times.back()) + "\n");
  return wrong == 0 ? 0 : kWrong;
}

int run(const Options& options) {
  if (options.cuda) return run_on_cuda(options);
  std::vector<Measurement> measurements;
  std::uint64_t wrong = 0;
  const std::vector<Options> points = measured_points(options);
  const std::int64_t began = internal::now_ns();
  print(options, table_header(options));
  for (const Options& point : points) {
    Plan plan = make_plan(point, point.shape.max_tokens);
    const std::string left = time_left(began, measurements.size(), points.size());
    measurements.push_back(measure(plan, progress_of(plan.options.shape.max_tokens, left)));
    wrong += measurements.back().wrong;
    print(options, table_line(options, measurements.back()));
  }
  if (options.rebalance) print(options, rebalance_footer(options, measurements));
  print(options, table_footer(options, measurements));
  if (!options.report.empty() && options.rank <= 0) write_report(options, measurements);
  if (options.json) print(options, to_json(options, measurements) + "\n");
  return wrong == 0 ? 0 : kWrong;
}

int finish_and_run(Options& options) {
  try {
    join_launched(options);
    finish_options(options);
    return run(options);
  } catch (const std::invalid_argument& error) {
    fmt::print(stderr, "ferry bench: {}\n", error.what());
    return tools::kUsageError;
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "ferry bench: the system refused memory\n");
  } catch (const std::exception& error) {
    fmt::print(stderr, "ferry bench: {}\n", error.what());
  }
  return kWrong;
}

}  // namespace
}  // namespace ferry::bench

namespace ferry::tools {

void add_bench(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<bench::Options>();
  CLI::App* const command = app.add_subcommand(
      "bench",
      "Measure dispatch and combine, and compare them with the same traffic, places known");
  bench::add_options(*command, *options);
  command->callback([options, &exit_code] { exit_code = bench::finish_and_run(*options); });
}

}  // namespace ferry::tools

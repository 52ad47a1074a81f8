// Runs `ferry plan`: parses its options, and reads the machine and the workload. Calls json.h and
// report.h.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "ferry/status.h"
#include "tools/commands.h"
#include "tools/page.h"
#include "tools/plan/csv.h"
#include "tools/plan/expect.h"
#include "tools/plan/json.h"
#include "tools/plan/machine_json.h"
#include "tools/plan/options.h"
#include "tools/plan/report.h"
#include "tools/plan/routing.h"
#include "tools/plan/split.h"
#include "tools/plan/sweep.h"
#include "tools/refuse.h"
#include "tools/shape_options.h"

namespace ferry::tools {

namespace {

constexpr int kNotWithin = 1, kNotWritten = 1;
constexpr std::uint64_t kSeed = 1;  // the seed of `ferry bench`, for --routing real and zipf

struct PlanArguments {
  PlanRequest request;
  std::string routing = "uniform";  // in the form that routing.h describes
  std::string sweep;                // in the form that sweep.h describes
  std::string split;                // in the form that split.h describes
  SplitCosts split_costs;
  std::string expect;  // a file with the output of `ferry bench --json`
  std::string report;  // the file name of an HTML page
  double within_percent = 10;
  bool explain = false, json = false, csv = false, list = false;
};

// Without a model each pipeline stage has one layer.
void set_layers(const PlanRequest& request, Workload::Parallel& parallel) {
  if (request.model.empty()) parallel.layers = parallel.pp;
  if (parallel.pp > parallel.layers)
    refuse("--pp: {} stages, but {} has {} MoE layers", parallel.pp, request.model,
           parallel.layers);
}

Machine resized(const PlanRequest& request, const Machine& machine, int ranks) try {
  return machine.resized(ranks);
} catch (const Error& error) {
  throw std::invalid_argument(with_file(request.machine, error.what()));
}

PlannedPoint plan_point(const PlanArguments& options, const PlanRequest& request) {
  PlannedPoint point{.machine = read_machine(request.machine),
                     .workload = request.workload,
                     .chunks = request.options.chunks,
                     .plan = {}};
  set_layers(request, point.workload.parallel);
  const int before = point.machine.tree.num_ranks();
  if (request.ep > 0) point.machine = resized(request, point.machine, request.ep);
  const int ranks = point.machine.tree.num_ranks();
  set_routing(options.routing, kSeed, point.workload);
  point.plan = plan(point.machine, point.workload, request.options);
  if (ranks != before)
    point.plan.notes.push_back(fmt::format("{} as it would be with {} ranks in place of {}",
                                           point.machine.name, ranks, before));
  return point;
}

// Compares a prediction with a bench and returns the exit code.
int check_expected(const PlanArguments& options) {
  const Machine described = read_machine(options.request.machine);
  const nlohmann::json bench = bench_of(options.expect);
  const Machine machine = resized(options.request, described, bench.at("options").at("ranks"));
  const Plan planned = plan(machine, workload_of_bench(bench), options.request.options);
  const Expectation found = compare(planned, bench, options.within_percent / 100);
  std::cout << found.text << elsewhere_text(machine, bench) << std::flush;
  return found.within ? 0 : kNotWithin;
}

void list_names() {
  for (const std::string& preset : machine_presets())
    std::cout << preset << "\n" << Machine::parse(preset).to_text();
  for (const Model& model : models())
    std::cout << fmt::format("{}: hidden {}, {} of {} experts, {} layers\n", model.name,
                             model.hidden, model.top_k, model.experts, model.layers);
}

void print_plans(const PlanArguments& options) {
  nlohmann::ordered_json points = nlohmann::ordered_json::array();
  std::string text = options.csv ? csv_header() : "";
  for (const SweptPoint& swept : swept(options.request, options.sweep)) {
    const PlannedPoint point = plan_point(options, swept.request);
    if (options.json) {
      points.push_back(plan_json(point));
    } else if (options.csv) {
      text += csv_lines(point);
    } else {
      text += (text.empty() ? "" : "\n") + (swept.text.empty() ? "" : swept.text + "\n") +
              plan_text(point, options.explain);
    }
  }
  if (options.json) text = (options.sweep.empty() ? points[0] : points).dump() + "\n";
  std::cout << text << std::flush;
}

void print_splits(const PlanArguments& options) {
  const PlanRequest& request = options.request;
  const int ranks = request.ep > 0 ? request.ep : read_machine(request.machine).tree.num_ranks();
  std::vector<PlannedSplit> planned;
  for (const Split& split : parse_splits(options.split, ranks)) {
    PlanRequest divided = request;
    divided.ep = split.token_ranks + split.expert_ranks;
    set_roles(split, divided.workload.exchange);
    planned.push_back(planned_split(split, plan_point(options, divided), options.split_costs));
  }
  std::cout << (options.json ? split_json(planned).dump() + "\n" : split_text(planned))
            << std::flush;
}

// A picture cannot distinguish the links of more ranks than these.
constexpr int kMostDrawn = 64;

void write_report(const PlanArguments& options) {
  const PlannedPoint point = plan_point(options, options.request);
  nlohmann::ordered_json planned = plan_json(point);
  if (point.machine.tree.num_ranks() <= kMostDrawn) planned["links"] = links_json(point.machine);
  const nlohmann::ordered_json notes = planned["notes"];
  nlohmann::ordered_json lines = {"Predicted, not measured: what each strategy takes on " +
                                  point.machine.name + ". Best is " + point.plan.sentence + "."};
  lines.insert(lines.end(), notes.begin(), notes.end());
  write_page(options.report, {{"title", "ferry plan"}, {"lines", lines}, {"plan", planned}});
}

int run(const PlanArguments& options) {
  if (options.list) {
    list_names();
    return 0;
  }
  if (options.request.machine.empty()) refuse("which machine? --list shows those with names");
  if (!options.expect.empty()) return check_expected(options);
  if (!options.report.empty()) {
    if (!options.sweep.empty())
      throw std::invalid_argument("--report, --timeline: of one size, not of --sweep " +
                                  options.sweep);
    write_report(options);
  }
  options.split.empty() ? print_plans(options) : print_splits(options);
  return 0;
}

// Takes the fields of the model's shape that the command line does not set.
void set_model(const CLI::App& app, PlanRequest& request) {
  if (request.model.empty()) return;
  const Model& model = find_model(request.model);
  ExchangeConfig& config = request.workload.exchange;
  if (app.count("--hidden") == 0) config.hidden = model.hidden;
  if (app.count("--top-k") == 0) config.top_k = model.top_k;
  if (app.count("--experts") == 0) config.num_experts = model.experts;
  request.workload.parallel.layers = model.layers - model.dense_layers;
}

void check_sweep(const CLI::App& app, const std::string& sweep) {
  if (sweep.empty()) return;
  const std::string option = swept_option(sweep);
  if (app.count(option) > 0) refuse("--sweep {} and {} give one value twice", sweep, option);
}

void add_parallel(CLI::App& app, Workload::Parallel& parallel) {
  app.add_option("--tp", parallel.tp, "Neighbours that hold the same tokens and share them out")
      ->check(CLI::Range(1, 1024));
  app.add_option("--pp", parallel.pp, "Stages of the model; the machine is one of them")
      ->check(CLI::Range(1, 1024));
  app.add_option("--micro-batches", parallel.micro_batches,
                 "Of --tokens each; one computes while another exchanges")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--compute-us", parallel.compute_us, "Of an MoE layer and micro-batch, alone")
      ->check(CLI::Range(0.0, 1e9));
}

void add_split(CLI::App& app, PlanArguments& options) {
  CLI::Option* const split = app.add_option(
      "--split", options.split,
      "Ranks with tokens and ranks with experts: 12:4,8:8, or all divisions of the ranks. --tokens "
      "are those of a rank with tokens");
  app.add_option("--attention-us", options.split_costs.attention_us,
                 "Of a layer's attention on a rank with tokens, with --split")
      ->check(CLI::Range(0.0, 1e9))
      ->needs(split);
  app.add_option("--expert-row-ns", options.split_costs.expert_row_ns,
                 "Of a row on a rank with experts, with --split")
      ->check(CLI::Range(0.0, 1e9))
      ->needs(split);
  for (const char* const other : {"--sweep", "--expect", "--report", "--csv", "--explain"})
    split->excludes(other);
}

// Adds the options for sweeps, comparisons and forms of the output.
void add_outputs(CLI::App& app, PlanArguments& options) {
  app.add_option("--sweep", options.sweep,
                 "Several values of one option: ep=16,32,64; also tokens, hidden, top-k, experts, "
                 "chunks, tp, pp, micro-batches, compute-us");
  app.add_option("--expect", options.expect,
                 "What `ferry bench --json` measured, beside what is predicted for its shape")
      ->check(CLI::ExistingFile)
      ->excludes("--ep", "--sweep");
  app.add_option("--within", options.within_percent,
                 "Error that --expect allows, in percent: 10 or 10%")
      ->transform(
          [](std::string text) { return text.ends_with('%') ? text.erase(text.size() - 1) : text; })
      ->check(CLI::Range(1e-6, 1e6))
      ->capture_default_str();
  app.add_flag("--explain", options.explain, "When each task runs, and where constants come from");
  app.add_option("--report,--timeline", options.report,
                 "Also write an HTML page: strategies, their tasks in time, the links and loads");
  app.add_flag("--json", options.json, "One JSON object (with --sweep, a list) instead of text")
      ->excludes("--expect");
  app.add_flag("--csv", options.csv, "A line of CSV for each size and strategy instead of text")
      ->excludes("--expect", "--json", "--explain");
  app.add_flag("--list", options.list, "Machines and models that have names");
}

}  // namespace

void add_plan(CLI::App& app, int& exit_code) {
  CLI::App* const verb = app.add_subcommand(
      "plan", "How long dispatch and combine take on a machine, and what limits them");
  verb->footer(
      "Exit code: 0, 1 when --expect is not met or the page cannot be written, 2 for a wrong line "
      "or "
      "machine.");
  const auto options = std::make_shared<PlanArguments>();
  PlanRequest& request = options->request;
  request.workload.exchange = {.max_tokens = 4096, .hidden = 7168, .num_experts = 256, .top_k = 8};
  verb->add_option("machine", request.machine,
                   "A preset (ubbv2:2@port10, a2:8, h800:8@nic=45GB/s), levels "
                   "(host:2@12.5GB/s@5us,rank:4), or a file .txt or .json (docs/plan.md)");
  verb->add_option("--model", request.model,
                   "Hidden, top-k and experts of a model: deepseek-v3, ..");
  verb->add_option("--ep", request.ep,
                   "Ranks that exchange with each other (default: the machine's)")
      ->check(CLI::Range(1, Topology::kMostRanks));
  add_shape(*verb, request.workload.exchange);
  add_parallel(*verb, request.workload.parallel);
  verb->add_option(
          "--routing", options->routing,
          "uniform, limited:M/G (experts of M of G groups), a file .json of loads, or zipf:S, "
          "real, load:FILE[:LAYER], ids:FILE[:LAYER] as `ferry bench` has them")
      ->capture_default_str();
  verb->add_option("--chunks", request.options.chunks, "Pieces of a message")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  add_outputs(*verb, *options);
  add_split(*verb, *options);
  verb->callback([verb, options, &exit_code] {
    try {
      set_model(*verb, options->request);
      check_sweep(*verb, options->sweep);
      exit_code = run(*options);
    } catch (const std::invalid_argument& error) {
      std::cerr << "ferry plan: " << error.what() << '\n';
      exit_code = kUsageError;
    } catch (const nlohmann::json::exception& error) {
      std::cerr << "ferry plan: " << reason_of(error) << '\n';
      exit_code = kUsageError;
    } catch (const Error& error) {
      const std::string what = error.what();
      const bool of_machine = what.starts_with("machine, line ") || what.starts_with("machine: ");
      std::cerr << "ferry plan: " << (of_machine ? with_file(options->request.machine, what) : what)
                << '\n';
      exit_code = kUsageError;
    } catch (const std::runtime_error& error) {
      std::cerr << "ferry plan: " << error.what() << '\n';
      exit_code = kNotWritten;
    }
  });
}

}  // namespace ferry::tools

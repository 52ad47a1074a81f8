// Runs `ferry trace`: `record` starts a program with FERRY_TRACE, `diff` compares two runs, and
// `routing` writes the router trace of a run.
#include <fmt/format.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "tools/bench/router_trace.h"
#include "tools/commands.h"
#include "tools/refuse.h"
#include "tools/trace/difference.h"
#include "tools/trace/recorded_ids.h"
#include "tools/trace/run_files.h"

namespace ferry::tools {
namespace {

constexpr const char* kRecordFooter =
    R"(Runs the program with FERRY_TRACE=NAME: each rank writes a file, %r in NAME is the rank,
without it .RANK is added. Files of an earlier run with this name are removed. A file has at most
512 MiB. The first 256 MiB name tokens and k: 8 bytes for each (token, k) and 4 for each token of a
dispatch, 16 for each row received, 4 for each output, weight and result of a combine. After that a
dispatch or a combine takes 208 bytes. --from keeps the 256 MiB for later records.

  ferry trace record --out a -- ferry launch -n 4 -- python program.py)";

constexpr const char* kDiffFooter =
    R"(Compares two runs record by record, and names the first difference: the exchange and its
operation, the rank, the token and k, and what differs: ids, weights, addends (biases, shared output
and residual), rows sent, rows received or results. Exchanges are numbered from 0 in the order in
which a rank makes them, operations from 1 in each exchange.

Exit code: 0 if the runs are equal, 1 if they differ or one lacks a rank, 2 if they cannot be
compared.)";

constexpr const char* kRoutingFooter =
    R"(Writes the experts that the routers of a recorded run chose, [tokens, layers, top_k] int32,
as engines return them for replay; -1 where nothing was sent. The dispatches of a rank are its
layers in turn. Tokens are in the order of the ranks, and of the steps of a rank.

  ferry trace routing a --layers 3 --out ids.npy
  ferry bench --routing ids:ids.npy:1 ...)";

struct TraceOptions {
  std::string out = "ferry.trace", a, b, ids;
  int from = 0;
  std::int64_t layers = 1;
};

int record(const TraceOptions& options, const std::vector<std::string>& program) {
  if (program.empty()) refuse("record: there is no program behind --");
  for (const auto& [rank, file] : find_run(options.out)) std::filesystem::remove(file);
  setenv("FERRY_TRACE", options.out.c_str(), 1);
  setenv("FERRY_TRACE_FROM", std::to_string(options.from).c_str(), 1);
  std::vector<char*> arguments;
  for (const std::string& word : program) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
  refuse("record: cannot run '{}': {}", program[0], std::strerror(errno));
}

int diff(const TraceOptions& options) {
  const RunDifference difference = compare_runs(files_of_run(options.a), files_of_run(options.b));
  std::cout << text_of(difference);
  return difference.ranks.empty() && !difference.lacks_ranks ? 0 : 1;
}

int routing(const TraceOptions& options) {
  const RecordedIds recorded = recorded_ids(files_of_run(options.a), options.layers);
  bench::write_router_trace(options.ids, recorded.ids, options.layers, recorded.top_k);
  return 0;
}

// Sets `exit_code` to the result of `run`, or to the code of a wrong command line.
template <typename Run>
std::function<void()> guarded(int& exit_code, Run run) {
  return [&exit_code, run] {
    try {
      exit_code = run();
    } catch (const std::exception& error) {
      std::cerr << "ferry trace: " << error.what() << '\n';
      exit_code = kUsageError;
    }
  };
}

}  // namespace

void add_trace(CLI::App& app, const std::vector<std::string>& program, int& exit_code) {
  CLI::App* const verb = app.add_subcommand("trace", "Where two runs of a program differ first");
  verb->require_subcommand(1);
  const auto options = std::make_shared<TraceOptions>();
  CLI::App* const recording = verb->add_subcommand("record", "Runs a program and records it");
  recording->footer(kRecordFooter);
  recording->add_option("--out", options->out, "The name of the run")->capture_default_str();
  recording->add_option("--from", options->from, "The first record that names tokens and k")
      ->check(CLI::Range(0, 2'000'000'000))
      ->capture_default_str();
  recording->callback(
      guarded(exit_code, [options, &program] { return record(*options, program); }));
  CLI::App* const comparing = verb->add_subcommand("diff", "Names the first difference");
  comparing->footer(kDiffFooter);
  comparing->add_option("A", options->a, "The name of a run")->required();
  comparing->add_option("B", options->b, "The name of another")->required();
  comparing->callback(guarded(exit_code, [options] { return diff(*options); }));
  CLI::App* const choosing = verb->add_subcommand("routing", "Writes the router trace of a run");
  choosing->footer(kRoutingFooter);
  choosing->add_option("RUN", options->a, "The name of a run")->required();
  choosing->add_option("--layers", options->layers, "MoE layers, each with a dispatch in turn")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  choosing->add_option("--out", options->ids, "The .npy file")->required();
  choosing->callback(guarded(exit_code, [options] { return routing(*options); }));
}

}  // namespace ferry::tools

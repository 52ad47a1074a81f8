// mpi_bench: dispatch and combine as frameworks do them over MPI collectives, measured in the way
// of `ferry bench`: phases after a barrier, pairs in a free-running loop by batches. Started by
// bench/suite/suite.py under mpirun; prints one JSON object with the keys of `ferry bench --json`.
#include <fmt/format.h>
#include <mpi.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/clock.h"
#include "mpi_job.h"
#include "tools/bench/statistics.h"

namespace ferry::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMostBatches = 10, kFewestIterations = 20, kMostIterations = 2000;
constexpr double kDefaultRunNs = 0.5e9;
constexpr std::size_t kCheckedTokens = 64;

// The quantiles over all ranks, on rank 0: the processes of a host share CLOCK_MONOTONIC.
Json times_json(const std::vector<Interval>& mine, int num_ranks, int pairs) {
  std::vector<Interval> all(mine.size() * static_cast<std::size_t>(num_ranks));
  const int bytes = static_cast<int>(mine.size() * sizeof(Interval));
  MPI_Gather(mine.data(), bytes, MPI_BYTE, all.data(), bytes, MPI_BYTE, 0, MPI_COMM_WORLD);
  const Quantiles us =
      quantiles(spans_us(all.data(), static_cast<std::size_t>(num_ranks), mine.size()));
  return {{"min", us.min / pairs}, {"median", us.median / pairs}, {"p99", us.p99 / pairs}};
}

template <typename Work>
Interval timed(const Work& work) {
  MPI_Barrier(MPI_COMM_WORLD);
  Interval time;
  time.begin_ns = internal::now_ns();
  work();
  time.end_ns = internal::now_ns();
  return time;
}

// The expected result of combine for one element of a token whose experts return their input.
template <typename Exchange>
float expected_element(const Job& job, std::size_t token, float element) {
  const auto round = [](float value) {
    std::uint16_t bits = 0;
    internal::from_float(value, &bits, DataType::kBf16);
    return internal::to_float(&bits, DataType::kBf16);
  };
  float total = 0;
  for (int group = 0; group < job.num_ranks; ++group) {
    float sum = 0;
    for (std::size_t k = 0; k < job.top_k; ++k) {
      if (Exchange::sum_group(job, job.expert(token, k)) == group)
        sum += job.weight(token, k) * element;
    }
    total += round(sum);
  }
  return round(total);
}

// The number of wrong elements on all ranks, known to rank 0, in tokens spread evenly.
template <typename Exchange>
std::uint64_t count_wrong(const Job& job, Exchange& exchange) {
  std::memset(job.out[0], 0xff, job.num_tokens * job.row_bytes);
  exchange.dispatch();
  exchange.combine();
  std::uint64_t wrong = 0, all_wrong = 0;
  const std::size_t step = std::max<std::size_t>(1, job.num_tokens / kCheckedTokens);
  for (std::size_t token = 0; token < job.num_tokens; token += step) {
    for (std::size_t at = 0; at < job.row_bytes; at += sizeof(std::uint16_t)) {
      const float in = internal::to_float(job.tokens[token] + at, DataType::kBf16);
      const float out = internal::to_float(job.out[token] + at, DataType::kBf16);
      if (!(out == expected_element<Exchange>(job, token, in))) ++wrong;
    }
  }
  MPI_Reduce(&wrong, &all_wrong, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
  return all_wrong;
}

// Warms up and returns how many pairs to time, the same on all ranks.
template <typename Exchange>
int warm_up(Exchange& exchange, const Options& options) {
  std::int64_t fastest_ns = INT64_MAX;
  for (int i = 0; i < std::max(options.warmup, 1); ++i) {
    const Interval time = timed([&] { exchange.dispatch(), exchange.combine(); });
    fastest_ns = std::min(fastest_ns, time.end_ns - time.begin_ns);
  }
  MPI_Bcast(&fastest_ns, 1, MPI_INT64_T, 0, MPI_COMM_WORLD);
  if (options.iterations > 0) return options.iterations;
  const double wanted = kDefaultRunNs / static_cast<double>(std::max<std::int64_t>(fastest_ns, 1));
  return static_cast<int>(std::clamp<double>(wanted, kFewestIterations, kMostIterations));
}

template <typename Exchange>
Json measure(const Job& job, const Options& options) {
  Exchange exchange(job);
  const int iterations = warm_up(exchange, options);
  std::vector<Interval> dispatch, combine, batches;
  for (int i = 0; i < iterations; ++i) {
    dispatch.push_back(timed([&] { exchange.dispatch(); }));
    combine.push_back(timed([&] { exchange.combine(); }));
  }
  const int num_batches = std::min(iterations, kMostBatches);
  const int pairs = (iterations + num_batches - 1) / num_batches;
  for (int i = 0; i < num_batches; ++i) {
    batches.push_back(timed([&] {
      for (int pair = 0; pair < pairs; ++pair) exchange.dispatch(), exchange.combine();
    }));
  }
  return {{"iterations", iterations},
          {"dispatch_us", times_json(dispatch, job.num_ranks, 1)},
          {"combine_us", times_json(combine, job.num_ranks, 1)},
          {"pair_us", times_json(batches, job.num_ranks, pairs)},
          {"wrong", count_wrong(job, exchange)}};
}

// "Open MPI v4.1.4", without the rest of the text.
std::string library_name() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string_view name(text, static_cast<std::size_t>(length));
  return std::string(name.substr(0, name.find_first_of(",\n")));
}

int run(const std::string& algorithm, const Options& options) {
  const Job job(options);
  Json object = {{"library", library_name()},
                 {"algorithm", algorithm},
                 {"ranks", job.num_ranks},
                 {"tokens", options.shape.max_tokens},
                 {"hidden", options.shape.hidden},
                 {"top_k", options.shape.top_k},
                 {"experts", options.shape.num_experts},
                 {"routing", options.routing_text},
                 {"seed", options.seed}};
  object.update(algorithm == "dedup" ? measure<Dedup>(job, options)
                                     : measure<AllToAll>(job, options));
  if (job.rank != 0) return 0;
  fmt::print("{}\n", object.dump());
  return object["wrong"] == 0 ? 0 : 1;
}

// The options of `ferry bench` that also apply to these pipelines.
void add_pipeline_options(CLI::App& app, Options& options) {
  app.add_option("--tokens", options.shape.max_tokens)->check(CLI::Range(1, 1 << 24));
  app.add_option("--hidden", options.shape.hidden)->check(CLI::Range(1, 1 << 20));
  app.add_option("--top-k", options.shape.top_k)->check(CLI::Range(1, 32));
  app.add_option("--experts", options.shape.num_experts)->check(CLI::Range(1, 65536));
  app.add_option("--routing", options.routing_text);
  app.add_option("--top-groups", options.top_groups);
  app.add_option("--iterations", options.iterations)->check(CLI::Range(1, 1000000));
  app.add_option("--warmup", options.warmup)->check(CLI::Range(0, 1000000));
  app.add_option("--seed", options.seed);
}

}  // namespace
}  // namespace ferry::bench

int main(int argc, char** argv) {
  ferry::bench::Options options;
  std::string algorithm = "a2av";
  CLI::App app("Dispatch and combine over MPI collectives; options as of ferry bench");
  app.add_option("--algorithm", algorithm)->check(CLI::IsMember({"a2av", "dedup"}));
  ferry::bench::add_pipeline_options(app, options);
  CLI11_PARSE(app, argc, argv);
  MPI_Init(&argc, &argv);
  int exit_code = 1;
  try {
    exit_code = ferry::bench::run(algorithm, options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "mpi_bench: {}\n", error.what());
    MPI_Abort(MPI_COMM_WORLD, exit_code);
  }
  MPI_Finalize();
  return exit_code;
}

// mpi_collectives: ferry's collectives beside those of MPI, in turns in the same processes, started
// by mpirun. Prints a table: medians over rounds, of the slowest rank. A rank writes the data that
// it sends before each call, as programs do, and the time has both: otherwise a rank that reads the
// memory of another one in place finds it in its own cache.
//
//   mpirun -n 2 --bind-to core build/release/bench/mpi_collectives [--rounds 11]
//       [--smallest 4] [--largest 16777216] [--factor 16] [--only all_reduce]
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <mpi.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "ferry/collectives.h"
#include "ferry/group.h"

namespace ferry::bench {
namespace {

constexpr std::int64_t kTurnNs = 10'000'000;  // of one side in a round

struct Options {
  int rounds = 11;
  // Bytes. Each size is `factor` times the one before.
  std::int64_t smallest = 4, largest = std::int64_t{16} << 20, factor = 16;
  std::string only;  // calls whose name begins so
  bool json = false;
};

// One call by each side, on float32 elements. `in_place`: the same call of ferry with data in
// memory of the Collectives; empty where that makes no difference.
struct Call {
  const char* name;
  std::function<void()> ferry, mpi, in_place = {};
  // What the rank sends: memory of the program, and the same data in memory of the Collectives.
  std::span<float> sent = {}, shown = {};
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// Microseconds of a call on the slowest rank. Rank 0 decides how many calls are timed.
double timed(const std::function<void()>& make, std::span<float> sent) {
  float value = 0;
  const auto call = [&] {
    std::ranges::fill(sent, ++value);
    make();
  };
  std::int64_t once_ns = internal::now_ns();
  for (int i = 0; i < 3; ++i) call();
  once_ns = (internal::now_ns() - once_ns) / 3;
  int calls = static_cast<int>(
      std::clamp<std::int64_t>(kTurnNs / std::max<std::int64_t>(once_ns, 1), 3, 10'000));
  MPI_Bcast(&calls, 1, MPI_INT, 0, MPI_COMM_WORLD);
  MPI_Barrier(MPI_COMM_WORLD);
  const std::int64_t began_ns = internal::now_ns();
  for (int i = 0; i < calls; ++i) call();
  double us = static_cast<double>(internal::now_ns() - began_ns) / calls / 1000;
  MPI_Allreduce(MPI_IN_PLACE, &us, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return us;
}

class Table {
 public:
  Table(Group& group, const Options& options)
      : options_(options),
        group_(group),
        collectives_(group, {.shared_bytes = 4 * options.largest + (std::int64_t{1} << 20)}) {}

  void print() {
    line("| ranks | call | bytes | ferry, us | MPI, us | ferry / MPI | in place / ferry |");
    line("| --- | --- | --- | --- | --- | --- | --- |");
    measure({"barrier", [this] { require_ok(collectives_.barrier()); },
             [] { MPI_Barrier(MPI_COMM_WORLD); }},
            0);
    for (std::int64_t bytes = options_.smallest; bytes <= options_.largest;
         bytes *= options_.factor) {
      for (const Call& call : calls(bytes)) measure(call, bytes);
    }
    if (group_.rank() == 0 && options_.json)
      fmt::print("{{\"times\": [{}]}}\n", fmt::join(times_, ", "));
  }

 private:
  using Floats = std::vector<float>;

  std::vector<Call> calls(std::int64_t bytes);
  void measure(const Call& call, std::int64_t bytes);
  void line(const std::string& text) const {
    if (group_.rank() == 0 && !options_.json) fmt::print("{}\n", text);
  }
  float* allocate(std::int64_t elements) {
    memory_.push_back(collectives_.allocate(elements * static_cast<std::int64_t>(sizeof(float))));
    auto* const data = static_cast<float*>(memory_.back().get());
    std::fill_n(data, elements, 1.F);
    return data;
  }

  const Options options_;
  Group& group_;
  Collectives collectives_;
  Floats whole_, out_;
  std::vector<std::int64_t> counts_;
  std::vector<std::shared_ptr<void>> memory_;
  std::vector<std::string> times_;  // [call, bytes, {program: us}] of each call, in JSON
};

// `bytes`: the size of the larger memory of each call.
std::vector<Call> Table::calls(std::int64_t bytes) {
  constexpr auto kType = DataType::kFp32;
  constexpr auto kSum = ReduceOp::kSum;
  const int ranks = group_.size();
  const std::int64_t each = std::max<std::int64_t>(1, bytes / 4 / ranks), all = each * ranks;
  const int n = static_cast<int>(each), n_all = static_cast<int>(all);
  whole_.assign(static_cast<std::size_t>(all), 1);
  out_.assign(static_cast<std::size_t>(all), 0);
  counts_.assign(static_cast<std::size_t>(ranks), each);
  memory_.clear();
  float *const in = whole_.data(), *const out = out_.data();
  float *const shown = allocate(all), *const part = allocate(each);
  const std::span<float> sends_all(in, static_cast<std::size_t>(all));
  const std::span<float> sends_part = sends_all.first(static_cast<std::size_t>(each));
  const std::span<float> shows_all(shown, sends_all.size()), shows_part(part, sends_part.size());
  const bool root = group_.rank() == 0;
  const auto exchange = [=, this](const float* from) {
    require_ok(collectives_.all_to_all_v(from, counts_, out, counts_, kType));
  };
  const auto gather = [=, this](const float* from) {
    require_ok(collectives_.all_gather_v(from, each, out, counts_, kType));
  };
  const auto scatter = [=, this](const float* from) {
    require_ok(collectives_.reduce_scatter_v(from, counts_, out, kType, kSum));
  };
  const auto broadcast = [=, this](float* data) {
    require_ok(collectives_.broadcast(data, all, kType, 0));
  };
  return {{"all_to_all", [=] { exchange(in); },
           [=] { MPI_Alltoall(in, n, MPI_FLOAT, out, n, MPI_FLOAT, MPI_COMM_WORLD); },
           [=] { exchange(shown); }, sends_all, shows_all},
          {"all_gather", [=] { gather(in); },
           [=] { MPI_Allgather(in, n, MPI_FLOAT, out, n, MPI_FLOAT, MPI_COMM_WORLD); },
           [=] { gather(part); }, sends_part, shows_part},
          {"reduce_scatter", [=] { scatter(in); },
           [=] { MPI_Reduce_scatter_block(in, out, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); },
           [=] { scatter(shown); }, sends_all, shows_all},
          {"all_reduce",
           [=, this] { require_ok(collectives_.all_reduce(in, out, all, kType, kSum)); },
           [=] { MPI_Allreduce(in, out, n_all, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); },
           {},
           sends_all},
          {"broadcast", [=] { broadcast(in); },
           [=] { MPI_Bcast(in, n_all, MPI_FLOAT, 0, MPI_COMM_WORLD); }, [=] { broadcast(shown); },
           root ? sends_all : std::span<float>(), root ? shows_all : std::span<float>()}};
}

void Table::measure(const Call& call, std::int64_t bytes) {
  if (!std::string(call.name).starts_with(options_.only)) return;
  std::vector<double> ferry, mpi, in_place;
  for (int round = 0; round < options_.rounds; ++round) {
    ferry.push_back(timed(call.ferry, call.sent));
    mpi.push_back(timed(call.mpi, call.sent));
    if (call.in_place) in_place.push_back(timed(call.in_place, call.shown));
  }
  std::vector<double> ratios(ferry.size());
  std::ranges::transform(ferry, mpi, ratios.begin(), std::divides());
  line(
      fmt::format("| {} | {} | {} | {:.2f} | {:.2f} | {:.2f} | {} |", group_.size(), call.name,
                  bytes, median(ferry), median(mpi), median(ratios),
                  in_place.empty() ? "" : fmt::format("{:.2f}", median(in_place) / median(ferry))));
  times_.push_back(fmt::format("[\"{}\", {}, {{\"ferry\": {:.3f}, \"Open MPI\": {:.3f}}}]",
                               call.name, bytes, median(ferry), median(mpi)));
}

void run(const Options& options) {
  int rank = 0, size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const AllGather all_gather = [](const void* mine, void* all, std::size_t bytes) {
    const int count = static_cast<int>(bytes);
    return MPI_Allgather(mine, count, MPI_BYTE, all, count, MPI_BYTE, MPI_COMM_WORLD) ==
           MPI_SUCCESS;
  };
  Group group = Group::from_all_gather(rank, size, all_gather);
  Table(group, options).print();
}

}  // namespace
}  // namespace ferry::bench

int main(int argc, char** argv) {
  ferry::bench::Options options;
  CLI::App app("ferry's collectives beside those of MPI, in the same processes");
  app.add_option("--rounds", options.rounds)->check(CLI::Range(1, 1000));
  app.add_option("--smallest", options.smallest, "bytes")->check(CLI::Range(4, 1 << 30));
  app.add_option("--largest", options.largest, "bytes")->check(CLI::Range(4, 1 << 30));
  app.add_option("--factor", options.factor, "of one size to the next")->check(CLI::Range(2, 1024));
  app.add_option("--only", options.only, "calls whose name begins so");
  app.add_flag("--json", options.json, "one line of JSON in place of the table");
  CLI11_PARSE(app, argc, argv);
  MPI_Init(&argc, &argv);
  int exit_code = 0;
  try {
    ferry::bench::run(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "mpi_collectives: {}\n", error.what());
    MPI_Abort(MPI_COMM_WORLD, exit_code = 1);
  }
  MPI_Finalize();
  return exit_code;
}

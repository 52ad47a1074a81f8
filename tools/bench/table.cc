// Prints the table of `ferry bench`, in the style of nccl-tests; see measure.h.
#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string_view>

#include "tools/bench/cores.h"
#include "tools/bench/flag_time.h"
#include "tools/bench/measure.h"
#include "traffic/choose.h"

namespace ferry::bench {
namespace {

// Formats a time with three significant digits, to fit a column.
std::string short_number(double value) {
  if (value >= 99.95) return fmt::format("{:.0f}", value);
  return value >= 9.995 ? fmt::format("{:.1f}", value) : fmt::format("{:.2f}", value);
}

// GB/s from bytes and microseconds.
double gigabytes_per_second(double bytes, double us) { return us > 0 ? bytes / us * 1e-3 : 0; }

std::string iterations_text(const Options& options) {
  return options.iterations > 0 ? fmt::format("{} iterations", options.iterations)
                                : "about half a second each";
}

std::string tokens_text(const Options& options) {
  if (options.tokens_per_rank.empty()) return "";
  std::string text = ", tokens per rank";
  for (const std::int64_t tokens : options.tokens_per_rank) text += fmt::format(" {}", tokens);
  return text;
}

// Lists the options that are not the default. Empty if all are.
std::string features_text(const Options& options) {
  std::string text;
  if (options.shape.wire != Wire::kNone)
    text += fmt::format(", wire {}", wire_name(options.shape.wire));
  if (options.shape.combine_wire != CombineWire::kNone)
    text += fmt::format(", combine wire {}", wire_name(options.shape.combine_wire));
  if (options.shape.shared.num_experts > 0) {
    text +=
        fmt::format(", {} shared expert{} on {} rank{}", options.shape.shared.num_experts,
                    options.shape.shared.num_experts == 1 ? "" : "s",
                    options.shape.shared.num_ranks, options.shape.shared.num_ranks == 1 ? "" : "s");
  }
  if (!options.split_text.empty())
    text += fmt::format(", tokens on {} ranks and experts on {}", options.shape.token_ranks.size(),
                        options.shape.expert_ranks.size());
  if (options.mask_fraction > 0)
    text += fmt::format(", {} of entries masked", options.mask_fraction);
  if (options.shape.algorithm != Algorithm::kAuto)
    text += fmt::format(", algorithm {}", internal::algorithm_name(options.shape.algorithm));
  if (options.shape.node_sums != NodeSums::kRowType)
    text += fmt::format(", node sums {}", node_sums_name(options.shape.node_sums));
  if (!options.topology.empty()) text += fmt::format(", topology {}", options.topology);
  return text.empty() ? text : "# " + text.substr(2) + "\n";
}

// Returns a line for each level between nodes, which is printed below the measurement. Empty on one
// node.
std::string between_nodes_text(const Measurement& m) {
  if (m.levels.size() < 2) return "";
  std::string text = fmt::format("#   between nodes: {} ({})\n",
                                 internal::algorithm_name(m.algorithm), m.algorithm_reason);
  for (const LevelBytes& level : std::span(m.levels).first(m.levels.size() - 1)) {
    text += fmt::format("#   {}: {:.3f} MB out of the busiest, {:.3f} MB with headers", level.name,
                        level.bytes * 1e-6, level.all_bytes * 1e-6);
    if (level.limit_us > 0)
      text += fmt::format("; link limit {} us, pair/limit {:.2f}", short_number(level.limit_us),
                          m.pair_us.median / level.limit_us);
    text += "\n";
  }
  return text;
}

// Gives reasons why the times of the next run may differ.
std::string changes_text(const Measurement& m) {
  if (cores_moved(m.limit.flags_ns)) {
    const auto [least, most] = std::ranges::minmax_element(m.limit.flags_ns);
    return fmt::format(
        "#   the cores were moved while this ran: a flag took {:.0f} to {:.0f} ns from one to the "
        "next,"
        " as\n#   within a cache and between two. Compare runs in which it takes the same.\n",
        *least, *most);
  }
  if (!m.limit.memory_changed()) return "";
  return fmt::format(
      "#   the memory changed its speed: known took {} us before the ranks ran and {} us after. "
      "Compare\n#   runs in which known takes the same.\n",
      short_number(m.limit.rounds_us.front()), short_number(m.limit.rounds_us.back()));
}

constexpr std::string_view kLine =
    "{:>8} {:>8} {:>7} {:>5} {:>8} {:>8} {:>8} {:>6} {:>6} {:>8} {:>5} {:>5} {:>6}\n";

}  // namespace

std::string table_header(const Options& options) {
  const std::string processor = processor_name();
  const std::size_t cores = allowed_cores().size();
  std::string text = fmt::format("# ferry bench on {} core{}{}{}\n", cores, cores == 1 ? "" : "s",
                                 processor.empty() ? "" : " of ", processor);
  text += fmt::format("# {} ranks ({}{}, {} worker{} each)\n", options.ranks,
                      mode_name(options.mode), options.pin ? ", pinned" : "", options.shape.workers,
                      options.shape.workers == 1 ? "" : "s");
  text += fmt::format("# hidden {}, {} experts, top-{}, {}, {}{}\n", options.shape.hidden,
                      options.shape.num_experts, options.shape.top_k,
                      data_type_name(options.shape.dtype), layout_name(options.shape.layout),
                      tokens_text(options));
  text += features_text(options);
  text += fmt::format("# routing {} (seed {}), {} after {} of warm-up{}\n#\n", options.routing_text,
                      options.seed, iterations_text(options), options.warmup,
                      options.check ? ", checked against the oracle" : "");
  text += fmt::format(kLine, "# tokens", "rows", "size", "type", "dispatch", "combine", "pair",
                      "algbw", "wirebw", "known", "pair/", "busy/", "wrong");
  text += fmt::format(kLine, "#  /rank", "", "MB", "", "us", "us", "us", "GB/s", "GB/s", "us",
                      "known", "mean", "");
  return text;
}

std::string table_line(const Options& options, const Measurement& m) {
  const double moved = static_cast<double>(m.dispatch_bytes + m.combine_bytes);
  const double wire = static_cast<double>(m.rows.remote) *
                      static_cast<double>(options.wire_row_bytes() + options.row_bytes());
  const bool one_machine = m.limit.pair_us > 0;
  const std::string line = fmt::format(
      kLine, m.tokens, m.rows.all, short_number(static_cast<double>(m.dispatch_bytes) * 1e-6),
      data_type_name(options.shape.dtype), short_number(m.dispatch_us.median),
      short_number(m.combine_us.median), short_number(m.pair_us.median),
      fmt::format("{:.1f}", gigabytes_per_second(moved, m.pair_us.median)),
      fmt::format("{:.1f}", gigabytes_per_second(wire, m.pair_us.median)),
      one_machine ? short_number(m.limit.pair_us) : "n/a",
      one_machine ? short_number(m.limit_ratio()) : "n/a", fmt::format("{:.2f}", m.rows.imbalance),
      options.check ? fmt::format("{}", m.wrong) : "n/a");
  return line + stores_text(m.rows.stores) + changes_text(m) + between_nodes_text(m);
}

std::string rebalance_footer(const Options& options, const std::vector<Measurement>& measurements) {
  const Measurement &blocks = measurements[0], &balanced = measurements[1], &even = measurements[2];
  const std::string stores = stores_names(blocks.rows.stores);
  const bool same =
      stores_names(balanced.rows.stores) == stores && stores_names(even.rows.stores) == stores;
  return fmt::format(
      "#\n"
      "# 1st line: experts in blocks. 2nd: with {} copies of busy experts, placed by EPLB. 3rd: "
      "uniform routing.\n"
      "# Busiest rank over the mean: {:.2f}, balanced {:.2f}. Pair over that of uniform routing: "
      "{:.2f}, balanced {:.2f}.\n{}",
      options.redundant_experts, blocks.rows.imbalance, balanced.rows.imbalance,
      blocks.pair_us.median / even.pair_us.median, balanced.pair_us.median / even.pair_us.median,
      same ? "" : "# The lines used different stores, which is a part of their difference.\n");
}

std::string table_footer(const Options& options, const std::vector<Measurement>& measurements) {
  std::string text =
      "#\n"
      "# rows, size: received by all ranks in one dispatch. Times are medians: dispatch and "
      "combine\n"
      "# from a barrier to the last rank's end, pair is one of each in a free-running loop. algbw: "
      "rows\n"
      "# written and read per time of a pair; wirebw: those of other ranks only. known: a pair of "
      "the\n"
      "# same rows moved by threads that know every place beforehand. busy/mean: rows of the "
      "busiest rank.\n";
  std::uint64_t compared = 0, wrong = 0;
  for (const Measurement& m : measurements) {
    compared += m.compared;
    wrong += m.wrong;
  }
  if (options.check) {
    text += fmt::format("# {} of {:.3f} million elements compared with the oracle are wrong.\n",
                        wrong, static_cast<double>(compared) * 1e-6);
  }
  return text;
}

}  // namespace ferry::bench

// Writes the text of a plan; see report.h.
#include "tools/plan/report.h"

#include <fmt/format.h>

#include <algorithm>

#include "traffic/ranking.h"

namespace ferry::tools {

namespace {

using internal::bytes_text;
using internal::time_text;

std::string loads_text(const Prediction& prediction) {
  std::string text;
  for (const Load& load : prediction.loads) {
    if (load.dispatch_bytes <= 0) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", load.name,
                        bytes_text(load.dispatch_bytes));
  }
  return text;
}

std::string table(const Plan& plan) {
  std::size_t width = 8;
  for (const Prediction& p : plan.predictions) width = std::max(width, p.strategy.size());
  std::string text =
      fmt::format("{:<{}} {:>9} {:>9} {:>9} {:>9}  {:<12} {}\n", "strategy", width, "dispatch",
                  "combine", "pair", "bound", "limited by", "busiest of each, out");
  for (const Prediction& p : plan.predictions) {
    text += fmt::format("{:<{}} {:>9} {:>9} {:>9} {:>9}  {:<12} {}\n", p.strategy, width,
                        time_text(p.dispatch_us), time_text(p.combine_us), time_text(p.pair_us()),
                        time_text(p.bound_us()), p.limited_by, loads_text(p));
  }
  return text;
}

std::string doubled_text(const Prediction& best) {
  std::string text;
  for (const auto& [name, us] : best.doubled) {
    const double gain = best.pair_us() > 0 ? 1 - us / best.pair_us() : 0;
    const std::string before = time_text(best.pair_us()), after = time_text(us);
    text += gain < 0.005 || after == before
                ? fmt::format("were {} twice as fast, nothing would change\n", name)
                : fmt::format("were {} twice as fast: {} instead of {} ({:.0f} % less)\n", name,
                              after, before, 100 * gain);
  }
  return text;
}

std::string spans_text(const char* title, const std::vector<Span>& spans) {
  std::string text = fmt::format("{}\n", title);
  for (const Span& span : spans)
    text += fmt::format("  {:>9} - {:>9}  {:>9} x {:<8} {}\n", time_text(span.start_us),
                        time_text(span.end_us), bytes_text(span.bytes), span.count, span.what);
  return text;
}

std::string sources_text(const Prediction& best) {
  std::string text = "constants\n";
  for (const Load& load : best.loads) {
    const std::string rate = load.gb_s > 0 ? fmt::format("{:.4g} GB/s", load.gb_s) : "no rate";
    text += fmt::format("  {:<12} {:>12}  {}\n", load.name, rate,
                        load.source.empty() ? "of no stated source" : load.source);
  }
  return text;
}

std::string window_text(const WindowBytes& window) {
  if (window.worst == 0) return "";
  return fmt::format("memory of a rank: {} of window with balanced experts, at most {}\n",
                     bytes_text(static_cast<double>(window.expected)),
                     bytes_text(static_cast<double>(window.worst)));
}

std::string step_text(const PlannedPoint& point) {
  const Workload::Parallel& parallel = point.workload.parallel;
  const Step& step = point.plan.predictions.front().step;
  if (std::max({parallel.tp, parallel.pp, parallel.micro_batches}) == 1 && parallel.compute_us == 0)
    return "";
  std::string text = fmt::format("a layer and micro-batch: {} computing, {} exchanging",
                                 time_text(parallel.compute_us),
                                 time_text(point.plan.predictions.front().pair_us()));
  if (parallel.tp > 1)
    text += fmt::format(", {} gathering {} from TP neighbours", time_text(step.gather_us),
                        bytes_text(step.gathered_bytes));
  text += fmt::format(": {}; in pairs of micro-batches {}\n", time_text(step.layer_us),
                      time_text(step.paired_us));
  const std::string most = parallel.layers % parallel.pp == 0
                               ? ""
                               : fmt::format(" of at most {}", parallel.stage_layers());
  return text + fmt::format(
                    "a forward step of {} layers in {} stages{}, {} micro-batches: {}; in "
                    "pairs {}\n",
                    parallel.layers, parallel.pp, most, parallel.micro_batches,
                    time_text(step.step_us), time_text(step.paired_step_us));
}

}  // namespace

std::string plan_text(const PlannedPoint& point, bool explain) {
  const ExchangeConfig& exchange = point.workload.exchange;
  const Prediction& best = point.plan.predictions.front();
  std::string text =
      fmt::format("{}: {} ranks, {} tokens each, hidden {}, {} of {} experts, {}, wire {}\n",
                  point.machine.name, point.machine.tree.num_ranks(), exchange.max_tokens,
                  exchange.hidden, exchange.top_k, exchange.num_experts,
                  data_type_name(exchange.dtype), wire_name(exchange.wire));
  text += table(point.plan) + "best is " + point.plan.sentence + "\n" + doubled_text(best) +
          window_text(point.plan.window) + step_text(point);
  for (const std::string& note : point.plan.notes) text += "note: " + note + "\n";
  if (!explain) return text;
  text += sources_text(best);
  text += spans_text("dispatch: from, to, bytes of each, equal tasks", best.dispatch_spans);
  text += spans_text("combine", best.combine_spans);
  return text;
}

}  // namespace ferry::tools

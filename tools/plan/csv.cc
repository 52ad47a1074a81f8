// Writes the columns of csv.h.
#include "tools/plan/csv.h"

#include <fmt/format.h>

#include <vector>

namespace ferry::tools {

namespace {

struct Column {
  const char* name;
  std::string value;
};

// Puts a text in quotes if it has a comma, a quote or a line end.
std::string quoted(const std::string& text) {
  if (text.find_first_of(",\"\n") == text.npos) return text;
  std::string inside;
  for (const char c : text) inside += c == '"' ? std::string("\"\"") : std::string(1, c);
  return '"' + inside + '"';
}

std::vector<Column> columns(const PlannedPoint& point, const Prediction& prediction) {
  const ExchangeConfig& exchange = point.workload.exchange;
  const Workload::Parallel& parallel = point.workload.parallel;
  const Step& step = prediction.step;
  const auto number = [](auto value) { return fmt::format("{}", value); };
  return {{"machine", quoted(point.machine.name)},
          {"ranks", number(point.machine.tree.num_ranks())},
          {"tokens", number(exchange.max_tokens)},
          {"hidden", number(exchange.hidden)},
          {"top_k", number(exchange.top_k)},
          {"experts", number(exchange.num_experts)},
          {"dtype", data_type_name(exchange.dtype)},
          {"wire", std::string(wire_name(exchange.wire))},
          {"tp", number(parallel.tp)},
          {"pp", number(parallel.pp)},
          {"micro_batches", number(parallel.micro_batches)},
          {"compute_us", number(parallel.compute_us)},
          {"strategy", quoted(prediction.strategy)},
          {"dispatch_us", number(prediction.dispatch_us)},
          {"combine_us", number(prediction.combine_us)},
          {"pair_us", number(prediction.pair_us())},
          {"bound_dispatch_us", number(prediction.dispatch_bound_us)},
          {"bound_combine_us", number(prediction.combine_bound_us)},
          {"at_most_us", number(prediction.at_most_us)},
          {"chunks", number(prediction.chunks)},
          {"limited_by", quoted(prediction.limited_by)},
          {"window_bytes", number(point.plan.window.expected)},
          {"layer_us", number(step.layer_us)},
          {"paired_us", number(step.paired_us)},
          {"step_us", number(step.step_us)},
          {"paired_step_us", number(step.paired_step_us)}};
}

std::string line(const std::vector<Column>& columns, bool names) {
  std::string text;
  for (const Column& column : columns)
    text += (text.empty() ? "" : ",") + (names ? column.name : column.value);
  return text + "\n";
}

}  // namespace

std::string csv_header() { return line(columns({}, {}), true); }

std::string csv_lines(const PlannedPoint& point) {
  std::string text;
  for (const Prediction& prediction : point.plan.predictions)
    text += line(columns(point, prediction), false);
  return text;
}

}  // namespace ferry::tools

// Plans divisions of ranks; see split.h.
#include "tools/plan/split.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "tools/refuse.h"
#include "traffic/ranking.h"

namespace ferry::tools {

namespace {

using internal::bytes_text;
using internal::time_text;
using nlohmann::ordered_json;

constexpr int kMostDivided = 64;  // the most ranks that --split all divides

ordered_json window_json(const WindowBytes& window) {
  return {{"expected", window.expected}, {"worst", window.worst}};
}

ordered_json one_json(const PlannedSplit& planned) {
  const Prediction& best = planned.point.plan.predictions.front();
  return {{"token_ranks", planned.split.token_ranks},
          {"expert_ranks", planned.split.expert_ranks},
          {"strategy", best.strategy},
          {"dispatch_us", best.dispatch_us},
          {"combine_us", best.combine_us},
          {"limited_by", best.limited_by},
          {"rows", planned.rows},
          {"experts_us", planned.experts_us},
          {"layer_us", planned.layer_us},
          {"overlapped_us", planned.overlapped_us},
          {"tokens_per_us", planned.tokens_per_us},
          {"window_bytes",
           {{"token_rank", window_json(planned.token_rank)},
            {"expert_rank", window_json(planned.expert_rank)}}},
          {"notes", planned.point.plan.notes}};
}

}  // namespace

std::vector<Split> parse_splits(const std::string& text, int num_ranks) {
  std::vector<Split> splits;
  if (text == "all") {
    if (num_ranks < 2 || num_ranks > kMostDivided)
      refuse("--split all: {} ranks, need 2 to {}; name divisions as 12:4,8:8", num_ranks,
             kMostDivided);
    for (int owners = 1; owners < num_ranks; ++owners)
      splits.push_back({num_ranks - owners, owners});
    return splits;
  }
  for (std::string_view rest = text;;) {
    const std::size_t comma = rest.find(',');
    const std::optional<Split> split = parse_split(rest.substr(0, comma));
    if (!split) break;
    splits.push_back(*split);
    if (comma == std::string_view::npos) return splits;
    rest.remove_prefix(comma + 1);
  }
  refuse(
      "--split: '{}' is not of the form 12:4,8:8 (ranks with tokens : ranks with experts), or "
      "all",
      text);
}

PlannedSplit planned_split(const Split& split, PlannedPoint point, const SplitCosts& costs) {
  PlannedSplit planned{.split = split, .point = std::move(point)};
  const ExchangeConfig& exchange = planned.point.workload.exchange;
  const Prediction& best = planned.point.plan.predictions.front();
  const int num_ranks = split.token_ranks + split.expert_ranks;
  const double tokens = static_cast<double>(exchange.max_tokens) * split.token_ranks;
  planned.rows = tokens * exchange.top_k / split.expert_ranks;
  planned.experts_us = planned.rows * costs.expert_row_ns / 1e3;
  planned.layer_us = costs.attention_us + best.pair_us() + planned.experts_us;
  planned.overlapped_us =
      std::max({costs.attention_us, planned.experts_us, best.dispatch_us, best.combine_us});
  const bool overlaps = planned.point.workload.parallel.micro_batches > 1;
  const double us = overlaps ? planned.overlapped_us : planned.layer_us;
  planned.tokens_per_us = us > 0 ? tokens / us / num_ranks : 0;
  if (planned.point.plan.window.worst == 0) return planned;  // the exchange is refused, by a note
  planned.token_rank = window_bytes(exchange, num_ranks, 0);
  planned.expert_rank = window_bytes(exchange, num_ranks, split.token_ranks);
  return planned;
}

std::size_t best_split(const std::vector<PlannedSplit>& splits) {
  return std::ranges::max_element(splits, {}, &PlannedSplit::tokens_per_us) - splits.begin();
}

std::string split_text(const std::vector<PlannedSplit>& splits) {
  constexpr std::string_view kLine =
      "{:>9}  {:<14} {:>9} {:>9} {:>9} {:>9} {:>9} {:>10} {:>10} {:>10}\n";
  const PlannedPoint& first = splits.front().point;
  const ExchangeConfig& exchange = first.workload.exchange;
  std::string text = fmt::format(
      "{}: {} tokens of each rank with tokens, hidden {}, {} of {} experts, {}, wire {}\n",
      first.machine.name, exchange.max_tokens, exchange.hidden, exchange.top_k,
      exchange.num_experts, data_type_name(exchange.dtype), wire_name(exchange.wire));
  text += fmt::format(fmt::runtime(kLine), "A:F", "strategy", "dispatch", "combine", "experts",
                      "layer", "overlapped", "tokens/us", "window A", "window F");
  for (const PlannedSplit& planned : splits) {
    const Prediction& best = planned.point.plan.predictions.front();
    text +=
        fmt::format(fmt::runtime(kLine),
                    fmt::format("{}:{}", planned.split.token_ranks, planned.split.expert_ranks),
                    best.strategy, time_text(best.dispatch_us), time_text(best.combine_us),
                    time_text(planned.experts_us), time_text(planned.layer_us),
                    time_text(planned.overlapped_us), fmt::format("{:.4g}", planned.tokens_per_us),
                    bytes_text(static_cast<double>(planned.token_rank.expected)),
                    bytes_text(static_cast<double>(planned.expert_rank.expected)));
  }
  const Split& best = splits[best_split(splits)].split;
  return text + fmt::format("best is {}:{}, with the most tokens per time and rank\n",
                            best.token_ranks, best.expert_ranks);
}

ordered_json split_json(const std::vector<PlannedSplit>& splits) {
  const PlannedPoint& first = splits.front().point;
  const ExchangeConfig& exchange = first.workload.exchange;
  ordered_json list = ordered_json::array();
  for (const PlannedSplit& planned : splits) list.push_back(one_json(planned));
  const Split& best = splits[best_split(splits)].split;
  return {{"machine", first.machine.name},
          {"tokens", exchange.max_tokens},
          {"hidden", exchange.hidden},
          {"top_k", exchange.top_k},
          {"experts", exchange.num_experts},
          {"micro_batches", first.workload.parallel.micro_batches},
          {"splits", std::move(list)},
          {"best", {{"token_ranks", best.token_ranks}, {"expert_ranks", best.expert_ranks}}}};
}

}  // namespace ferry::tools

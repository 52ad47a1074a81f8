// Writes the JSON of `ferry bench`, whose keys programs depend on, and its HTML page; see
// measure.h.
#include <nlohmann/json.hpp>

#include "tools/bench/measure.h"
#include "tools/page.h"
#include "traffic/choose.h"

namespace ferry::bench {
namespace {

using Json = nlohmann::ordered_json;

Json options_json(const Options& options) {
  return {{"ranks", options.ranks},
          {"mode", mode_name(options.mode)},
          {"workers", options.shape.workers},
          {"tokens", options.shape.max_tokens},
          {"tokens_per_rank", options.tokens_per_rank},
          {"hidden", options.shape.hidden},
          {"top_k", options.shape.top_k},
          {"experts", options.shape.num_experts},
          {"dtype", data_type_name(options.shape.dtype)},
          {"layout", layout_name(options.shape.layout)},
          {"wire", wire_name(options.shape.wire)},
          {"combine_wire", wire_name(options.shape.combine_wire)},
          {"algorithm", internal::algorithm_name(options.shape.algorithm)},
          {"node_sums", node_sums_name(options.shape.node_sums)},
          {"topology", options.topology},
          {"split", options.split_text},
          {"shared_experts", options.shape.shared.num_experts},
          {"shared_ranks", options.shape.shared.num_ranks},
          {"mask_fraction", options.mask_fraction},
          {"routing", options.routing_text},
          {"top_groups", options.top_groups},
          {"rebalance", options.rebalance},
          {"redundant_experts", options.redundant_experts},
          {"iterations", options.iterations},
          {"warmup", options.warmup},
          {"seed", options.seed},
          {"pin", options.pin},
          {"check", options.check},
          {"trace", options.trace},
          {"report", options.report},
          {"sweep", options.sweep_text}};
}

Json quantiles_json(const Quantiles& us) {
  return {{"min", us.min}, {"median", us.median}, {"p99", us.p99}};
}

// Adds bytes and time limits for each level. A limit is null if the topology gives no bandwidth.
void add_levels(Json& object, const Measurement& m) {
  object["algorithm"] = internal::algorithm_name(m.algorithm);
  object["algorithm_reason"] = m.algorithm_reason;
  for (const LevelBytes& level : m.levels) {
    object["level_bytes"][level.name] = level.bytes;
    object["level_all_bytes"][level.name] = level.all_bytes;
    object["level_limit_us"][level.name] = level.limit_us > 0 ? Json(level.limit_us) : Json();
  }
}

void add_measurement(Json& object, const Measurement& m) {
  object["tokens"] = m.tokens;
  object["iterations"] = m.iterations;
  object["dispatch_us"] = quantiles_json(m.dispatch_us);
  object["combine_us"] = quantiles_json(m.combine_us);
  object["pair_us"] = quantiles_json(m.pair_us);
  if (m.limit.pair_us > 0) {
    object["limit_us"] = {{"dispatch", m.limit.dispatch_us},
                          {"combine", m.limit.combine_us},
                          {"pair", m.limit.pair_us}};
    object["limit_rounds_us"] = m.limit.rounds_us;
    object["flags_ns"] = m.limit.flags_ns;
    object["limit_way"] = {{"copy", m.limit.copy}, {"reduce", m.limit.reduce}};
    object["limit_ratio"] = m.limit_ratio();
  }
  add_levels(object, m);
  object["stores"] = Json::array();
  object["store_trials"] = Json::array();
  for (const StoreCounts& rank : m.rows.stores) {
    object["stores"].push_back(rank.name());
    object["store_trials"].push_back(rank.trials);
  }
  object["rows"] = m.rows.all;
  object["remote_rows"] = m.rows.remote;
  object["dispatch_bytes"] = m.dispatch_bytes;
  object["combine_bytes"] = m.combine_bytes;
  object["window_bytes"] = m.window_bytes;
  object["imbalance"] = m.rows.imbalance;
  object["compared"] = m.compared;
  object["wrong"] = m.wrong;
}

}  // namespace

void write_report(const Options& options, const std::vector<Measurement>& measurements) {
  const Measurement& last = measurements.back();
  Json data = {{"title", "ferry bench"},
               {"lines", {tools::when_and_where()}},
               {"bench", Json::parse(to_json(options, measurements))},
               {"rows", last.rows.between},
               {"experts", last.rows.of_experts}};
  if (!last.trace.empty()) data["trace"] = Json::parse(last.trace)["traceEvents"];
  tools::write_page(options.report, data);
}

std::string to_json(const Options& options, const std::vector<Measurement>& measurements) {
  Json object = {{"options", options_json(options)}};
  if (options.sweep_tokens.empty()) {
    add_measurement(object, measurements.front());
    if (options.rebalance) {
      add_measurement(object["rebalanced"], measurements[1]);
      add_measurement(object["uniform"], measurements[2]);
    }
    return object.dump();
  }
  object["points"] = Json::array();
  for (const Measurement& measurement : measurements) {
    Json point = Json::object();
    add_measurement(point, measurement);
    object["points"].push_back(std::move(point));
  }
  return object.dump();
}

}  // namespace ferry::bench

// Reads the JSON of a bench and compares it with a plan; see expect.h.
#include "tools/plan/expect.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>

#include "tools/bench/flag_time.h"
#include "tools/json_limits.h"
#include "tools/plan/machine_json.h"
#include "tools/plan/routing.h"
#include "tools/refuse.h"
#include "tools/shape_options.h"
#include "traffic/ranking.h"

namespace ferry::tools {

namespace {

using nlohmann::json;

template <typename T, typename Name>
T by_name(const std::string& name, std::initializer_list<T> all, Name name_of) {
  const auto* const found = std::ranges::find_if(all, [&](T one) { return name == name_of(one); });
  if (found == all.end()) refuse("--expect: '{}' cannot be planned", name);
  return *found;
}

}  // namespace

json bench_object(const std::string& printed) {
  const std::size_t begin = printed.starts_with('{') ? 0 : printed.find("\n{");
  check_json("--expect: the text", printed);
  json object = json::parse(printed.substr(std::min(begin, printed.size())), nullptr, false);
  if (!object.is_object()) refuse("a bench printed no JSON object");
  return object;
}

json bench_of(const std::string& file) try {
  json bench = bench_object(read_file(file));
  if (!bench.contains("options"))
    refuse("its JSON has no 'options', so ferry bench did not write it");
  return bench;
} catch (const std::invalid_argument& error) {
  refuse("--expect: '{}': {}", file, error.what());
}

Workload workload_of_bench(const json& bench) {
  const json& options = bench.at("options");
  Workload workload;
  ExchangeConfig& shape = workload.exchange;
  shape.max_tokens = options.at("tokens");
  if (const std::string text = options.value("split", ""); !text.empty()) {
    const std::optional<Split> split = parse_split(text);
    if (!split) refuse("--expect: the split '{}' of the bench is not of the form 6:2", text);
    set_roles(*split, shape);
  }
  shape.hidden = options.at("hidden");
  shape.top_k = options.at("top_k");
  shape.num_experts = options.at("experts");
  shape.dtype = by_name(options.at("dtype"), {DataType::kBf16, DataType::kFp16, DataType::kFp32},
                        data_type_name);
  shape.layout = by_name(options.at("layout"),
                         {Layout::kRankMajor, Layout::kExpertMajor, Layout::kPadded}, layout_name);
  shape.wire = by_name(options.at("wire"),
                       {Wire::kNone, Wire::kInt8, Wire::kFp8, Wire::kFp8Pow2, Wire::kFp8Ue8m0},
                       [](Wire wire) { return std::string(wire_name(wire)); });
  set_routing(options.value("routing", "uniform"), options.value("seed", std::uint64_t{1}),
              workload);
  return workload;
}

Expectation compare(const Plan& plan, const json& measured, double within) {
  if (!measured.contains("pair_us"))
    refuse("--expect: the bench has no 'pair_us'; one with --sweep has many");
  const std::string algorithm = measured.value("algorithm", "fullmesh");
  const auto found = std::ranges::find(plan.predictions, algorithm, &Prediction::strategy);
  if (found == plan.predictions.end())
    refuse("--expect: the bench ran '{}', which is not planned for this machine", algorithm);
  Expectation result;
  const auto add = [&](const char* what, double predicted, const char* key) {
    const double median = measured.at(key).at("median");
    const double error = median > 0 ? predicted / median - 1 : 0;
    result.text +=
        fmt::format("{:<9} predicted {:>9}, measured {:>9}: {:+.1f} %\n", what,
                    internal::time_text(predicted), internal::time_text(median), 100 * error);
    return std::abs(error);
  };
  add("dispatch", found->dispatch_us, "dispatch_us");
  add("combine", found->combine_us, "combine_us");
  const double error = add("pair", found->pair_us(), "pair_us");
  result.within = error <= within;
  result.text += fmt::format("{} is {} {:.3g} %\n", algorithm,
                             result.within ? "within" : "not within", 100 * within);
  return result;
}

std::string elsewhere_text(const Machine& machine, const json& measured) {
  const double calibrated_ns = machine.host.flag_ns;
  std::vector<double> flags_ns = measured.value("flags_ns", std::vector<double>());
  if (calibrated_ns <= 0 || flags_ns.empty()) return "";
  const auto [least, most] = std::ranges::minmax(flags_ns);
  flags_ns.push_back(calibrated_ns);
  if (!bench::cores_moved(flags_ns)) return "";
  return fmt::format(
      "not comparable: the cores were moved. A flag took {:.0f} ns from one to the next when this "
      "machine was calibrated, {:.0f} to {:.0f} in the bench\n",
      calibrated_ns, least, most);
}

}  // namespace ferry::tools

// Reads SGLang's expert-distribution files; see routing.h.

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "tools/bench/routing.h"

namespace ferry::bench {
namespace {

using Json = nlohmann::json;
using Layers = std::vector<std::vector<double>>;

double total_of(const std::vector<double>& counts) {
  return std::accumulate(counts.begin(), counts.end(), 0.0);
}

Json read_counts(const std::string& file) {
  std::ifstream stream(file);
  if (!stream) refuse("--routing load: cannot open '{}'", file);
  const Json document = Json::parse(stream, nullptr, /*allow_exceptions=*/false);
  if (!document.is_object() || !document.contains("logical_count"))
    refuse("--routing load: '{}' is not JSON with a key \"logical_count\"", file);
  return document["logical_count"];
}

Layers to_layers(const Json& counts) {
  if (counts.empty() || !counts.is_array() || !counts[0].is_array() || counts[0].empty())
    refuse("\"logical_count\" is not a matrix [layers, experts]");
  if (!counts[0][0].is_array()) return counts.get<Layers>();
  Layers sum;
  for (const Json& step : counts) {
    const Layers layers = step.get<Layers>();
    if (sum.empty()) sum.resize(layers.size());
    if (layers.size() != sum.size()) refuse("\"logical_count\" has steps of different size");
    for (std::size_t i = 0; i < layers.size(); ++i) {
      sum[i].resize(std::max(sum[i].size(), layers[i].size()));
      std::transform(layers[i].begin(), layers[i].end(), sum[i].begin(), sum[i].begin(),
                     std::plus<>());
    }
  }
  return sum;
}

std::size_t layer_of_median_skew(const Layers& layers) {
  std::vector<std::pair<double, std::size_t>> skews;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const double total = total_of(layers[i]);
    if (total > 0)
      skews.emplace_back(*std::max_element(layers[i].begin(), layers[i].end()) / total, i);
  }
  if (skews.empty()) refuse("all counts are zero");
  std::sort(skews.begin(), skews.end());
  return skews[skews.size() / 2].second;
}

std::vector<double> pick_layer(const Layers& layers, int layer, int num_experts) {
  if (layer >= static_cast<int>(layers.size()))
    refuse("layer {} of {} layers", layer, layers.size());
  const std::size_t index =
      layer < 0 ? layer_of_median_skew(layers) : static_cast<std::size_t>(layer);
  const std::vector<double>& counts = layers[index];
  if (std::ssize(counts) != num_experts)
    refuse("layer {} has {} experts, but --experts is {}", index, counts.size(), num_experts);
  if (*std::min_element(counts.begin(), counts.end()) < 0)
    refuse("layer {} has a negative count", index);
  if (total_of(counts) <= 0) refuse("all counts of layer {} are zero (a dense layer?)", index);
  return counts;
}

}  // namespace

std::vector<double> recorded_shares(const std::string& file, int layer, int num_experts) {
  const Json counts = read_counts(file);
  try {
    return pick_layer(to_layers(counts), layer, num_experts);
  } catch (const Json::exception&) {
    refuse("--routing load:{}: \"logical_count\" holds a value that is not a number", file);
  } catch (const std::invalid_argument& error) {
    refuse("--routing load:{}: {}", file, error.what());
  }
}

}  // namespace ferry::bench

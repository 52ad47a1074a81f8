// Samples the experts that tokens choose; see routing.h.
#include "tools/bench/routing.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <utility>

#include "tools/bench/real_skew.h"
#include "tools/bench/router_trace.h"

namespace ferry::bench {
namespace {

// Derives the seed of a random stream, so that each purpose has a stream of its own.
std::uint64_t stream_seed(std::uint64_t seed, std::uint64_t purpose) noexcept {
  Random random(seed * 0x9e3779b97f4a7c15ull + purpose);
  return random.next();
}

template <typename T>
void shuffle(std::span<T> values, Random& random) {
  for (std::size_t i = values.size(); i > 1; --i)
    std::swap(values[i - 1], values[random.next() % i]);
}

// Interpolates a curve that is given at equal steps of [0, 1].
double interpolate(std::span<const double> curve, double position) {
  const double at = position * static_cast<double>(curve.size() - 1);
  const std::size_t below = std::min(static_cast<std::size_t>(at), curve.size() - 2);
  const double part = at - static_cast<double>(below);
  return curve[below] * (1 - part) + curve[below + 1] * part;
}

std::vector<double> zipf_shares(double exponent, int num_experts, std::uint64_t seed) {
  std::vector<double> shares(static_cast<std::size_t>(num_experts));
  for (std::size_t i = 0; i < shares.size(); ++i)
    shares[i] = std::pow(static_cast<double>(i + 1), -exponent);
  Random random(stream_seed(seed, 1));
  shuffle(std::span(shares), random);
  return shares;
}

// Popularity of experts with a real skew: groups of neighbouring experts are busy or idle together,
// and experts differ within a group.
std::vector<double> real_shares(int num_experts, std::int64_t tokens, std::uint64_t seed) {
  const RealSkew& skew = tokens <= kMostDecodeTokens ? kDecodeSkew : kPrefillSkew;
  const std::size_t experts = static_cast<std::size_t>(num_experts);
  const std::size_t groups = std::min(experts, skew.group_load.size());
  Random random(stream_seed(seed, 2));
  std::vector<double> group_load(skew.group_load.end() - static_cast<std::ptrdiff_t>(groups),
                                 skew.group_load.end());
  shuffle(std::span(group_load), random);
  std::vector<double> shares(experts);
  for (std::size_t group = 0; group < groups; ++group) {
    const std::size_t first = group * experts / groups, last = (group + 1) * experts / groups;
    const std::span<double> members(shares.data() + first, last - first);
    for (std::size_t i = 0; i < members.size(); ++i) {
      const double position =
          members.size() == 1 ? 0.5
                              : static_cast<double>(i) / static_cast<double>(members.size() - 1);
      members[i] = interpolate(skew.load_in_group, position);
    }
    const double total = std::accumulate(members.begin(), members.end(), 0.0);
    const double scale = group_load[group] * static_cast<double>(members.size()) / total;
    for (double& member : members) member *= scale;
    shuffle(members, random);
  }
  return shares;
}

// The score and the number of an expert. The greater key is chosen first.
using Key = std::pair<double, std::int64_t>;

void check_gate(const std::vector<double>& shares, const Gate& gate) {
  const auto possible =
      std::count_if(shares.begin(), shares.end(), [](double share) { return share > 0; });
  if (possible < gate.top_k)
    refuse("--top-k {}: only {} experts are ever chosen in this routing", gate.top_k, possible);
  const int experts = static_cast<int>(shares.size());
  if (gate.top_groups < 1 || gate.top_groups > gate.groups || experts % gate.groups != 0 ||
      experts / gate.groups * gate.top_groups < gate.top_k)
    refuse(
        "--top-groups {} of --routing groups:{}: need 1 to all of the groups, which have equally "
        "many of the {} experts, and in them --top-k {} experts",
        gate.top_groups, gate.groups, experts, gate.top_k);
}

// Makes sure that no expert outside a token's best groups is chosen.
void limit_groups(std::vector<Key>& keys, const Gate& gate) {
  if (gate.top_groups == gate.groups) return;
  const std::size_t size = keys.size() / static_cast<std::size_t>(gate.groups);
  std::vector<Key> groups;  // score and first expert
  for (std::size_t first = 0; first < keys.size(); first += size) {
    std::vector<Key> members(keys.begin() + static_cast<std::ptrdiff_t>(first),
                             keys.begin() + static_cast<std::ptrdiff_t>(first + size));
    const std::size_t best = std::min<std::size_t>(2, size);
    std::partial_sort(members.begin(), members.begin() + static_cast<std::ptrdiff_t>(best),
                      members.end(), std::greater<>());
    const double score = members[0].first + (best > 1 ? members[1].first : 0);
    groups.emplace_back(score, static_cast<std::int64_t>(first));
  }
  std::sort(groups.begin(), groups.end(), std::greater<>());
  for (std::size_t group = static_cast<std::size_t>(gate.top_groups); group < groups.size();
       ++group) {
    for (std::size_t i = 0; i < size; ++i) {
      keys[static_cast<std::size_t>(groups[group].second) + i].first =
          -std::numeric_limits<double>::infinity();
    }
  }
}

// Parses the whole text. Returns false if it is not a number.
template <typename T>
bool parse_number(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

RoutingSpec parse_file(RoutingSpec::Kind kind, std::string_view name, std::string_view rest) {
  RoutingSpec spec{.kind = kind, .file = std::string(rest)};
  const std::size_t colon = rest.rfind(':');
  int layer = 0;
  if (colon != std::string_view::npos && parse_number(rest.substr(colon + 1), layer) &&
      layer >= 0) {
    spec.file = std::string(rest.substr(0, colon));
    spec.layer = layer;
  }
  if (spec.file.empty()) refuse("--routing {0}: needs a file, {0}:FILE[:LAYER]", name);
  return spec;
}

}  // namespace

RoutingSpec parse_routing(std::string_view text) {
  if (text == "uniform") return {};
  if (text == "real") return {.kind = RoutingSpec::Kind::kReal};
  if (text.starts_with("load:"))
    return parse_file(RoutingSpec::Kind::kLoad, "load", text.substr(5));
  if (text.starts_with("ids:")) return parse_file(RoutingSpec::Kind::kIds, "ids", text.substr(4));
  if (text.starts_with("groups:")) {
    RoutingSpec spec{.kind = RoutingSpec::Kind::kGroups};
    if (parse_number(text.substr(7), spec.groups) && spec.groups >= 1) return spec;
    refuse("--routing {}: the number of groups must be 1 or more", text);
  }
  if (text.starts_with("zipf:")) {
    double exponent = -1;
    if (!parse_number(text.substr(5), exponent) || !(exponent >= 0 && exponent <= 10))
      refuse("--routing {}: the exponent must be a number from 0 to 10", text);
    return {.kind = RoutingSpec::Kind::kZipf, .exponent = exponent};
  }
  refuse(
      "--routing: '{}' is none of uniform, zipf:S, real, load:FILE[:LAYER], ids:FILE[:LAYER], "
      "groups:G",
      text);
}

std::vector<double> expert_shares(const RoutingSpec& spec, int num_experts, std::int64_t tokens,
                                  std::uint64_t seed) {
  std::vector<double> shares(static_cast<std::size_t>(num_experts), 1.0);
  switch (spec.kind) {
    case RoutingSpec::Kind::kUniform:
    case RoutingSpec::Kind::kIds:
    case RoutingSpec::Kind::kGroups: break;
    case RoutingSpec::Kind::kZipf: shares = zipf_shares(spec.exponent, num_experts, seed); break;
    case RoutingSpec::Kind::kReal: shares = real_shares(num_experts, tokens, seed); break;
    case RoutingSpec::Kind::kLoad:
      shares = recorded_shares(spec.file, spec.layer, num_experts);
      break;
  }
  const double total = std::accumulate(shares.begin(), shares.end(), 0.0);
  for (double& share : shares) share /= total;
  return shares;
}

Gate gate_of(const RoutingSpec& spec, int top_k, int top_groups) noexcept {
  return spec.kind == RoutingSpec::Kind::kGroups ? Gate(top_k, spec.groups, top_groups)
                                                 : Gate(top_k);
}

Choices choose_experts(const std::vector<double>& shares, std::int64_t tokens, const Gate& gate,
                       std::uint64_t seed, int rank) {
  check_gate(shares, gate);
  const int top_k = gate.top_k;
  std::vector<double> log_share(shares.size());
  std::transform(shares.begin(), shares.end(), log_share.begin(), [](double share) {
    return share > 0 ? std::log(share) : -std::numeric_limits<double>::infinity();
  });
  Choices choices;
  choices.topk_ids.reserve(static_cast<std::size_t>(tokens * top_k));
  choices.topk_weights.reserve(static_cast<std::size_t>(tokens * top_k));
  Random random(stream_seed(seed, 16 + static_cast<std::uint64_t>(rank)));
  std::vector<Key> keys(shares.size());
  for (std::int64_t token = 0; token < tokens; ++token) {
    for (std::size_t expert = 0; expert < keys.size(); ++expert) {
      keys[expert] = {log_share[expert] - std::log(-std::log(random.uniform())),
                      static_cast<std::int64_t>(expert)};
    }
    limit_groups(keys, gate);
    std::partial_sort(keys.begin(), keys.begin() + top_k, keys.end(), std::greater<>());
    std::vector<float> weights(static_cast<std::size_t>(top_k));
    for (float& weight : weights) weight = 0.1f + static_cast<float>(random.uniform());
    const float total = std::accumulate(weights.begin(), weights.end(), 0.0f);
    for (int k = 0; k < top_k; ++k) {
      choices.topk_ids.push_back(keys[static_cast<std::size_t>(k)].second);
      choices.topk_weights.push_back(weights[static_cast<std::size_t>(k)] / total);
    }
  }
  return choices;
}

std::vector<int> ids_of(const RoutingSpec& spec, int top_k, int num_experts) {
  if (spec.kind != RoutingSpec::Kind::kIds) return {};
  return router_ids(spec.file, std::max(0, spec.layer), top_k, num_experts);
}

void replay(std::span<const int> ids, int rank, Choices& choices) {
  if (ids.empty()) return;
  const std::size_t first = choices.topk_ids.size() * static_cast<std::size_t>(rank);
  for (std::size_t i = 0; i < choices.topk_ids.size(); ++i)
    choices.topk_ids[i] = ids[(first + i) % ids.size()];
}

}  // namespace ferry::bench

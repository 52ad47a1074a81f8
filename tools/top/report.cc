// Computes the rates of a rank: the differences between two samples, divided by the time between
// them. See report.h.
#include "tools/top/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "collectives/record.h"
#include "group/counters.h"
#include "tools/text.h"

namespace ferry::tools {
namespace {

using internal::Counter;
using internal::kCounterNames;
using internal::kNumCounters;
using Json = nlohmann::ordered_json;

constexpr double kMostlyWaits = 0.8;  // a rank mostly waits above this part of its time

// The counters of one rank, per second.
struct Rates {
  int rank;
  const RankSample* now;
  // [kNumCounters]; a counter that does not grow is not divided by the time.
  std::vector<double> counters;
  std::vector<double> waits;  // [ranks], seconds of waiting for each rank, per second

  double operator[](Counter counter) const { return counters[static_cast<std::size_t>(counter)]; }
  double waited() const {
    double sum = 0;
    for (const double share : waits) sum += share;
    return sum;
  }
};

struct GroupRates {
  std::string name;
  const GroupSample* now;
  std::vector<Rates> ranks;

  // The rank for which the others waited most, after its own waits are subtracted, and the mean
  // share of their time that they waited for it. The rank is -1 if there is none.
  std::pair<int, double> slowest() const {
    if (const Rates* stuck = only_idle()) return {stuck->rank, wait_of_others(*stuck)};
    std::pair<int, double> slowest{-1, 0.0};
    double most = 0;
    for (const Rates& late : ranks) {
      double sum = 0;
      for (const Rates& one : ranks) sum += one.rank == late.rank ? 0 : one.waits[late.rank];
      const double mean = sum / std::max<double>(1, static_cast<double>(ranks.size()) - 1);
      if (mean - late.waited() <= most) continue;
      most = mean - late.waited();
      slowest = {late.rank, mean};
    }
    return slowest;
  }

  // The only rank that neither finishes operations nor waits, while all others wait. Between nodes
  // the others may wait for ranks whose messages this rank forwards. Null if there is no such rank.
  const Rates* only_idle() const {
    const auto waits = [](const Rates& one) { return one.waited() > kMostlyWaits; };
    const auto idle = std::ranges::find_if_not(ranks, waits);
    const bool only = idle != ranks.end() && std::all_of(idle + 1, ranks.end(), waits);
    return only && ranks.size() > 1 && idle->waited() < 1 - kMostlyWaits &&
                   (*idle)[Counter::kDispatches] + (*idle)[Counter::kCombines] +
                           (*idle)[Counter::kCollectives] ==
                       0
               ? &*idle
               : nullptr;
  }

  double wait_of_others(const Rates& rank) const {
    double sum = -rank.waited();
    for (const Rates& one : ranks) sum += one.waited();
    return sum / static_cast<double>(ranks.size() - 1);
  }

  // The number of rows that the busiest rank received, divided by the mean of the ranks that have
  // windows: the others have no experts. 0 if no rows were received.
  double imbalance() const {
    double sum = 0, most = 0, receivers = 0;
    for (const Rates& one : ranks) {
      sum += one[Counter::kRowsReceived];
      most = std::max(most, one[Counter::kRowsReceived]);
      receivers += one[Counter::kWindowBytes] > 0 ? 1 : 0;
    }
    return sum > 0 ? most * receivers / sum : 0;
  }
};

std::vector<double> per_second(const std::vector<std::uint64_t>& before,
                               const std::vector<std::uint64_t>& now, double seconds) {
  std::vector<double> rates(now.size());
  for (std::size_t i = 0; i < now.size(); ++i)
    rates[i] = static_cast<double>(now[i] - std::min(now[i], before[i])) / seconds;
  return rates;
}

std::optional<Rates> rates_of(int rank, const RankSample& before, const RankSample& now) {
  const double seconds = static_cast<double>(now.time_ns - before.time_ns) / 1e9;
  if (seconds <= 0 || before.wait_ns.size() != now.wait_ns.size()) return std::nullopt;
  Rates rates{.rank = rank,
              .now = &now,
              .counters = per_second(before.totals, now.totals, seconds),
              .waits = per_second(before.wait_ns, now.wait_ns, 1e9 * seconds)};
  for (int i = 0; i < kNumCounters; ++i) {
    if (!kCounterNames[i].grows) rates.counters[i] = static_cast<double>(now.totals[i]);
  }
  return rates;
}

std::vector<GroupRates> all_rates(const Sample& before, const Sample& now) {
  std::vector<GroupRates> groups;
  for (const auto& [name, group] : now) {
    const auto earlier = before.find(name);
    if (earlier == before.end()) continue;
    GroupRates rates{.name = name, .now = &group, .ranks = {}};
    for (const auto& [rank, sample] : group.ranks) {
      const auto then = earlier->second.ranks.find(rank);
      if (then == earlier->second.ranks.end()) continue;
      if (auto one = rates_of(rank, then->second, sample)) rates.ranks.push_back(std::move(*one));
    }
    if (!rates.ranks.empty()) groups.push_back(std::move(rates));
  }
  return groups;
}

std::string rate_text(double rate) {
  return rate < 1e4 ? fmt::format("{:.4g}", rate) : fmt::format("{:.4g}k", rate / 1e3);
}

std::string byte_rate(double rate) { return bytes_text(static_cast<std::uint64_t>(rate)) + "/s"; }

std::string most_waited(const Rates& rates) {
  const auto most = std::max_element(rates.waits.begin(), rates.waits.end());
  if (*most <= 0) return "-";
  const auto peer = static_cast<int>(most - rates.waits.begin());
  return fmt::format("{} {:.0f} %", peer == rates.rank ? "network" : fmt::format("rank {}", peer),
                     100 * *most);
}

// The collective that the rank came to last, and how many it has come to: "all_reduce 41"; "-" if
// there is none. Any program can write the counters, so the kind is checked.
std::string latest_collective(const RankSample& now) {
  const auto [number, kind] = internal::LatestCollective::of(
      now.totals[static_cast<std::size_t>(Counter::kLatestCollective)]);
  if (number == 0 || kind > static_cast<std::uint8_t>(internal::CallKind::kBarrier)) return "-";
  return fmt::format("{} {}", internal::call_name(static_cast<internal::CallKind>(kind)), number);
}

using Row = std::vector<std::string>;
const Row kHeading{"rank",      "host",    "pid",      "dispatches/s",     "combines/s",
                   "rows in/s", "written", "read",     "to nodes",         "waits",
                   "most for",  "windows", "resident", "latest collective"};

Row row_of(const Rates& rates) {
  const RankSample& now = *rates.now;
  return {std::to_string(rates.rank),
          now.host,
          now.ended ? "ended" : std::to_string(now.totals[0]),
          rate_text(rates[Counter::kDispatches]),
          rate_text(rates[Counter::kCombines]),
          rate_text(rates[Counter::kRowsReceived]),
          byte_rate(rates[Counter::kBytesSent]),
          byte_rate(rates[Counter::kBytesPulled]),
          byte_rate(rates[Counter::kLinkBytes]),
          fmt::format("{:.0f} %", 100 * rates.waited()),
          most_waited(rates),
          bytes_text(now.totals[static_cast<std::size_t>(Counter::kWindowBytes)]),
          bytes_text(now.resident_bytes),
          latest_collective(now)};
}

std::string aligned(const std::vector<Row>& rows) {
  std::string text;
  for (const Row& row : rows) {
    for (std::size_t column = 0; column < row.size(); ++column) {
      std::size_t width = 0;
      for (const Row& other : rows) width = std::max(width, other[column].size());
      text += fmt::format("{}{:>{}}", column > 0 ? "  " : "", row[column], width);
    }
    text += '\n';
  }
  return text;
}

std::string table_of(const GroupRates& group) {
  std::vector<Row> rows{kHeading};
  for (const Rates& one : group.ranks) rows.push_back(row_of(one));
  std::string text =
      fmt::format("group {}: {} of {}, {}\n", group.name, group.ranks.size(),
                  count_text(group.now->num_ranks, "rank"), group.ranks[0].now->program);
  text += aligned(rows);
  const auto [rank, share] = group.slowest();
  if (rank >= 0)
    text += fmt::format("slowest: rank {}, the others wait for it {:.0f} % of their time\n", rank,
                        100 * share);
  if (const double imbalance = group.imbalance(); imbalance > 0)
    text += fmt::format("rows of the busiest rank over the mean: {:.2f}\n", imbalance);
  return text;
}

Json json_of(const Rates& rates) {
  Json per_second, waits = Json::object();
  for (int i = 0; i < kNumCounters; ++i) {
    if (kCounterNames[i].grows) per_second[kCounterNames[i].name] = rates.counters[i];
  }
  for (std::size_t peer = 0; peer < rates.waits.size(); ++peer) {
    const bool own = static_cast<int>(peer) == rates.rank;
    if (rates.waits[peer] > 0) waits[own ? "network" : std::to_string(peer)] = rates.waits[peer];
  }
  Json json{{"rank", rates.rank}};
  json.update(to_json(*rates.now));
  json["per_second"] = per_second;
  json["wait_shares"] = waits;
  return json;
}

}  // namespace

std::string top_table(const Sample& before, const Sample& now) {
  std::string text;
  for (const GroupRates& group : all_rates(before, now))
    text += (text.empty() ? "" : "\n") + table_of(group);
  return text;
}

std::string top_json(const Sample& before, const Sample& now) {
  Json groups = Json::array();
  for (const GroupRates& group : all_rates(before, now)) {
    Json ranks = Json::array();
    for (const Rates& one : group.ranks) ranks.push_back(json_of(one));
    const auto [slowest, share] = group.slowest();
    groups.push_back({{"group", group.name},
                      {"num_ranks", group.now->num_ranks},
                      {"imbalance", group.imbalance()},
                      {"slowest", slowest},
                      {"slowest_share", share},
                      {"ranks", ranks}});
  }
  return Json{{"groups", groups}}.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace ferry::tools

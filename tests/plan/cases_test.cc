// Published figures (tests/data/plan_cases.json). Every figure is met within the tolerance of its
// case; figures that contradict themselves are met by no formula, and figures without a derivation
// are reported. Figures that the planner models are computed by its own schedules and routing.
#include <gmock/gmock.h>

#include <cmath>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>

#include "ferry/plan.h"
#include "plan/formula.h"
#include "plan/routing.h"
#include "plan/schedule.h"

namespace ferry {
namespace {

using internal::Schedule;
using nlohmann::json;

const json& cases() {
  static const json all = json::parse(std::ifstream(FERRY_PLAN_CASES));
  return all;
}

const json& find_case(const std::string& id) {
  for (const json& one : cases().at("cases"))
    if (one.at("id") == id) return one;
  throw std::invalid_argument("no case " + id);
}

double input(const json& one, const std::string& name) {
  return one.at("inputs").at(name).at("value");
}

double tolerance(const json& expected, double value) {
  const json& given = expected.at("tolerance");
  return given.contains("abs") ? given.at("abs").get<double>()
                               : given.at("rel").get<double>() * std::abs(value);
}

// The tolerance for results of formulas in the file, which have six digits: about half a unit of
// the last one.
double six_digits(double value) {
  return value == 0 ? 1e-12 : 0.51 * std::pow(10, std::floor(std::log10(std::abs(value))) - 5);
}

// The results for one expected value: one for each row of the case, or one for the case.
std::vector<double> evaluate(const json& one, const json& expected,
                             std::map<std::string, std::vector<double>>& earlier) {
  const json rows = one.value("rows", json::array({json::object()}));
  std::vector<double> results;
  for (std::size_t row = 0; row < rows.size(); ++row) {
    Formula::Names names = {{"MiB", 1048576.0}, {"GiB", 1073741824.0}};
    for (const auto& [name, given] : one.at("inputs").items()) {
      if (given.at("value").is_number()) names[name] = given.at("value");
    }
    for (const auto& [name, given] : rows.at(row).items())
      if (given.is_number()) names[name] = given;
    for (const auto& [name, values] : earlier) names[name] = values.at(row);
    results.push_back(Formula::value(expected.at("formula"), names));
  }
  earlier[expected.at("name")] = results;
  return results;
}

json as_list(const json& value) { return value.is_array() ? value : json::array({value}); }

struct Tally {
  int derived = 0, contradicted = 0, underived = 0;
};

void check(const json& one, Tally& tally) {
  std::map<std::string, std::vector<double>> earlier;
  for (const json& expected : one.at("expected")) {
    SCOPED_TRACE(one.at("id").get<std::string>() + " " + expected.at("name").get<std::string>());
    if (expected.at("formula").is_null()) {
      ++tally.underived;
      if (!expected.at("value").is_null()) {
        std::cout << one.at("id").get<std::string>() << " "
                  << expected.at("name").get<std::string>() << ": " << expected.at("value")
                  << " is not derived\n";
      }
      continue;
    }
    const bool holds = expected.value("holds", true);
    const std::vector<double> results = evaluate(one, expected, earlier);
    const json values =
        as_list(expected.contains("values") ? expected.at("values") : expected.at("value"));
    const json computed = as_list(expected.at("computed"));
    ASSERT_EQ(results.size(), values.size());
    for (std::size_t i = 0; i < results.size(); ++i) {
      const double value = values.at(i), allowed = tolerance(expected, value) * (1 + 1e-9);
      EXPECT_NEAR(results[i], computed.at(i).get<double>(), six_digits(results[i]));
      EXPECT_EQ(std::abs(results[i] - value) <= allowed + 1e-12 * std::abs(value), holds)
          << results[i] << " for " << value;
    }
    ++(holds ? tally.derived : tally.contradicted);
  }
}

TEST(Cases, EveryFigureWithinItsToleranceAndNoOther) {
  std::map<std::string, int> classes;
  Tally tally;
  for (const json& one : cases().at("cases")) {
    ++classes[one.at("class").get<std::string>()];
    Tally here;
    check(one, here);
    EXPECT_EQ(here.contradicted > 0, one.at("class") == "inconsistent") << one.at("id");
    tally.derived += here.derived;
    tally.contradicted += here.contradicted;
    tally.underived += here.underived;
  }
  EXPECT_THAT(classes, testing::ElementsAre(
                           testing::Pair("assumed", 11), testing::Pair("exact", 38),
                           testing::Pair("inconsistent", 6), testing::Pair("missing_input", 9),
                           testing::Pair("rounded", 11)));
  EXPECT_EQ(tally.derived, 151);
  EXPECT_EQ(tally.contradicted, 9);
  EXPECT_EQ(tally.underived, 19)  // four of them fitted below
  ;
}

// Tasks on named resources. A resource runs one task at a time.
Schedule from_tasks(const json& tasks) {
  Schedule schedule;
  std::map<std::string, int> resources, ids, last;
  for (const json& task : tasks) {
    const std::string name = task.value("resource", task.at("id").get<std::string>());
    const auto [resource, is_new] =
        resources.try_emplace(name, static_cast<int>(schedule.resources.size()));
    if (is_new) schedule.resources.push_back({.capacity = 1});
    internal::Task next{.what = task.at("id"),
                        .bytes = task.at("ms"),
                        .uses = {{.resource = resource->second}},
                        .streamed = task.contains("pipelined with")};
    for (const json& before : task.value("after", json::array()))
      next.after.push_back(ids.at(before));
    if (next.streamed) next.after.push_back(ids.at(task.at("pipelined with")));
    if (!is_new) next.previous = last.at(name);
    ids[task.at("id")] = last[name] = static_cast<int>(schedule.tasks.size());
    schedule.tasks.push_back(std::move(next));
  }
  return schedule;
}

TEST(Cases, PipelinesOfTasks) {
  int found = 0;
  for (const json& one : cases().at("cases")) {
    if (!one.contains("simulation") || !one.at("simulation").contains("tasks")) continue;
    SCOPED_TRACE(one.at("id").get<std::string>());
    const std::string result = one.at("simulation").at("result");
    std::smatch number;
    ASSERT_TRUE(std::regex_search(result, number, std::regex("([0-9.]+) ms")));
    const Schedule schedule = cut(from_tasks(one.at("simulation").at("tasks")), 256);
    // The last chunk of a pipeline ends later.
    EXPECT_NEAR(simulate(schedule).end_us, std::stod(number[1]), 0.012);
    ++found;
  }
  EXPECT_EQ(found, 7);
}

// The relay over mates among the eight partly linked cards of the file, with tasks for every rank.
class Relay {
 public:
  Relay() : machine_(cases().at("machines").at("card8")) {
    for (const json& link : machine_.at("links")) {
      for (const json& pair : link.at("pairs")) {
        for (const bool forwards : {true, false}) {
          const int from = pair.at(forwards ? 0 : 1), to = pair.at(forwards ? 1 : 0);
          links_[{from, to}] = static_cast<int>(schedule_.resources.size());
          schedule_.resources.push_back({.capacity = link.at("gb_s")});
          if (link.at("name") == "peer") peers_[from].push_back(to);
        }
      }
    }
  }

  // Bytes over time. With `own_last` a rank sends its mate first the rows to pass on, each passed
  // on as soon as it has come, and last the mate's own rows. Else all rows to the mate are one
  // message, which is passed on when all of it has come.
  double rate(bool own_last) {
    std::vector<int> first;
    std::map<std::pair<int, int>, int> to_mate;  // by (rank, piece): for a peer of its mate
    for (int rank = 0; rank < 8; ++rank) {
      for (const int peer : peers_[rank]) first.push_back(move(rank, peer, kBytes / 8, {}));
      const int pieces = own_last ? 4 : 1;
      for (int piece = 0; piece < pieces; ++piece) {
        to_mate[{rank, piece}] = move(rank, mate(rank), kBytes / 2 / pieces, {});
        if (piece > 0) schedule_.tasks.back().previous = to_mate[{rank, piece - 1}];
        first.push_back(to_mate[{rank, piece}]);
      }
    }
    for (int rank = 0; rank < 8; ++rank) {
      for (int i = 0; i < 3; ++i) {
        const int peer = peers_[mate(rank)][i];
        move(mate(rank), peer, kBytes / 8, own_last ? std::vector{to_mate[{rank, i}]} : first);
      }
    }
    const double end = simulate(schedule_).end_us;
    bound_ = kBytes / bound_us(schedule_);
    return kBytes / end;
  }
  double bound() const { return bound_; }

 private:
  static constexpr double kBytes = 1;

  int mate(int rank) const { return machine_.at("mate").at(std::to_string(rank)); }

  int move(int from, int to, double bytes, std::vector<int> after) {
    schedule_.tasks.push_back({.what = "move",
                               .bytes = bytes,
                               .uses = {{.resource = links_.at({from, to})}},
                               .after = std::move(after),
                               .streamed = false});
    return static_cast<int>(schedule_.tasks.size()) - 1;
  }

  const json& machine_;
  std::map<std::pair<int, int>, int> links_;
  std::map<int, std::vector<int>> peers_;
  Schedule schedule_;
  double bound_ = 0;
};

TEST(Cases, RelayInTwoSteps) {
  EXPECT_NEAR(Relay().rate(false), find_case("B12").at("expected").at(0).at("value"), 1e-9);
}

TEST(Cases, RelayInTheBestOrder) {
  Relay relay;
  EXPECT_NEAR(relay.rate(true), find_case("B13").at("expected").at(0).at("value"), 1e-9);
  EXPECT_NEAR(relay.bound(), 128, 1e-9);
}

double expected_value(const std::string& id, const std::string& name) {
  for (const json& expected : find_case(id).at("expected"))
    if (expected.at("name") == name) return expected.at("value");
  throw std::invalid_argument("no value " + name);
}

// The planner's routing gives the shares of tokens that the file states.
TEST(Cases, SharesOfTokens) {
  const auto touched = [](Workload workload, int ranks, int of) {
    workload.exchange.num_experts = 256, workload.exchange.top_k = 8;
    const internal::Routing routing(workload, std::vector<int>(ranks, 256 / ranks));
    internal::Routing::Ranks some;
    for (int rank = 0; rank < of; ++rank) routing.add(some, routing.of(rank));
    return routing.touched(some);
  };
  EXPECT_NEAR(8 * touched({}, 8, 1), expected_value("B17", "true_cards"), 0.005);
  EXPECT_NEAR(8192 * touched({}, 8, 1), input(find_case("B55"), "tokens") * 0.66183, 1);
  EXPECT_NEAR(0.5 / touched({}, 2, 1), expected_value("B56", "ratio"), 0.0005);
  EXPECT_NEAR(8 * touched({.groups = 8, .groups_chosen = 4}, 8, 1), expected_value("A8", "touched"),
              0.005);
  EXPECT_NEAR(touched({.groups = 2, .groups_chosen = 1}, 2, 1), input(find_case("B56"), "limited"),
              1e-12);
}

// Start-up time and rate of sends, fitted to times by size with least relative squares.
TEST(Cases, StartUpAndRateFitATable) {
  const json& rows = find_case("B15").at("table").at("rows");
  for (const int column : {1, 2}) {
    double ww = 0, ws = 0, ss = 0, wt = 0, st = 0;
    for (const json& row : rows) {
      const double size = row.at(0).get<double>() / 1024;  // GiB
      const double ms = size / row.at(column).get<double>() * 1000;
      ww += 1 / ms / ms, ws += size / ms / ms, ss += size * size / ms / ms;
      wt += 1 / ms, st += size / ms;
    }
    const double det = ww * ss - ws * ws;
    const std::string suffix = "_" + std::to_string(column);
    const double startup_ms = (wt * ss - st * ws) / det, ms_per_gib = (ww * st - ws * wt) / det;
    EXPECT_NEAR(startup_ms, expected_value("B15", "startup" + suffix), column == 1 ? 0.1 : 0.2);
    EXPECT_NEAR(1000 / ms_per_gib, expected_value("B15", "rate" + suffix), 0.3);
  }
}

// Published times that are bytes divided by a rate, computed from the machine.
TEST(Cases, VolumesAndTimesOfServersWithRails) {
  constexpr double kMiBRate = 20e3 * 1048576 / 1e9;  // 20 GB/s of the source, in 10^9 bytes/s
  Machine machine = Machine::parse("a2:8");
  machine.ports.at(0).gb_s = kMiBRate;
  const Workload workload{
      .exchange = {.max_tokens = 16, .hidden = 7168, .num_experts = 256, .top_k = 8},
      .groups = 8,
      .groups_chosen = 4};
  for (const Prediction& prediction : plan(machine, workload).predictions) {
    if (prediction.strategy != "hierarchical") continue;
    EXPECT_NEAR(prediction.dispatch_bound_us, expected_value("A8", "time"), 0.05);
    return;
  }
  FAIL() << "no hierarchical";
}

}  // namespace
}  // namespace ferry

// Routing of `ferry bench`: drawn ids are legal, reproducible, and as skewed as requested.
#include "tools/bench/routing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>

#include "tools/bench/router_trace.h"

namespace ferry::bench {
namespace {

constexpr int kExperts = 256, kTopK = 8, kRanks = 8;

std::vector<std::int64_t> counts_of(const Choices& choices, int num_experts) {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(num_experts));
  for (const std::int64_t expert : choices.topk_ids) ++counts.at(static_cast<std::size_t>(expert));
  return counts;
}

// Rows of the busiest of kRanks ranks over the mean, experts in contiguous blocks.
double busiest_rank(const RoutingSpec& spec, std::int64_t tokens, std::uint64_t seed) {
  const std::vector<double> shares = expert_shares(spec, kExperts, tokens, seed);
  const auto counts = counts_of(choose_experts(shares, 2000, kTopK, seed, 0), kExperts);
  std::int64_t busiest = 0;
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto first = counts.begin() + rank * (kExperts / kRanks);
    busiest = std::max(busiest, std::accumulate(first, first + kExperts / kRanks, std::int64_t{0}));
  }
  return static_cast<double>(busiest) * kRanks / (2000.0 * kTopK);
}

std::string write_file(const std::string& name, const std::string& text) {
  const std::string path = testing::TempDir() + name;
  std::ofstream(path) << text;
  return path;
}

// The message of the error that `body` throws, or "".
template <typename Body>
std::string error_of(const Body& body) {
  try {
    body();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

TEST(BenchRouting, TokensChooseDistinctExpertsWithWeightsThatSumToOne) {
  for (const char* text : {"uniform", "zipf:1.5", "real"}) {
    const std::vector<double> shares = expert_shares(parse_routing(text), kExperts, 128, 3);
    const Choices choices = choose_experts(shares, 200, kTopK, 3, 1);
    ASSERT_EQ(choices.topk_ids.size(), 200u * kTopK);
    for (std::size_t at = 0; at < choices.topk_ids.size(); at += kTopK) {
      const std::set<std::int64_t> distinct(&choices.topk_ids[at], &choices.topk_ids[at] + kTopK);
      EXPECT_EQ(distinct.size(), static_cast<std::size_t>(kTopK)) << text;
      EXPECT_GE(*distinct.begin(), 0);
      EXPECT_LT(*distinct.rbegin(), kExperts);
      float sum = 0;
      for (int k = 0; k < kTopK; ++k) {
        EXPECT_GT(choices.topk_weights[at + static_cast<std::size_t>(k)], 0.0f);
        sum += choices.topk_weights[at + static_cast<std::size_t>(k)];
      }
      EXPECT_NEAR(sum, 1.0f, 1e-5f);
    }
  }
}

TEST(BenchRouting, SeedAndRankDecideEverything) {
  const std::vector<double> shares = expert_shares(parse_routing("real"), kExperts, 128, 7);
  EXPECT_EQ(shares, expert_shares(parse_routing("real"), kExperts, 128, 7));
  EXPECT_NE(shares, expert_shares(parse_routing("real"), kExperts, 128, 8));
  const Choices choices = choose_experts(shares, 50, kTopK, 7, 2);
  EXPECT_EQ(choices.topk_ids, choose_experts(shares, 50, kTopK, 7, 2).topk_ids);
  EXPECT_NE(choices.topk_ids, choose_experts(shares, 50, kTopK, 7, 3).topk_ids);
  EXPECT_NE(choices.topk_ids, choose_experts(shares, 50, kTopK, 8, 2).topk_ids);
}

TEST(BenchRouting, AllExpertsOfATokenWhenThereAreNoMore) {
  const std::vector<double> shares = expert_shares(parse_routing("zipf:2"), 4, 128, 1);
  Choices choices = choose_experts(shares, 1, 4, 1, 0);
  std::sort(choices.topk_ids.begin(), choices.topk_ids.end());
  EXPECT_EQ(choices.topk_ids, (std::vector<std::int64_t>{0, 1, 2, 3}));
}

TEST(BenchRouting, UniformLoadsExpertsAlike) {
  const std::vector<double> shares = expert_shares(parse_routing("uniform"), 64, 128, 1);
  const auto counts = counts_of(choose_experts(shares, 8000, kTopK, 1, 0), 64);  // mean 1000
  EXPECT_GT(*std::min_element(counts.begin(), counts.end()), 850);
  EXPECT_LT(*std::max_element(counts.begin(), counts.end()), 1150);
}

TEST(BenchRouting, ZipfFallsAsItsExponentSays) {
  std::vector<double> shares = expert_shares(parse_routing("zipf:1.2"), kExperts, 128, 1);
  std::sort(shares.rbegin(), shares.rend());
  EXPECT_NEAR(shares[0] / shares[9], std::pow(10.0, 1.2), 1e-9);
  const auto counts = counts_of(
      choose_experts(expert_shares(parse_routing("zipf:1.2"), kExperts, 128, 1), 4000, 1, 1, 0),
      kExperts);
  EXPECT_NEAR(static_cast<double>(*std::max_element(counts.begin(), counts.end())) / 4000,
              shares[0], 0.03);
}

TEST(BenchRouting, RealSkewLoadsTheBusiestOfEightRanksAboutTwice) {
  for (const std::int64_t tokens : {128, 1024}) {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      const double busiest = busiest_rank(parse_routing("real"), tokens, seed);
      EXPECT_GT(busiest, 1.3) << tokens << " tokens, seed " << seed;
      EXPECT_LT(busiest, 2.5) << tokens << " tokens, seed " << seed;
    }
  }
  EXPECT_LT(busiest_rank(parse_routing("uniform"), 128, 1), 1.15);
}

TEST(BenchRouting, RealSkewServesAnyNumberOfExperts) {
  for (const int experts : {1, 2, 7, 9, 33, 300}) {
    const std::vector<double> shares = expert_shares(parse_routing("real"), experts, 128, 1);
    ASSERT_EQ(std::ssize(shares), experts);
    EXPECT_NEAR(std::accumulate(shares.begin(), shares.end(), 0.0), 1.0, 1e-12);
    EXPECT_GT(*std::min_element(shares.begin(), shares.end()), 0.0);
  }
}

TEST(BenchRouting, RecordedLoadTakesTheLayerAskedForOrOfMedianSkew) {
  const std::string path =
      write_file("layers.json", R"({"logical_count": [[0, 0], [1, 9], [1, 1], [1, 3]]})");
  const auto shares = [&](const std::string& tail) {
    return expert_shares(parse_routing("load:" + path + tail), 2, 128, 1);
  };
  EXPECT_EQ(shares(""), (std::vector<double>{0.25, 0.75}));
  EXPECT_EQ(shares(":1"), (std::vector<double>{0.1, 0.9}));
  EXPECT_NE(error_of([&] { shares(":0"); }).find("all counts of layer 0 are zero"),
            std::string::npos);
  EXPECT_NE(error_of([&] { shares(":4"); }).find("layer 4 of 4"), std::string::npos);
}

TEST(BenchRouting, RecordedLoadSumsOverSteps) {
  const std::string path = write_file("steps.json", R"({"logical_count": [[[1, 0]], [[1, 2]]]})");
  EXPECT_EQ(expert_shares(parse_routing("load:" + path), 2, 128, 1),
            (std::vector<double>{0.5, 0.5}));
}

TEST(BenchRouting, RecordedLoadThatDoesNotFitIsNamed) {
  const std::string path = write_file("fit.json", R"({"logical_count": [[1, 2, 3]]})");
  const auto error = [&](const std::string& file, int experts) {
    return error_of([&] { expert_shares(parse_routing("load:" + file), experts, 128, 1); });
  };
  EXPECT_NE(error(path, 4).find("3 experts, but --experts is 4"), std::string::npos);
  EXPECT_NE(error("/nowhere", 4).find("cannot open '/nowhere'"), std::string::npos);
  EXPECT_NE(error(write_file("bad.json", "[1]"), 4).find("logical_count"), std::string::npos);
  EXPECT_NE(error(write_file("flat.json", R"({"logical_count": [1]})"), 4).find("not a matrix"),
            std::string::npos);
  EXPECT_NE(error(write_file("text.json", R"({"logical_count": [["a"]]})"), 1).find("not a number"),
            std::string::npos);
  EXPECT_NE(error(write_file("minus.json", R"({"logical_count": [[3, -1]]})"), 2).find("negative"),
            std::string::npos);
  const std::string sparse = write_file("sparse.json", R"({"logical_count": [[3, 0, 1]]})");
  const auto shares = expert_shares(parse_routing("load:" + sparse), 3, 128, 1);
  EXPECT_NE(error_of([&] { choose_experts(shares, 1, 3, 1, 0); }).find("only 2 experts"),
            std::string::npos);
}

TEST(BenchRouting, GroupsLimitWhereATokensExpertsAre) {
  const RoutingSpec spec = parse_routing("groups:4");
  const std::vector<double> shares = expert_shares(spec, kExperts, 128, 1);
  const Gate gate = gate_of(spec, kTopK, 2);
  const Choices choices = choose_experts(shares, 2000, gate, 1, 0);
  std::array<int, 4> chosen = {};
  for (std::size_t token = 0; token < 2000; ++token) {
    std::set<std::int64_t> experts, groups;
    for (std::size_t k = 0; k < kTopK; ++k) {
      experts.insert(choices.topk_ids[token * kTopK + k]);
      groups.insert(choices.topk_ids[token * kTopK + k] / (kExperts / 4));
    }
    EXPECT_EQ(experts.size(), static_cast<std::size_t>(kTopK));
    EXPECT_LE(groups.size(), 2u);
    for (const std::int64_t group : groups) ++chosen[static_cast<std::size_t>(group)];
  }
  for (const int count : chosen) EXPECT_NEAR(count, 1000, 100);
}

TEST(BenchRouting, AllGroupsAreNoLimit) {
  const std::vector<double> shares = expert_shares(parse_routing("uniform"), kExperts, 128, 1);
  EXPECT_EQ(choose_experts(shares, 50, {kTopK, 4, 4}, 1, 0).topk_ids,
            choose_experts(shares, 50, kTopK, 1, 0).topk_ids);
}

TEST(BenchRouting, GateThatDoesNotFitIsNamed) {
  const std::vector<double> shares = expert_shares(parse_routing("uniform"), 12, 128, 1);
  for (const Gate& gate : {Gate(2, 4, 0), Gate(2, 4, 5), Gate(2, 5, 1), Gate(4, 4, 1)})
    EXPECT_NE(error_of([&] { choose_experts(shares, 1, gate, 1, 0); }).find("--top-groups"),
              std::string::npos);
}

TEST(BenchRouting, UnknownTextIsNamed) {
  for (const char* text : {"", "even", "zipf", "zipf:", "zipf:x", "zipf:-1", "zipf:1.2x",
                           "zipf:nan", "load:", "groups:", "groups:0", "groups:2:1"}) {
    EXPECT_NE(error_of([&] { parse_routing(text); }), "") << text;
  }
  EXPECT_EQ(parse_routing("load:a:b").file, "a:b");
  EXPECT_EQ(parse_routing("ids:a.npy:3").layer, 3);
  EXPECT_EQ(parse_routing("load:a:b:7").layer, 7);
}

// Two tokens of three layers, top-k 2.
TEST(BenchRouting, IdsOfARouterTraceAreTakenInTurn) {
  const std::string file = testing::TempDir() + "router_trace.npy";
  write_router_trace(file, {0, 1, 2, 3, 4, 5, 6, 7, 0, 2, 1, -1}, 3, 2);
  EXPECT_EQ(router_ids(file, 0, 2, 8), (std::vector<int>{0, 1, 6, 7}));
  EXPECT_EQ(router_ids(file, 2, 2, 8), (std::vector<int>{4, 5, 1, -1}));
  const RoutingSpec spec = parse_routing("ids:" + file + ":1");
  const std::vector<double> shares = expert_shares(spec, 8, 128, 1);
  Choices choices = choose_experts(shares, 3, 2, 1, 0);
  const std::vector<int> ids = ids_of(spec, 2, 8);
  replay(ids, 0, choices);
  EXPECT_EQ(choices.topk_ids, (std::vector<std::int64_t>{2, 3, 0, 2, 2, 3}));
  replay(ids, 1, choices);
  EXPECT_EQ(choices.topk_ids, (std::vector<std::int64_t>{0, 2, 2, 3, 0, 2}));
  const auto error = [&](int layer, int top_k, int experts) {
    return error_of([&] { router_ids(file, layer, top_k, experts); });
  };
  EXPECT_NE(error(3, 2, 8).find("layer 3 of"), std::string::npos);
  EXPECT_NE(error(0, 4, 8).find("has top-k 2, but --top-k is 4"), std::string::npos);
  EXPECT_NE(error(0, 2, 7).find("id 7 at token 1, layer 0, k 1"), std::string::npos);
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 4);
  EXPECT_NE(error(0, 2, 8).find("has 44 bytes of ids, need 48"), std::string::npos);
  std::filesystem::resize_file(file, 9);
  EXPECT_NE(error(0, 2, 8).find("is no .npy file"), std::string::npos);
}

}  // namespace
}  // namespace ferry::bench

// Draws the case of a run with views from its seed.
#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "simulator/views.h"

namespace ferry::test {

bool ViewsCase::has(Fault fault) const {
  return std::ranges::any_of(blows, [fault](const Blow& blow) { return blow.fault == fault; });
}

bool ViewsCase::begins_with(int rank) const {
  return first.empty() || std::ranges::binary_search(first, rank);
}

int ViewsCase::rank_of(int process) const {
  return process < num_ranks() ? process : returns[process - num_ranks()].rank;
}

std::vector<int> ViewsCase::hosts() const {
  std::vector<int> hosts;
  for (int process = 0; process < num_processes(); ++process) {
    const bool elsewhere = process >= num_ranks() && returns[process - num_ranks()].elsewhere;
    hosts.push_back(elsewhere ? nodes.of_rank.back() + process : nodes.of_rank[rank_of(process)]);
  }
  return one_host ? std::vector<int>(hosts.size()) : hosts;
}

// Equal on all members of the view.
ViewsCase::Admit ViewsCase::admit_in(std::uint64_t view, int attempt, int num_lost) const {
  constexpr int kMostAttempts = 3;
  if (returns.empty() || num_lost == 0 || attempt >= kMostAttempts) return {};
  // Between nodes an admission takes some 50 ms.
  constexpr std::array kDeadlinesMs = {30, 120, 500, 2000}, kBetweenNodesMs = {60, 500, 2000, 2000};
  Random random(seed, 6004 + view * kMostAttempts + static_cast<std::uint64_t>(attempt));
  return {.called = !random.one_in(4),
          .named = random.one_in(2) ? -1 : static_cast<int>(random.below(num_lost)),
          .deadline = std::chrono::milliseconds(
              random.pick(nodes.several() ? kBetweenNodesMs : kDeadlinesMs))};
}

std::string ViewsCase::describe() const {
  std::string text =
      fmt::format("{}{}, {}, {} rounds", nodes.topology, one_host ? ", one host" : "",
                  name_of(config.algorithm), num_rounds);
  if (!first.empty()) text += fmt::format(", begins with {}", fmt::join(first, ", "));
  for (const Blow& blow : blows)
    text += fmt::format(", {} of process {} after {} turns{}", name_of(blow.fault), blow.process,
                        blow.turns, blow.in_admission ? " in admissions" : "");
  for (const Return& back : returns)
    text += fmt::format(", rank {} comes after {} us{}", back.rank, back.at_ns / 1000,
                        back.elsewhere ? " on a host of its own" : "");
  return text;
}

namespace {

constexpr std::array kBlows = {Fault::kDeath, Fault::kDeath, Fault::kDeath,
                               Fault::kRaise, Fault::kPause, Fault::kStop};
constexpr std::array kMostTurnsBefore = {20, 100, 300, 1000};
constexpr std::array<std::int64_t, 5> kComesNs = {0, 1'000'000, 10'000'000, 50'000'000,
                                                  200'000'000};

// In half of the cases processes come to take places, mostly those of ranks that die, and faults
// may strike during admissions.
void draw_returns(ViewsCase& drawn) {
  Random random(drawn.seed, 6003);
  if (random.one_in(2)) return;
  const int lost = static_cast<int>(random.below(drawn.num_ranks()));
  for (std::int64_t left = random.between(1, 3); left > 0; --left)
    drawn.returns.push_back(
        {.rank = random.one_in(3) ? static_cast<int>(random.below(drawn.num_ranks())) : lost,
         .at_ns = random.pick(kComesNs),
         .joins = !random.one_in(4),
         .elsewhere = false});
  if (!random.one_in(4))
    drawn.blows.push_back(
        {.fault = Fault::kDeath, .process = lost, .turns = static_cast<int>(random.below(100))});
  for (std::int64_t left = random.between(0, 2); left > 0; --left)
    drawn.blows.push_back(
        {.fault = random.pick(kBlows),
         .process = static_cast<int>(random.below(drawn.num_processes())),
         .turns = static_cast<int>(random.below(random.pick(std::array{10, 40, 150}))),
         .in_admission = true});
}

// In a quarter of the cases the group begins with some of its ranks, and processes come for most of
// the others.
void draw_first_ranks(ViewsCase& drawn) {
  Random random(drawn.seed, 6011);
  if (!random.one_in(4)) return;
  const std::vector<int>& nodes = drawn.nodes.of_rank;
  const int kept = static_cast<int>(random.below(drawn.num_ranks()));
  const bool whole_nodes = drawn.nodes.several() && random.one_in(2);
  for (int rank = 0; rank < drawn.num_ranks(); ++rank) {
    const bool beside = whole_nodes && nodes[rank] == nodes[kept];
    if (rank == kept || beside || (!whole_nodes && random.one_in(2))) {
      drawn.first.push_back(rank);
    } else if (!random.one_in(6)) {
      drawn.returns.push_back({.rank = rank,
                               .at_ns = random.pick(kComesNs),
                               .joins = !random.one_in(4),
                               .elsewhere = false});
    }
  }
}

}  // namespace

ViewsCase draw_views(std::uint64_t seed) {
  Random random(seed, 6002);
  ViewsCase drawn{.seed = seed, .nodes = nodes_of_sizes({static_cast<int>(random.between(2, 4))})};
  drawn.config = {
      .max_tokens = random.between(1, 5),
      .hidden = random.between(1, 20),
      .num_experts = 12,
      .top_k = static_cast<int>(random.between(1, 4)),
      .dtype = random.pick(std::array{DataType::kBf16, DataType::kFp32}),
      .layout = random.pick(std::array{Layout::kRankMajor, Layout::kExpertMajor, Layout::kPadded}),
      .depth = static_cast<int>(random.between(1, 3))};
  for (std::int64_t left = random.between(0, 3); left > 0; --left)
    drawn.blows.push_back({.fault = random.pick(kBlows),
                           .process = static_cast<int>(random.below(drawn.num_ranks())),
                           .turns = static_cast<int>(random.below(random.pick(kMostTurnsBefore)))});
  drawn.num_rounds = static_cast<int>(random.between(1, 5));
  draw_returns(drawn);
  draw_first_ranks(drawn);
  if (drawn.has(Fault::kStop)) drawn.deadline = std::chrono::milliseconds(400);
  return drawn;
}

namespace {

// Processes come for a rank, or in half of the cases for all ranks of its node. Most of these ranks
// die before. A node that has lost all its ranks needs new memory.
void draw_returns_to_nodes(ViewsCase& drawn, Random& random) {
  const std::vector<int>& nodes = drawn.nodes.of_rank;
  std::vector<int> lost = {static_cast<int>(random.below(drawn.num_ranks()))};
  if (random.one_in(2)) {
    const int node = nodes[lost[0]];
    lost.clear();
    for (int rank = 0; rank < drawn.num_ranks(); ++rank)
      if (nodes[rank] == node) lost.push_back(rank);
  }
  const int turns = static_cast<int>(random.below(random.pick(std::array{20, 100, 300})));
  const bool elsewhere = !drawn.one_host && random.one_in(3);
  for (const int rank : lost) {
    if (!random.one_in(6))
      drawn.blows.push_back({.fault = Fault::kDeath, .process = rank, .turns = turns});
    for (std::int64_t left = random.between(1, 2); left > 0; --left)
      drawn.returns.push_back({.rank = rank,
                               .at_ns = random.pick(kComesNs),
                               .joins = !random.one_in(4),
                               .elsewhere = elsewhere && random.one_in(3) != (left == 1)});
  }
  if (random.one_in(3)) {
    const int rank = static_cast<int>(random.below(drawn.num_ranks()));
    drawn.returns.push_back(
        {.rank = rank, .at_ns = random.pick(kComesNs), .joins = true, .elsewhere = false});
  }
}

}  // namespace

ViewsCase draw_admissions(std::uint64_t seed) {
  constexpr std::array kOfNodes = {Fault::kDeath, Fault::kDeath, Fault::kDeath, Fault::kRaise,
                                   Fault::kPause, Fault::kStop,  Fault::kOutage};
  constexpr std::array kOfSeveralNodes = {Algorithm::kHierarchical, Algorithm::kFullmesh};
  constexpr int kMostRanks = 5;
  Random random(seed, 6008);
  std::vector<int> sizes;
  int num_ranks = 0;
  for (std::int64_t left = random.between(2, 3); left > 0; --left) {
    const int most = std::min<int>(3, kMostRanks - num_ranks - static_cast<int>(left) + 1);
    sizes.push_back(static_cast<int>(random.between(1, most)));
    num_ranks += sizes.back();
  }
  ViewsCase drawn{.seed = seed, .nodes = nodes_of_sizes(sizes), .one_host = random.one_in(2)};
  drawn.config = {.max_tokens = random.between(1, 4),
                  .hidden = random.between(1, 12),
                  .num_experts = 60,  // equally many for each number of members
                  .top_k = static_cast<int>(random.between(1, 3)),
                  .dtype = random.pick(std::array{DataType::kBf16, DataType::kFp32}),
                  .depth = static_cast<int>(random.between(1, 3)),
                  .algorithm = random.pick(kOfSeveralNodes)};
  drawn.num_rounds = static_cast<int>(random.between(2, 6));
  draw_returns_to_nodes(drawn, random);
  draw_first_ranks(drawn);
  for (std::int64_t left = random.between(0, 3); left > 0; --left) {
    const bool in_admission = random.one_in(2);
    drawn.blows.push_back(
        {.fault = random.pick(kOfNodes),
         .process = static_cast<int>(random.below(drawn.num_processes())),
         .turns = static_cast<int>(random.below(in_admission ? random.pick(std::array{10, 40, 150})
                                                             : random.pick(kMostTurnsBefore))),
         .in_admission = in_admission});
  }
  if (drawn.has(Fault::kStop)) drawn.deadline = std::chrono::milliseconds(400);
  return drawn;
}

}  // namespace ferry::test

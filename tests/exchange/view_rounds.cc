// The steps of the rounds of views.
#include "view_rounds.h"

#include <numeric>

namespace ferry::test {

namespace {

int owner_of(const ExchangeConfig& config, int num_ranks, std::int64_t expert) {
  const int owners =
      config.expert_ranks.empty() ? num_ranks : static_cast<int>(config.expert_ranks.size());
  const int place = static_cast<int>(expert) / (config.num_experts / owners);
  return config.expert_ranks.empty() ? place : config.expert_ranks[place];
}

}  // namespace

int set_of(const View& view) {
  return std::accumulate(view.members.begin(), view.members.end(), 0,
                         [](int set, int rank) { return set | 1 << rank; });
}

Scenario scenario_of_sets(const Nodes& nodes, const ExchangeConfig& config, std::uint64_t seed) {
  const int num_ranks = static_cast<int>(nodes.of_rank.size());
  int owners = config.expert_ranks.empty() ? (1 << num_ranks) - 1 : 0;
  for (const int rank : config.expert_ranks) owners |= 1 << rank;
  Scenario scenario = plain_scenario(nodes, config, 1 << num_ranks, seed);
  Random random(seed, 3);
  for (int set = 1; set < 1 << num_ranks; ++set) {
    if ((set & ~owners) != 0) continue;
    Round& round = scenario.rounds[set];
    for (internal::RankInput& input : round.inputs) {
      for (int rank = 0; rank < num_ranks && set + 1 < 1 << num_ranks; ++rank)
        if (set >> rank & 1) input.active_ranks.push_back(rank);
      for (std::int64_t& id : input.topk_ids)
        if (!(set >> owner_of(config, num_ranks, id) & 1)) id = -1;
    }
    expect_dispatch(config, round);
    round.combines = {random_combine(config, round, config.hidden, config.dtype, random)};
  }
  return scenario;
}

Scenario scenario_of_sets(int num_ranks, const ExchangeConfig& config, std::uint64_t seed) {
  return scenario_of_sets(test_nodes(num_ranks), config, seed);
}

Scenario scenario_among(int num_ranks, ExchangeConfig config, const std::vector<int>& members,
                        std::uint64_t seed) {
  config.expert_ranks = members;
  return scenario_of_sets(num_ranks, config, seed);
}

Status play_view(const Group& group, Seat& seat) {
  const int set = set_of(group.view());
  DispatchCall dispatch = seat.dispatch_call(set);
  dispatch.args().active_ranks = {};
  Received received;
  if (Status status = seat.exchange().dispatch(dispatch.args(), received); !status.ok())
    return status;
  seat.check(set, received);
  CombineCall combine = seat.combine_call(set, received.handle);
  if (!combine.broke().ok()) return combine.broke();
  Status status = seat.exchange().combine(combine.args());
  if (status.ok()) combine.check("combine of view " + std::to_string(group.view().number));
  return status;
}

Status play_until_error(const Group& group, Seat& seat) {
  while (true) {
    if (Status status = play_view(group, seat); !status.ok()) return status;
  }
}

void survive(Group& group, std::uint64_t number, int set) {
  require_ok(group.survive(), "survive");
  require(group.usable() && group.view().number == number && set_of(group.view()) == set,
          "view " + std::to_string(group.view().number) + " has ranks " +
              std::to_string(set_of(group.view())) + ", not " + std::to_string(set));
}

}  // namespace ferry::test

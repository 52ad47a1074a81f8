// The sequences in which sets of active ranks follow each other.
#include "scenario_sets.h"

#include <algorithm>
#include <array>

#include "scenario_config.h"

namespace ferry::test {
namespace {

enum class Sequence { kDisjoint, kNodes, kShrinking, kGrowing, kAny };
constexpr std::array kSequences = {Sequence::kDisjoint, Sequence::kNodes, Sequence::kShrinking,
                                   Sequence::kGrowing, Sequence::kAny};

// The shared experts must spread evenly over the shared ranks that take part.
bool is_legal(const ExchangeConfig& config, const ActiveRanks& ranks) {
  const auto shared = std::count_if(ranks.begin(), ranks.end(),
                                    [&config](int rank) { return rank < config.shared.num_ranks; });
  return shared == 0 || shared % config.shared.num_experts == 0;
}

// The first or the last ranks of `order`, by turns.
std::vector<ActiveRanks> disjoint_sets(const ActiveRanks& order, int num_rounds, Random& random) {
  const auto cut = order.begin() + random.between(1, std::ssize(order) - 1);
  const std::array<ActiveRanks, 2> halves = {ActiveRanks(order.begin(), cut),
                                             ActiveRanks(cut, order.end())};
  std::vector<ActiveRanks> sets;
  for (int round = 0; round < num_rounds; ++round) sets.push_back(halves[round % 2]);
  return sets;
}

std::vector<ActiveRanks> sets_of_nodes(const Nodes& nodes, int num_rounds, Random& random) {
  std::vector<ActiveRanks> sets;
  for (int round = 0; round < num_rounds; ++round) {
    const auto node = static_cast<int>(random.below(nodes.of_rank.back() + 1));
    ActiveRanks ranks;
    for (int rank = 0; rank < static_cast<int>(nodes.of_rank.size()); ++rank)
      if (nodes.of_rank[rank] == node) ranks.push_back(rank);
    sets.push_back(std::move(ranks));
  }
  return sets;
}

std::vector<ActiveRanks> shrinking_sets(ActiveRanks ranks, int num_rounds, Random& random) {
  std::vector<ActiveRanks> sets;
  for (int round = 0; round < num_rounds; ++round) {
    sets.push_back(ranks);
    ranks.resize(std::max<std::int64_t>(1, std::ssize(ranks) - random.below(3)));
  }
  return sets;
}

}  // namespace

ActiveRanks draw_active_ranks(const ExchangeConfig& config, int num_ranks, Random& random) {
  ActiveRanks ranks = random_order(num_ranks, random);
  ranks.resize(random.between(1, num_ranks));
  if (random.one_in(2)) std::sort(ranks.begin(), ranks.end());
  return is_legal(config, ranks) ? ranks : ActiveRanks();
}

std::vector<ActiveRanks> draw_sequence(const ExchangeConfig& config, const Nodes& nodes,
                                       int num_rounds, Random& random) {
  const int num_ranks = static_cast<int>(nodes.of_rank.size());
  const Sequence sequence = num_ranks > 1 ? random.pick(kSequences) : Sequence::kAny;
  const ActiveRanks order = random_order(num_ranks, random);
  std::vector<ActiveRanks> sets;
  if (sequence == Sequence::kDisjoint) sets = disjoint_sets(order, num_rounds, random);
  if (sequence == Sequence::kNodes) sets = sets_of_nodes(nodes, num_rounds, random);
  if (sequence == Sequence::kShrinking || sequence == Sequence::kGrowing)
    sets = shrinking_sets(order, num_rounds, random);
  if (sequence == Sequence::kGrowing) std::reverse(sets.begin(), sets.end());
  while (std::ssize(sets) < num_rounds)
    sets.push_back(draw_active_ranks(config, num_ranks, random));
  if (random.one_in(2)) sets.front().clear();
  for (ActiveRanks& ranks : sets)
    if (!is_legal(config, ranks)) ranks.clear();
  return sets;
}

}  // namespace ferry::test

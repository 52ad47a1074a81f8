// Draws a configuration: each feature occurs in a share of the scenarios, and together with each
// other feature where the contract allows it.
#include "scenario_config.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "exchange/setup/setup.h"

namespace ferry::test {
namespace {

constexpr std::array kFloatTypes = {DataType::kBf16, DataType::kFp16, DataType::kFp32};

void draw_shape(const ScenarioLimits& limits, ExchangeConfig& config, Random& random) {
  config.max_tokens = random.between(1, limits.max_tokens);
  config.hidden = draw_hidden(limits, random);
  if (limits.wide_rows && random.one_in(10)) {
    config.max_tokens = random.between(1, 3);
    config.hidden = random.between(3000, 7200);
  }
}

// Groups of `size` neighbours, none on two nodes.
bool groups_fit(const Nodes& nodes, int size) {
  const int num_ranks = static_cast<int>(nodes.of_rank.size());
  for (int first = 0; first < num_ranks; first += size) {
    const int last = first + size - 1;
    if (last >= num_ranks || nodes.of_rank[first] != nodes.of_rank[last]) return false;
  }
  return true;
}

// As many tokens in all whatever the group.
void draw_group(const Nodes& nodes, ExchangeConfig& config, Random& random) {
  std::vector<int> sizes;
  for (int size = 2; size <= static_cast<int>(nodes.of_rank.size()); ++size) {
    if (groups_fit(nodes, size)) sizes.push_back(size);
  }
  if (sizes.empty()) return;
  config.tp_size = random.pick(sizes);
  config.max_tokens = std::max<std::int64_t>(1, config.max_tokens / config.tp_size);
}

void draw_shared(int num_ranks, ExchangeConfig& config, Random& random) {
  constexpr std::array kExperts = {1, 1, 1, 2, 3, 4};
  const int most = config.expert_rank.empty() ? num_ranks - 1 : num_ranks;
  if (most == 0) return;
  SharedExperts& shared = config.shared;
  shared.num_experts = std::min(random.pick(kExperts), most);
  shared.num_ranks =
      shared.num_experts * static_cast<int>(random.between(1, most / shared.num_experts));
  if (shared.num_experts == 1 && random.one_in(2)) shared.rule = SharedRule::kByToken;
}

void draw_wire(ExchangeConfig& config, Random& random) {
  constexpr std::array kWires = {Wire::kInt8, Wire::kInt8Static, Wire::kFp8, Wire::kFp8Pow2,
                                 Wire::kFp8Ue8m0};
  if (random.one_in(4)) {
    config.scale_bytes = random.between(1, 20);
    if (random.one_in(2)) config.scale_bytes *= 4;
  } else {
    config.wire = random.pick(kWires);
    if (config.dtype == DataType::kBytes) config.dtype = draw_float_type(random);
  }
  if (config.scale_bytes % 4 == 0 && random.one_in(2))
    config.scale_order = ScaleOrder::kColumnMajor;
}

void draw_special(ExchangeConfig& config, Random& random) {
  SpecialExperts& special = config.special;
  special.zero = static_cast<int>(random.below(3));
  if (config.dtype == DataType::kBytes) return;
  special.copy = static_cast<int>(random.below(3));
  special.constant = static_cast<int>(random.below(3));
}

// Every expert stands for one logical expert at most, some for none.
void draw_replicas(ExchangeConfig& config, Random& random) {
  constexpr std::array kChoices = {ReplicaChoice::kByRank, ReplicaChoice::kByToken,
                                   ReplicaChoice::kByTable};
  config.replicas.choice = random.pick(kChoices);
  std::vector<std::vector<int>>& instances = config.replicas.instances;
  instances.resize(random.between((config.num_experts + 2) / 3, config.num_experts));
  const auto num_logical = static_cast<int>(instances.size());
  std::vector<int> experts = random_order(config.num_experts, random);
  for (int i = 0; i < config.num_experts; ++i) {
    if (i < num_logical) {
      instances[i].push_back(experts[i]);
    } else if (!random.one_in(6)) {
      instances[random.below(num_logical)].push_back(experts[i]);
    }
  }
}

void draw_internode(ExchangeConfig& config, Random& random) {
  constexpr std::array kAlgorithms = {Algorithm::kFullmesh, Algorithm::kHierarchical,
                                      Algorithm::kHierarchical, Algorithm::kAllgather};
  constexpr std::array kSums = {NodeSums::kRowType, NodeSums::kFp32, NodeSums::kExact};
  config.algorithm = random.pick(kAlgorithms);
  config.node_sums = random.pick(kSums);
}

}  // namespace

std::int64_t draw_hidden(const ScenarioLimits& limits, Random& random) {
  constexpr std::array kOdd = {1,  2,  3,  5,  7,  8,   15,  16,  17,  31,
                               32, 33, 63, 64, 65, 127, 128, 129, 255, 257};
  if (random.one_in(3)) return random.between(1, limits.max_hidden);
  return std::min<std::int64_t>(random.pick(kOdd), limits.max_hidden);
}

std::vector<int> random_order(int count, Random& random) {
  std::vector<int> order(count);
  std::iota(order.begin(), order.end(), 0);
  for (int i = count - 1; i > 0; --i) std::swap(order[i], order[random.below(i + 1)]);
  return order;
}

DataType draw_float_type(Random& random) { return random.pick(kFloatTypes); }

std::int64_t num_expert_ids(const ExchangeConfig& config) {
  return config.replicas.instances.empty()
             ? config.num_experts
             : static_cast<std::int64_t>(config.replicas.instances.size());
}

std::int64_t num_ids(const ExchangeConfig& config) {
  return num_expert_ids(config) + config.special.total();
}

bool combine_reads_tokens(const ExchangeConfig& config) {
  return config.special.copy + config.special.constant > 0;
}

std::vector<std::int64_t> ids_of_rank(const ExchangeConfig& config, int num_ranks, int rank) {
  std::vector<int> owners = config.expert_rank;
  std::vector<int> block_owners = config.expert_ranks;
  for (int rank = 0; config.expert_ranks.empty() && rank < num_ranks; ++rank)
    block_owners.push_back(rank);
  std::erase_if(block_owners, [&](int owner) { return owner < config.shared.num_ranks; });
  const int blocks = static_cast<int>(block_owners.size());
  for (int block = 0; config.expert_rank.empty() && block < blocks; ++block) {
    owners.insert(owners.end(),
                  config.num_experts / blocks + (block < config.num_experts % blocks ? 1 : 0),
                  block_owners[block]);
  }
  std::vector<std::int64_t> ids;
  for (std::int64_t id = 0; id < num_expert_ids(config); ++id) {
    std::vector<int> experts = {static_cast<int>(id)};
    if (!config.replicas.instances.empty()) experts = config.replicas.instances[id];
    for (const int expert : experts) {
      if (owners[expert] != rank) continue;
      ids.push_back(id);
      break;
    }
  }
  return ids;
}

void draw_roles(int num_ranks, ExchangeConfig& config, Random& random) {
  const int members = num_ranks / config.tp_size;
  if (random.one_in(3)) {
    config.token_ranks = random_order(members, random);
    config.token_ranks.resize(random.between(1, members));
  }
  if (random.one_in(3)) return;
  std::vector<bool> owns(members);
  for (const int owner : config.expert_rank) owns[owner] = true;
  for (int rank = 0; rank < config.shared.num_ranks; ++rank) owns[rank] = true;
  const bool blocks = config.expert_rank.empty();
  if (blocks) owns[random.between(config.shared.num_ranks, members - 1)] = true;
  for (const int rank : random_order(members, random)) {
    if (owns[rank] || random.one_in(3)) config.expert_ranks.push_back(rank);
  }
}

// Of small rows, since every expert may have some. What was drawn for each expert is drawn for the
// new ones too.
void make_experts_many(int num_ranks, ExchangeConfig& config, Random& random) {
  const int members = num_ranks / config.tp_size;
  const auto rows = static_cast<int>(random.between(1, members));
  const int few = config.num_experts;
  config.num_experts = (static_cast<int>(internal::kSharedSumsFrom) + rows - 1) / rows;
  config.hidden = std::min(config.hidden, kMostHiddenOfManyExperts);
  config.expert_alignment = std::min<std::int64_t>(config.expert_alignment, 2);
  if (config.layout == Layout::kPadded)
    config.max_tokens = std::min<std::int64_t>(config.max_tokens, 2);
  for (int expert = few; expert < config.num_experts; ++expert) {
    if (!config.expert_rank.empty())
      config.expert_rank.push_back(config.expert_ranks.empty()
                                       ? static_cast<int>(random.below(members))
                                       : random.pick(config.expert_ranks));
    if (!config.replicas.instances.empty()) config.replicas.instances.push_back({expert});
  }
}

ExchangeConfig draw_config(const Nodes& nodes, bool plain, const ScenarioLimits& limits,
                           Random& random) {
  constexpr std::array kTopK = {1, 1, 2, 3, 4, 6, 8, 8, 16, 32};
  constexpr std::array kTypes = {DataType::kBf16, DataType::kFp16, DataType::kFp32,
                                 DataType::kBytes};
  constexpr std::array kLayouts = {Layout::kRankMajor, Layout::kExpertMajor, Layout::kPadded};
  constexpr std::array kCombineWires = {CombineWire::kInt8Block8, CombineWire::kInt8Block128,
                                        CombineWire::kLogfmt10};
  ExchangeConfig config;
  draw_shape(limits, config, random);
  if (!plain && random.one_in(4)) draw_group(nodes, config, random);
  const int members = static_cast<int>(nodes.of_rank.size()) / config.tp_size;
  config.num_experts =
      static_cast<int>(random.one_in(5) ? random.between(1, members) : random.between(1, 40));
  config.top_k = random.pick(kTopK);
  config.dtype = random.pick(kTypes);
  config.layout = random.pick(kLayouts);
  if (random.one_in(config.layout == Layout::kExpertMajor ? 2 : 5))
    config.expert_alignment = random.between(2, 17);
  config.zero_gaps = random.one_in(2);
  if (random.one_in(3)) {
    for (int expert = 0; expert < config.num_experts; ++expert)
      config.expert_rank.push_back(static_cast<int>(random.below(members)));
  }
  config.depth = static_cast<int>(random.between(1, 3));
  config.workers = static_cast<int>(random.between(1, 3));
  if (!nodes.topology.empty()) draw_internode(config, random);
  if (plain) return config;
  if (random.one_in(3)) draw_shared(members, config, random);
  if (!random.one_in(3)) draw_wire(config, random);
  if (random.one_in(2)) config.combine_wire = random.pick(kCombineWires);
  if (random.one_in(3)) draw_special(config, random);
  if (random.one_in(3)) draw_replicas(config, random);
  return config;
}

}  // namespace ferry::test

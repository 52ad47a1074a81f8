#include "routing/roles.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/check.h"
#include "ferry/status.h"

namespace ferry::internal {

namespace {

// Returns which ranks of the domain are in the list.
std::vector<bool> checked(const char* name, const std::vector<int>& ranks, int domain_ranks) {
  std::vector<bool> seen(std::max(domain_ranks, 0));
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const int rank = ranks[i];
    if (rank < 0 || rank >= domain_ranks || seen[rank]) {
      throw Error(
          Code::kInvalidArgument,
          fmt::format("{}[{}] is {}, need distinct ranks in [0, {})", name, i, rank, domain_ranks));
    }
    seen[rank] = true;
  }
  return seen;
}

}  // namespace

void check_roles(const ExchangeConfig& config, int domain_ranks) {
  checked("token_ranks", config.token_ranks, domain_ranks);
  const std::vector<int>& owners = config.expert_ranks;
  const std::vector<bool> owns = checked("expert_ranks", owners, domain_ranks);
  if (owners.empty()) return;
  for (std::size_t expert = 0; expert < config.expert_rank.size(); ++expert) {
    const int owner = config.expert_rank[expert];
    if (owner < 0 || owner >= domain_ranks || owns[owner]) continue;  // ExpertMap checks the range
    throw Error(Code::kInvalidArgument,
                fmt::format("expert_rank[{}] is {}, which is not in expert_ranks [{}]", expert,
                            owner, fmt::join(owners, ", ")));
  }
  for (int rank = 0; rank < std::min(config.shared.num_ranks, domain_ranks); ++rank) {
    if (owns[rank]) continue;
    throw Error(Code::kInvalidArgument,
                fmt::format("shared.num_ranks is {}: rank {} has a shared expert and is not in "
                            "expert_ranks [{}]",
                            config.shared.num_ranks, rank, fmt::join(owners, ", ")));
  }
}

int num_token_ranks(const ExchangeConfig& config, int domain_ranks) {
  return config.token_ranks.empty() ? domain_ranks : static_cast<int>(config.token_ranks.size());
}

SegmentPlaces::SegmentPlaces(const ExchangeConfig& config, const ExpertMap& map,
                             std::span<const int> node_of)
    : windows(node_of.size(), -1), row_lists(node_of.size(), -1) {
  FERRY_CHECK(std::ssize(node_of), ==, std::ptrdiff_t{map.num_members()} * config.tp_size);
  struct Counts {
    int ranks = 0, windows = 0, row_lists = 0;
  };
  std::vector<bool> has_tokens(map.num_members(), config.token_ranks.empty());
  for (const int member : config.token_ranks) has_tokens[member] = true;
  std::vector<Counts> nodes(std::ranges::max(node_of) + 1);
  for (std::size_t rank = 0; rank < node_of.size(); ++rank) {
    Counts& counts = nodes[node_of[rank]];
    const int member = static_cast<int>(rank) / config.tp_size;
    ++counts.ranks;
    if (map.num_local(member) > 0) windows[rank] = counts.windows++;
    if (has_tokens[member]) row_lists[rank] = counts.row_lists++;
  }
  for (const Counts& counts : nodes) {
    node_ranks = std::max(node_ranks, counts.ranks);
    num_windows = std::max(num_windows, counts.windows);
    num_row_lists = std::max(num_row_lists, counts.row_lists);
  }
}

}  // namespace ferry::internal

// Sums of a combine from other nodes, as the source asks for them: every mate is told which rows of
// its branch each of my tokens wants, and its answers are laid out before they come, so that
// nothing has to be said about what is where. Called by combine.cc.
#include <fmt/format.h>

#include <span>

#include "exchange/combine.h"
#include "exchange/internode/forwarder.h"

namespace ferry::internal {

namespace {

template <typename T>
void put(std::vector<std::byte>& to, const T& value) {
  const auto bytes = std::as_bytes(std::span(&value, 1));
  to.insert(to.end(), bytes.begin(), bytes.end());
}

}  // namespace

// The answers are laid out, and the questions leave.
void Combine::ask_for_sums() {
  const Route& route = *route_;
  const HomeFormat format = home_format();
  const int scalars =
      args_.out_topk_weights ? static_cast<int>(setup_.layout.weights_per_row()) : 0;
  const std::vector<ForwardingTable::Mate>& mates = exchange_.forwarder->table().mates;
  std::vector<std::size_t> answered(mates.size());
  std::vector<std::vector<std::byte>> asked(mates.size());
  std::vector<std::size_t> offsets;  // of the shares
  std::vector<int> next_hops;
  for (std::int64_t token = 0; token < route.num_tokens; ++token) {
    first_share_.push_back(offsets.size());
    const Subtrees subtrees =
        exchange_.subtrees_of(route, token * route.num_entries, route.num_entries);
    for (int i = 0; i < subtrees.count(); ++i) {
      const auto& [next_hop, level, entries] = subtrees[i];
      next_hops.push_back(next_hop);
      offsets.push_back(next_hop < 0 ? 0 : answered[next_hop]);
      if (next_hop < 0) continue;
      answered[next_hop] +=
          exchange_.forwarder->unit_bytes(static_cast<int>(entries.size()), scalars, format);
      add_terms(entries, asked[next_hop]);
    }
  }
  first_share_.push_back(offsets.size());
  sums_.resize(mates.size());
  for (std::size_t next_hop = 0; next_hop < mates.size(); ++next_hop) {
    if (answered[next_hop] > 0)
      sums_[next_hop] =
          exchange_.forwarder->expect_sums(number(), mates[next_hop].rank, answered[next_hop]);
    exchange_.forwarder->ask(mates[next_hop], number(), setup_.rank,
                             {.hidden = format.hidden,
                              .row_type = static_cast<std::int32_t>(format.type),
                              .num_positions = active().num_positions,
                              .partials = static_cast<std::int32_t>(format.partials),
                              .weighted = format.weighted,
                              .scalars = scalars,
                              .unused = 0},
                             asked[next_hop]);
  }
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    const std::byte* sums = next_hops[i] < 0 ? nullptr : sums_[next_hops[i]];
    shares_.push_back(sums ? sums + offsets[i] : nullptr);
  }
  exchange_.group->progress();
}

// One unit: the rows of one token that one branch has.
void Combine::add_terms(std::span<const std::int64_t> entries,
                        std::vector<std::byte>& terms) const {
  const Route& route = *route_;
  const ActiveSet& active = *route.active;
  put(terms, static_cast<std::int64_t>(entries.size()));
  for (const std::int64_t entry : entries) {
    const int member = route.refs[entry].member;
    const TokenEntry at{entry / route.num_entries, static_cast<int>(entry % route.num_entries)};
    put(terms, TermHead{.owner = member, .weight = weight_of(at)});
    for (int i = 0; i < active.num_positions; ++i) {
      const int position = active.position_from_mine(i);
      put(terms,
          TermPlace{.rank = active.ranks[active.index(member, position)],
                    .row = static_cast<std::int32_t>(setup_.row_at(route, entry, position))});
    }
  }
}

// The sums are here.
Status Combine::await_sums() {
  const Forwarder& forwarder = *exchange_.forwarder;
  std::vector<bool> asked(exchange_.group->size());
  const std::vector<ForwardingTable::Mate>& mates = exchange_.forwarder->table().mates;
  for (std::size_t next_hop = 0; next_hop < mates.size(); ++next_hop)
    asked[mates[next_hop].rank] = sums_[next_hop] != nullptr;
  Await sums = exchange_.protocol.awaiting(issued(), "sums", number());
  sums.flags = forwarder.summed();
  sums.only = &asked;
  if (Status status = exchange_.group->wait(sums); !status.ok()) return status;
  for (const auto& [level, mate] : mates) {
    if (!asked[mate] || forwarder.all_here(number(), mate)) continue;
    // Whoever gave up has left as well, and said why.
    if (Status verdict = exchange_.group->verdict(); !verdict.ok()) return verdict;
    return {Code::kMismatch,
            fmt::format("operation {}: rank {} destroyed this exchange before it had summed rows "
                        "for rank {}",
                        number(), mate, setup_.rank),
            mate};
  }
  return {};
}

// No receive half returns before this rank has served those whose sums it owes.
Status Combine::await_served() {
  const Forwarder& forwarder = *exchange_.forwarder;
  Await served = exchange_.protocol.awaiting(issued(), "questions", number());
  served.flags = forwarder.served();
  served.only = &forwarder.table().is_served;
  served.last_hop = &forwarder.table().last_hop;
  return exchange_.group->wait(served);
}

}  // namespace ferry::internal

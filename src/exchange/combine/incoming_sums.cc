// Sums of a combine from other nodes, as the source of the tokens asks for them: every mate is told
// which rows of its subtree each token wants, and its answers are laid out before they come, so
// that no message says what is where. Part of Combine.
#include <fmt/format.h>

#include "exchange/combine/combine.h"
#include "exchange/internode/way.h"

namespace ferry::internal {

void Combine::ask_for_sums() {
  const Route& route = *route_;
  const int num_positions = route.active->num_positions;
  const RowFormat format = row_format();
  const SumFormat asked{
      .hidden = format.hidden,
      .row_type = format.type,
      .partials = format.partials,
      .weighted = format.weighted,
      .num_positions = num_positions,
      .scalars = args_.out_topk_weights ? static_cast<int>(setup_.layout.weights_per_row()) : 0};
  const std::vector<Way*> ways = exchange_.ways.of(active());
  for (Way* const way : ways)
    asked_.emplace_back(exchange_.subtree_rule(way->table()), -1, asked,
                        way->sums().answer_layout(format, asked.scalars));
  std::vector<std::byte> terms;
  for (std::int64_t token = 0; token < route.num_tokens; ++token) {
    AskedSums& asked_of_token = asked_[exchange_.ways.of_token(token, asked_.size())];
    const std::size_t first = asked_of_token.num_subtrees();
    terms.clear();
    SumUnit unit{.num_positions = num_positions};
    for (int k = 0; k < route.num_entries; ++k) {
      if (!route.refs[token * route.num_entries + k].sent()) continue;
      append_term(term_of({token, k}), num_positions, terms);
      ++unit.num_terms;
    }
    unit.terms = terms;
    asked_of_token.add(unit);
    subtrees_.push_back({first, asked_of_token.num_subtrees()});
  }
  for (std::size_t way = 0; way < ways.size(); ++way)
    asked_[way].send(ways[way]->sums(), number(), setup_.rank);
  exchange_.group->progress();
}

Term Combine::term_of(TokenEntry at) const {
  const Route& route = *route_;
  const ActiveSet& active = *route.active;
  const std::int64_t entry = at.token * route.num_entries + at.k;
  Term term{.owner = route.refs[entry].member, .weight = weight_of(at)};
  for (int i = 0; i < active.num_positions; ++i) {
    const int position = active.position_from_mine(i);
    term.places[i] = {.rank = active.ranks[active.index(term.owner, position)],
                      .row = static_cast<std::int32_t>(setup_.row_at(route, entry, position))};
  }
  return term;
}

// The sums are here.
Status Combine::await_sums() {
  const std::vector<Way*> ways = exchange_.ways.of(active());
  for (std::size_t way = 0; way < ways.size(); ++way)
    if (Status status = await_sums(*ways[way], asked_[way]); !status.ok()) return status;
  return {};
}

Status Combine::await_sums(Way& way, const AskedSums& all) {
  std::vector<bool> asked(exchange_.group->size());
  const std::vector<ForwardingTable::Mate>& mates = way.table().mates;
  for (std::size_t next_hop = 0; next_hop < mates.size(); ++next_hop)
    asked[mates[next_hop].rank] = all.asks(next_hop);
  Await sums = exchange_.protocol.awaiting(issued(), "sums", number());
  sums.flags = way.sums().summed();
  sums.only = &asked;
  const std::function<std::int64_t()> meanwhile = [this] { return reduce_summed(); };
  sums.meanwhile = &meanwhile;
  if (Status status = exchange_.group->wait(sums); !status.ok()) return status;
  for (const auto& [level, mate] : mates) {
    if (!asked[mate] || way.sums().all_here(number(), mate)) continue;
    return exchange_.protocol.destroyed(
        issued(), "sums", mate, fmt::format(" before it had summed rows for rank {}", setup_.rank));
  }
  return {};
}

// No receive half returns before this rank has served those whose sums it owes.
Status Combine::await_served() {
  for (Way* const way : exchange_.ways.of(active())) {
    Await served = exchange_.protocol.awaiting(issued(), "questions", number());
    served.flags = way->sums().served();
    served.only = &way->table().is_served;
    served.last_hop = &way->table().last_hop;
    if (Status status = exchange_.group->wait(served); !status.ok()) return status;
  }
  return {};
}

}  // namespace ferry::internal

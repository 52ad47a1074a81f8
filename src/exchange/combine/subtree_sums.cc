#include "exchange/combine/subtree_sums.h"

#include "base/check.h"
#include "exchange/ways/way.h"

namespace ferry::internal {

void SubtreeSums::request() {
  const Route& route = *call_.route;
  const ExchangeParts& exchange = call_.exchange;
  const int tp_size = route.active->tp_size;
  const RowFormat format = call_.row_format();
  const int weights_per_row = static_cast<int>(call_.setup.layout.weights_per_row());
  const SumFormat asked{.hidden = format.hidden,
                        .row_type = format.type,
                        .partials = format.partials,
                        .weighted = format.weighted,
                        .tp_size = tp_size,
                        .scalars = call_.args.out_topk_weights ? weights_per_row : 0};
  const std::vector<Way*> ways = exchange.ways.of(call_.active());
  FERRY_CHECK(asked_.size(), ==, 0u);
  for (Way* const way : ways)
    asked_.emplace_back(exchange.subtree_rule(way->table()), -1, asked,
                        way->sums().reply_layout(format, asked.scalars));
  std::vector<std::byte> terms;
  for (std::int64_t token = 0; token < route.num_tokens; ++token) {
    RequestedSums& requests_of_token = asked_[exchange.ways.of_token(token, asked_.size())];
    const std::size_t first = requests_of_token.num_subtrees();
    terms.clear();
    SumUnit unit{.tp_size = tp_size};
    for (int k = 0; k < route.num_entries; ++k) {
      if (!route.refs[token * route.num_entries + k].sent()) continue;
      append_summand(summand_of({token, k}), tp_size, terms);
      ++unit.num_summands;
    }
    unit.terms = terms;
    requests_of_token.add(unit);
    subtrees_.push_back({first, requests_of_token.num_subtrees()});
  }
  FERRY_CHECK(std::ssize(subtrees_), ==, route.num_tokens);
  for (std::size_t way = 0; way < ways.size(); ++way)
    asked_[way].send(ways[way]->sums(), call_.number(), call_.setup.rank);
  exchange.group->progress();
}

Summand SubtreeSums::summand_of(TokenEntry at) const {
  const Route& route = *call_.route;
  const ActiveSet& active = *route.active;
  const std::int64_t entry = call_.entry(at);
  Summand term{.owner = route.refs[entry].member, .weight = call_.weight_of(at)};
  for (int i = 0; i < active.tp_size; ++i) {
    const int tp_rank = active.tp_rank_from_mine(i);
    term.places[i] = {.rank = active.ranks[active.index(term.owner, tp_rank)],
                      .row = static_cast<std::int32_t>(call_.setup.row_at(route, entry, tp_rank))};
  }
  return term;
}

bool SubtreeSums::are_here(std::int64_t token) const noexcept {
  const auto [first, end] = subtrees_[token];
  for (std::size_t subtree = first; subtree < end; ++subtree) {
    if (!of_token(token).has_arrived(subtree)) return false;
  }
  return true;
}

}  // namespace ferry::internal

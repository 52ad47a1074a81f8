#include "exchange/combine/row_weights.h"

#include <cstring>

namespace ferry::internal {

void RowWeights::write(std::span<const std::int32_t> tokens) const {
  for (const std::int32_t token : tokens) write_token(token);
}

// Writes the K weights of a token. With kRankMajor each is a sum over ranks; in expert layouts
// weight k is the scalar of the row of (token, k).
void RowWeights::write_token(std::int64_t token) const {
  const Route& route = *call_.route;
  float* out = call_.args.out_topk_weights + token * route.top_k;
  std::memset(out, 0, route.top_k * sizeof(float));
  Scalars of_entry;
  find_scalars(token, of_entry);
  if (call_.setup.rank_major()) return add_ranks(token, of_entry, out);
  for (int k = 0; k < route.top_k; ++k) {
    if (route.refs[token * route.num_entries + k].sent()) out[k] = of_entry[k][0];
  }
}

// Adds the weights of the ranks in the order of members. If tokens are summed by subtree, the
// weights of each subtree are added up first; the subtrees in this rank's own group of the
// outermost level count as one.
void RowWeights::add_ranks(std::int64_t token, const Scalars& of_entry, float* out) const {
  const Route& route = *call_.route;
  const std::int64_t first = token * route.num_entries;
  const auto add = [&](float* sum, const float* scalars) {
    for (int j = 0; j < route.top_k; ++j) sum[j] += scalars[j];
  };
  if (!call_.exchange.ways.by_subtree()) {
    for (int k = 0; k < route.num_entries; ++k) {
      if (route.refs[first + k].sent()) add(out, of_entry[k].data());
    }
    return;
  }
  const Subtrees subtrees = call_.exchange.subtrees_of(route, first, route.num_entries);
  const int outermost = call_.exchange.ways.table().outermost;
  for (int i = 0; i < subtrees.count();) {
    float sum[kMaxTopK] = {};
    const bool mine = subtrees[i].level > outermost;
    do {
      for (const std::int64_t entry : subtrees[i].items) add(sum, of_entry[entry - first].data());
      ++i;
    } while (mine && i < subtrees.count() && subtrees[i].level > outermost);
    add(out, sum);
  }
}

// Finds the scalars of each row of a token.
void RowWeights::find_scalars(std::int64_t token, Scalars& of_entry) const {
  const Route& route = *call_.route;
  const ActiveSet& active = *route.active;
  const std::int64_t first = token * route.num_entries;
  const ScalarShape shape{static_cast<int>(call_.setup.layout.weights_per_row()), active.tp_size};
  const auto own = [&](std::int64_t entry, int i) {
    const int tp_rank = active.tp_rank_from_mine(i);
    return outputs_.of(route.refs[entry].member, tp_rank).weights +
           call_.setup.row_at(route, entry, tp_rank) * shape.num_scalars;
  };
  const auto to = [&](std::int64_t entry) { return of_entry[entry - first].data(); };
  if (call_.exchange.ways.none()) {
    for (std::int64_t entry = first; entry < first + route.num_entries; ++entry) {
      if (route.refs[entry].sent()) add_scalars(entry, shape, own, to(entry));
    }
    return;
  }
  const Subtrees subtrees = call_.exchange.subtrees_of(route, first, route.num_entries);
  const auto reply = [&](int i) -> const std::byte* {
    const std::byte* theirs = sums_.reply(token, i);
    const auto num_summands = static_cast<int>(subtrees[i].items.size());
    return theirs ? theirs + sums_.layout().scalars_at(num_summands) : nullptr;
  };
  set_scalars(subtrees, shape, own, reply, to);
}

}  // namespace ferry::internal

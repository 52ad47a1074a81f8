// The row weights that return to the source of each token with its result. Part of Combine.
#include <cstring>

#include "exchange/combine/combine.h"

namespace ferry::internal {

// kRankMajor: sums [K] over ranks ascending, of each group of the outermost level first. Expert
// layouts: the scalar of the row of (token, k).
void Combine::return_weights(std::int64_t token) const {
  const Route& route = *route_;
  const std::int64_t first = token * route.num_entries;
  float* out = args_.out_topk_weights + token * route.top_k;
  std::memset(out, 0, route.top_k * sizeof(float));
  RowScalars of_entry;
  find_scalars(token, of_entry);
  if (!setup_.rank_major()) {
    for (int k = 0; k < route.top_k; ++k) {
      if (route.refs[first + k].sent()) out[k] = of_entry[k][0];
    }
    return;
  }
  const auto add = [&](float* sum, const float* scalars) {
    for (int j = 0; j < route.top_k; ++j) sum[j] += scalars[j];
  };
  if (!exchange_.ways.by_subtree()) {
    for (int k = 0; k < route.num_entries; ++k) {
      if (route.refs[first + k].sent()) add(out, of_entry[k].data());
    }
    return;
  }
  const Subtrees subtrees = exchange_.subtrees_of(route, first, route.num_entries);
  const int outermost = exchange_.ways.table().outermost;
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

// What each row of a token brings.
void Combine::find_scalars(std::int64_t token, RowScalars& of_entry) const {
  const Route& route = *route_;
  const ActiveSet& active = *route.active;
  const std::int64_t first = token * route.num_entries;
  const ScalarShape shape{static_cast<int>(setup_.layout.weights_per_row()), active.num_positions};
  const auto own = [&](std::int64_t entry, int i) {
    const int position = active.position_from_mine(i);
    return outputs_[active.index(route.refs[entry].member, position)].weights +
           setup_.row_at(route, entry, position) * shape.num_scalars;
  };
  const auto to = [&](std::int64_t entry) { return of_entry[entry - first].data(); };
  if (exchange_.ways.none()) {
    for (std::int64_t entry = first; entry < first + route.num_entries; ++entry) {
      if (route.refs[entry].sent()) add_scalars(entry, shape, own, to(entry));
    }
    return;
  }
  const Subtrees subtrees = exchange_.subtrees_of(route, first, route.num_entries);
  const auto answer = [&](int i) -> const std::byte* {
    const std::byte* theirs = answer_of(token, i);
    const auto num_terms = static_cast<int>(subtrees[i].items.size());
    return theirs ? theirs + asked_[0].layout().scalars_at(num_terms) : nullptr;
  };
  set_scalars(subtrees, shape, own, answer, to);
}

}  // namespace ferry::internal

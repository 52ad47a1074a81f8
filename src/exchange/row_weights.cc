// The row weights that return to the source of each token with its result. Part of Combine.
#include <cstring>

#include "exchange/combine.h"

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
  if (!exchange_.forwarder || exchange_.forwarder->exact()) {
    for (int k = 0; k < route.num_entries; ++k) {
      if (route.refs[first + k].sent()) add(out, of_entry[k].data());
    }
    return;
  }
  const Subtrees subtrees = exchange_.subtrees_of(route, first, route.num_entries);
  const int outermost = exchange_.forwarder->table().outermost;
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

// What each row of a token brings: over several tensor-parallel positions the sum of theirs, mine
// first.
void Combine::find_scalars(std::int64_t token, RowScalars& of_entry) const {
  const Route& route = *route_;
  const ActiveSet& active = *route.active;
  const std::int64_t first = token * route.num_entries;
  const auto scalars = static_cast<int>(setup_.layout.weights_per_row());
  for (int k = 0; k < route.num_entries; ++k) {
    const RowRef ref = route.refs[first + k];
    if (!ref.sent() || outputs_[active.index(ref.member, active.position)].rows == nullptr)
      continue;
    for (int i = 0; i < active.num_positions; ++i) {
      const int position = active.position_from_mine(i);
      const float* theirs = outputs_[active.index(ref.member, position)].weights +
                            setup_.row_at(route, first + k, position) * scalars;
      for (int j = 0; j < scalars; ++j)
        of_entry[k][j] = i == 0 ? theirs[j] : of_entry[k][j] + theirs[j];
    }
  }
  if (!exchange_.forwarder) return;
  const HomeFormat format = home_format();
  const Subtrees subtrees = exchange_.subtrees_of(route, first, route.num_entries);
  for (int i = 0; i < subtrees.count(); ++i) {
    const std::byte* share = shares_[first_share_[token] + i];
    if (share == nullptr) continue;
    share += exchange_.forwarder->scalars_at(static_cast<int>(subtrees[i].items.size()), format);
    for (const std::int64_t entry : subtrees[i].items) {
      std::memcpy(of_entry[entry - first].data(), share, scalars * sizeof(float));
      share += scalars * sizeof(float);
    }
  }
}

}  // namespace ferry::internal

// The loops of the model, in the order of the description: destinations, rows, sums.
#include "operator_model.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "kernels/kernels.h"
#include "oracle/wire.h"

namespace ferry::test {
namespace {

using internal::from_float;
using internal::to_float;

// The ranks that remain after elastic_info.
struct World {
  std::vector<int> old_rank;  // [members]
  int shared_ranks = 0;
  int moe = 0;

  explicit World(const OperatorCase& c) : shared_ranks(c.shared_ranks), moe(c.moe) {
    const bool down = !c.elastic.empty() && c.elastic[0] == 1;
    for (int i = 0; i < (down ? c.elastic[1] : c.ep); ++i)
      old_rank.push_back(down ? c.elastic[4 + c.ep + i] : i);
    if (down) shared_ranks = c.elastic[2], moe = c.elastic[3];
  }
  int size() const { return static_cast<int>(old_rank.size()); }
  int member_of(int ep_rank) const {
    const auto found = std::find(old_rank.begin(), old_rank.end(), ep_rank);
    return found == old_rank.end() ? -1 : static_cast<int>(found - old_rank.begin());
  }
  int experts_of(int member) const {
    if (member < shared_ranks) return 1;
    const int ranks = size() - shared_ranks;
    return moe / ranks + (member - shared_ranks < moe % ranks ? 1 : 0);
  }
  // Member and local expert of a routed expert.
  std::pair<int, int> place(int expert) const {
    int member = shared_ranks;
    while (expert >= experts_of(member)) expert -= experts_of(member++);
    return {member, expert};
  }
};

struct Entry {
  int k, member, local, factor_row;
};

bool active(const OperatorCase& c, const OperatorInput& in, std::int64_t t, int k) {
  const bool masked = !in.mask.empty() && in.mask[in.mask_columns == 1 ? t : t * c.k + k] == 0;
  return !masked && in.ids[t * c.k + k] >= 0;
}

// The member that token t of member r goes to for shared expert j.
int shared_member(const OperatorCase& c, const World& world, int r, std::int64_t t, int j,
                  std::int64_t bs) {
  const int s = world.shared_ranks;
  if (c.version > 1) return r % (s / c.shared_num) + j * (s / c.shared_num);
  if (r < s) return r;
  std::int64_t end = 0;
  for (int share = 0; share < s; ++share) {
    end += (share + 1 + r) * bs / s - (share + r) * bs / s;
    if (t < end) return share;
  }
  return -1;
}

std::vector<Entry> entries(const OperatorCase& c, const World& world, int member,
                           const OperatorInput& in, std::int64_t t) {
  std::vector<Entry> found;
  const int num_shared = world.shared_ranks > 0 ? c.shared_num : 0;
  const int factor_shared = c.shared_ranks > 0 ? c.shared_num : 0;
  bool takes_part = false;
  for (int k = 0; k < c.k; ++k) {
    if (!active(c, in, t, k)) continue;
    takes_part = true;
    const int id = in.ids[t * c.k + k];
    if (id >= world.moe) continue;
    const auto [owner, local] = world.place(id);
    found.push_back({k, owner, local, factor_shared + id});
  }
  for (int j = 0; j < num_shared && takes_part; ++j)
    found.push_back({c.k + j, shared_member(c, world, member, t, j, in.bs), 0, j});
  return found;
}

float element(const Bytes& bytes, std::int64_t index, DataType type) {
  return to_float(&bytes[index * element_bytes(type)], type);
}

void append(Bytes& to, const Bytes& from) { to.insert(to.end(), from.begin(), from.end()); }

// One row as it arrives.
void append_row(const OperatorCase& c, const OperatorInput& in, std::int64_t t, int factor_row,
                OperatorRows& out) {
  const std::int64_t row_bytes = c.h * static_cast<std::int64_t>(element_bytes(c.type));
  const Bytes row(in.x.begin() + t * row_bytes, in.x.begin() + (t + 1) * row_bytes);
  if (c.quant_mode == 0) {
    append(out.rows, row);
    for (int i = 0; i < c.token_scale_columns; ++i)
      out.scales.push_back(in.token_scales[t * c.token_scale_columns + i]);
    return;
  }
  if (c.quant_mode == 3) {
    const internal::ReferenceEncoded encoded =
        internal::reference_encode(Wire::kFp8, row, c.type, {});
    append(out.rows, encoded.row);
    const auto* scales = reinterpret_cast<const float*>(encoded.scales.data());
    out.scales.insert(out.scales.end(), scales, scales + encoded.scales.size() / 4);
    return;
  }
  std::vector<float> y(c.h);
  float most = 0;
  for (std::int64_t i = 0; i < c.h; ++i) {
    y[i] = element(row, i, c.type);
    if (!c.factors.empty())
      y[i] *= c.factors[(c.factor_rows == 1 ? 0 : factor_row) * c.factor_columns +
                        (c.factor_columns == 1 ? 0 : i)];
    most = std::max(most, std::fabs(y[i]));
  }
  const float scale = c.quant_mode == 1 ? 1.0F : 127.0F / most;
  for (const float value : y) {
    const float q = std::nearbyint(value * scale);
    out.rows.push_back(static_cast<std::byte>(
        static_cast<std::int8_t>(most == 0 ? 0.0F : std::clamp(q, -128.0F, 127.0F))));
  }
  if (c.quant_mode == 2) out.scales.push_back(most == 0 ? 0.0F : 1.0F / scale);
}

// The rows of one local expert of a member from the members' ranks at one tp_rank.
void receive(const OperatorCase& c, const World& world, int member, int local, int tp_rank,
             OperatorRows& out) {
  for (int source = 0; source < world.size(); ++source) {
    const int rank = world.old_rank[source] * c.tp + tp_rank;
    const OperatorInput& in = c.inputs[rank];
    for (std::int64_t t = 0; t < in.bs; ++t) {
      for (const Entry& entry : entries(c, world, source, in, t)) {
        if (entry.member != member || entry.local != local) continue;
        out.sources.push_back({rank, static_cast<int>(t), entry.k});
        const std::int32_t triplet[] = {source, static_cast<std::int32_t>(t), entry.k};
        out.triplets.insert(out.triplets.end(), triplet, triplet + 3);
        out.weights.push_back(entry.k < c.k ? in.expert_scales[t * c.k + entry.k] : 1.0F);
        append_row(c, in, t, entry.factor_row, out);
      }
    }
  }
}

// Rows from each (local expert, source) of one tp_rank.
std::vector<std::int32_t> running_counts(const OperatorCase& c, const World& world, int member,
                                         int tp_rank) {
  std::vector<std::int32_t> sums;
  std::int32_t sum = 0;
  for (int local = 0; local < world.experts_of(member); ++local) {
    for (int source = 0; source < world.size(); ++source) {
      const OperatorInput& in = c.inputs[world.old_rank[source] * c.tp + tp_rank];
      for (std::int64_t t = 0; t < in.bs; ++t) {
        for (const Entry& entry : entries(c, world, source, in, t))
          sum += entry.member == member && entry.local == local ? 1 : 0;
      }
      sums.push_back(sum);
    }
  }
  return sums;
}

std::vector<std::int32_t> expand_idx(const OperatorCase& c, const OperatorInput& in) {
  std::vector<std::int32_t> index(in.ids.size());
  for (std::int64_t i = 0; i < std::ssize(index); ++i) {
    if (!active(c, in, i / c.k, static_cast<int>(i % c.k))) {
      index[i] = -1;
      continue;
    }
    for (std::int64_t earlier = 0; earlier < i; ++earlier)
      index[i] += in.ids[earlier] == in.ids[i] &&
                  active(c, in, earlier / c.k, static_cast<int>(earlier % c.k));
  }
  return index;
}

}  // namespace

std::vector<OperatorRows> model_dispatch(const OperatorCase& c) {
  const World world(c);
  std::vector<OperatorRows> all(c.inputs.size());
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    OperatorRows& mine = all[rank];
    const int member = world.member_of(static_cast<int>(rank) / c.tp);
    mine.expand_idx = expand_idx(c, c.inputs[rank]);
    mine.outside = member < 0;
    mine.tp_counts.resize(c.tp);
    if (mine.outside) continue;
    for (int local = 0; local < world.experts_of(member); ++local) {
      const std::size_t before = mine.sources.size();
      for (int i = 0; i < c.tp; ++i)
        receive(c, world, member, local, static_cast<int>(rank + i) % c.tp, mine);
      const bool add = c.token_nums_type == 0 && local > 0;
      mine.token_nums.push_back(static_cast<std::int64_t>(mine.sources.size() - before) +
                                (add ? mine.token_nums.back() : 0));
    }
    for (int i = 0; i < c.tp; ++i) {
      const int tp_rank = static_cast<int>(rank + i) % c.tp;
      const std::vector<std::int32_t> block = running_counts(c, world, member, tp_rank);
      mine.ep_counts.insert(mine.ep_counts.end(), block.begin(), block.end());
      mine.tp_counts[tp_rank] = block.empty() ? 0 : block.back();
    }
  }
  return all;
}

namespace {

// Section 2.8: blocks of 8, scale stored in the type of x.
void travel_int8(std::vector<float>& row, DataType type) {
  const auto rounded = [type](float value) {
    std::byte stored[4];
    from_float(value, stored, type);
    return to_float(stored, type);
  };
  for (std::size_t begin = 0; begin < row.size(); begin += 8) {
    const std::size_t end = std::min(begin + 8, row.size());
    float most = 0;
    for (std::size_t i = begin; i < end; ++i) most = std::max(most, std::fabs(row[i]));
    const float scale = most * (1.0F / 127.0F);
    for (std::size_t i = begin; i < end; ++i) {
      const float q =
          scale == 0 ? 0.0F : std::clamp(std::nearbyint(row[i] / scale), -127.0F, 127.0F);
      row[i] = rounded(q * rounded(scale));
    }
  }
}

class Combiner {
 public:
  Combiner(const OperatorCase& c, const std::vector<OperatorRows>& dispatched,
           const std::vector<Bytes>& expert_rows)
      : case_(c), world_(c), expert_rows_(expert_rows), rows_(dispatched.size()) {
    for (std::size_t rank = 0; rank < dispatched.size(); ++rank) {
      const auto& sources = dispatched[rank].sources;
      for (std::size_t row = 0; row < sources.size(); ++row)
        rows_[rank][sources[row]] = static_cast<std::int64_t>(row);
    }
  }

  OperatorResult result(int rank) {
    OperatorResult all;
    const OperatorInput& in = case_.inputs[rank];
    for (std::int64_t t = 0; t < in.bs; ++t) {
      std::vector<float> sum = token_sum(rank, t);
      add(sum, in.shared_x, t);
      add(sum, in.residual, t);
      if (case_.norm()) {
        const internal::ReferenceNorm norm =
            internal::reference_norm(sum, case_.gamma, case_.eps, case_.type);
        append(all.x_out, norm.out);
        append(all.y_out, norm.y);
        all.rstd.push_back(norm.rstd);
        continue;
      }
      for (const float value : sum) {
        std::byte stored[4];
        from_float(value, stored, case_.type);
        all.x_out.insert(all.x_out.end(), stored, stored + element_bytes(case_.type));
      }
    }
    return all;
  }

 private:
  Bytes row_of(const Bytes& matrix, std::int64_t row) const {
    const auto bytes = case_.h * static_cast<std::int64_t>(element_bytes(case_.type));
    return {matrix.begin() + row * bytes, matrix.begin() + (row + 1) * bytes};
  }

  void add(std::vector<float>& sum, const Bytes& matrix, std::int64_t t) const {
    for (std::int64_t i = 0; i < case_.h && !matrix.empty(); ++i)
      sum[i] += element(matrix, t * case_.h + i, case_.type);
  }

  std::vector<float> token_sum(int rank, std::int64_t t) {
    const OperatorInput& in = case_.inputs[rank];
    const int member = world_.member_of(rank / case_.tp);
    std::vector<float> sum(case_.h, 0.0F);
    const std::vector<Entry> sent = entries(case_, world_, member, in, t);
    for (int k = 0; k < case_.k + 4; ++k) {
      const float weight =
          k >= case_.k || case_.plain_sum ? 1.0F : in.expert_scales[t * case_.k + k];
      const auto entry =
          std::find_if(sent.begin(), sent.end(), [k](const Entry& e) { return e.k == k; });
      std::vector<float> summand;
      if (entry != sent.end()) {
        summand = expert_row(rank, t, *entry);
      } else if (k < case_.k && active(case_, in, t, k)) {
        summand = special_summand(in, t, in.ids[t * case_.k + k] - world_.moe);
      }
      for (std::size_t i = 0; i < summand.size(); ++i) {
        const float product = weight * summand[i];
        sum[i] = sum[i] + product;
      }
    }
    return sum;
  }

  std::vector<float> expert_row(int rank, std::int64_t t, const Entry& entry) {
    std::vector<float> sum(case_.h, 0.0F);
    for (int i = 0; i < case_.tp; ++i) {
      const int owner = world_.old_rank[entry.member] * case_.tp + (rank + i) % case_.tp;
      const std::int64_t row = rows_[owner].at({rank, static_cast<int>(t), entry.k});
      for (std::int64_t h = 0; h < case_.h; ++h) {
        const float value = element(expert_rows_[owner], row * case_.h + h, case_.type);
        sum[h] = i == 0 ? value : sum[h] + value;
      }
    }
    for (float& value : sum) {
      std::byte stored[4];
      from_float(value, stored, case_.type);
      value = to_float(stored, case_.type);
    }
    if (case_.comm_quant_mode == 2) travel_int8(sum, case_.type);
    return sum;
  }

  std::vector<float> special_summand(const OperatorInput& in, std::int64_t t, int special) const {
    if (special < case_.zero) return {};
    const Bytes x = row_of(in.x, t);
    std::vector<float> copy(case_.h);
    for (std::int64_t i = 0; i < case_.h; ++i) copy[i] = element(x, i, case_.type);
    const int constant = special - case_.zero - case_.copy;
    if (constant < 0) return copy;
    return internal::reference_constant_term(x, row_of(case_.alpha1, constant),
                                             row_of(case_.alpha2, constant),
                                             row_of(case_.v, constant), case_.type);
  }

  const OperatorCase& case_;
  World world_;
  const std::vector<Bytes>& expert_rows_;
  std::vector<std::map<OperatorRows::Source, std::int64_t>> rows_;
};

}  // namespace

std::vector<OperatorResult> model_combine(const OperatorCase& c,
                                          const std::vector<OperatorRows>& dispatched,
                                          const std::vector<Bytes>& expert_rows) {
  Combiner combiner(c, dispatched, expert_rows);
  std::vector<OperatorResult> all(c.inputs.size());
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (!dispatched[rank].outside) all[rank] = combiner.result(static_cast<int>(rank));
  }
  return all;
}

}  // namespace ferry::test

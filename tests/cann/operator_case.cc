// Inputs from seeds, and the choices of a random case.
#include "operator_case.h"

#include <algorithm>
#include <numeric>

#include "exchange/random.h"
#include "kernels/kernels.h"

namespace ferry::test {
namespace {

Bytes random_rows(std::int64_t elements, DataType type, Random& random) {
  const std::size_t bytes = element_bytes(type);
  Bytes rows(elements * bytes);
  for (std::int64_t i = 0; i < elements; ++i) {
    if (bytes == 1) {
      rows[i] = static_cast<std::byte>(random.next());
    } else {
      internal::from_float(random.value(), &rows[i * bytes], type);
    }
  }
  return rows;
}

int num_ids(const OperatorCase& c) {
  const bool down = !c.elastic.empty() && c.elastic[0] == 1;
  return (down ? c.elastic[3] : c.moe) + c.zero + c.copy + c.constant;
}

void fill_ids(const OperatorCase& c, const InputOptions& options, Random& random,
              OperatorInput& in) {
  std::vector<std::int32_t> all(num_ids(c));
  std::iota(all.begin(), all.end(), 0);
  for (std::int64_t t = 0; t < in.bs; ++t) {
    for (int k = 0; k < c.k; ++k) {
      const bool repeat = options.duplicates || c.k > std::ssize(all);
      if (!repeat) std::swap(all[k], all[random.between(k, std::ssize(all) - 1)]);
      const bool skip = options.minus_one && random.one_in(4);
      in.ids.push_back(skip ? -1 : repeat ? random.pick(all) : all[k]);
      in.expert_scales.push_back(random.value());
    }
  }
}

void fill_mask(const OperatorCase& c, Masks masks, Random& random, OperatorInput& in) {
  if (masks == Masks::kNone) return;
  in.mask_columns = masks == Masks::kEntries ? c.k : 1;
  const std::int64_t prefix = in.bs == 0 ? 0 : random.between(0, in.bs);
  for (std::int64_t i = 0; i < in.bs * in.mask_columns; ++i)
    in.mask.push_back(masks == Masks::kPrefix ? i < prefix : !random.one_in(3));
}

}  // namespace

void fill_inputs(OperatorCase& c, const std::vector<std::int64_t>& batches,
                 const InputOptions& options) {
  Random common(c.seed, 1);
  c.alpha1 = random_rows(c.constant * c.h, c.type, common);
  c.alpha2 = random_rows(c.constant * c.h, c.type, common);
  c.v = random_rows(c.constant * c.h, c.type, common);
  if (options.norm) c.gamma = random_rows(c.h, c.type, common);
  for (std::size_t rank = 0; rank < batches.size(); ++rank) {
    Random random(c.seed, 100 + rank);
    OperatorInput in{.bs = batches[rank]};
    in.x = random_rows(in.bs * c.h, c.type, random);
    fill_ids(c, options, random, in);
    fill_mask(c, options.masks, random, in);
    for (std::int64_t i = 0; i < in.bs * c.token_scale_columns; ++i)
      in.token_scales.push_back(random.value());
    if (options.shared_x) in.shared_x = random_rows(in.bs * c.h, c.type, random);
    if (options.norm) in.residual = random_rows(in.bs * c.h, c.type, random);
    c.inputs.push_back(std::move(in));
  }
}

void fill_factors(OperatorCase& c, bool per_expert, bool per_channel) {
  Random random(c.seed, 2);
  c.factor_rows = per_expert ? c.moe + (c.shared_ranks > 0 ? c.shared_num : 0) : 1;
  c.factor_columns = per_channel ? c.h : 1;
  for (std::int64_t i = 0; i < c.factor_rows * c.factor_columns; ++i)
    c.factors.push_back(random.value() * (c.quant_mode == 1 ? 60.0F : 1.0F));
}

void scale_down(OperatorCase& c, const std::vector<int>& kept) {
  const auto remaining = static_cast<int>(kept.size());
  const auto shared = static_cast<int>(
      std::count_if(kept.begin(), kept.end(), [&](int rank) { return rank < c.shared_ranks; }));
  const int local = c.moe / (c.ep - c.shared_ranks);
  c.elastic = {1, remaining, shared, (remaining - shared) * local};
  c.elastic.resize(4 + 2 * c.ep, -1);
  for (int i = 0; i < remaining; ++i) {
    c.elastic[4 + kept[i]] = i;
    c.elastic[4 + c.ep + i] = kept[i];
  }
}

namespace {

void choose_ranks(OperatorCase& c, Random& random) {
  c.tp = random.one_in(5) ? static_cast<int>(random.between(2, 3)) : 1;
  c.ep = static_cast<int>(random.between(1, c.tp > 1 ? 3 : 6));
  if (c.ep > 1 && random.one_in(2)) {
    c.version = static_cast<int>(random.between(1, 4));
    c.shared_num = c.version == 1 ? 1 : static_cast<int>(random.between(1, 2));
    c.shared_ranks = c.shared_num * static_cast<int>(random.between(1, 2));
    if (c.shared_ranks >= c.ep) c.shared_num = c.shared_ranks = 1;
  }
  c.moe = static_cast<int>(random.between(1, 4 * (c.ep - c.shared_ranks)));
  if (random.one_in(3)) {
    c.zero = static_cast<int>(random.below(3));
    c.copy = static_cast<int>(random.below(3));
    c.constant = static_cast<int>(random.below(3));
  }
}

void choose_elastic(OperatorCase& c, Random& random) {
  if (c.tp > 1 || c.ep - c.shared_ranks < 2 || !random.one_in(3)) return;
  c.moe = (c.ep - c.shared_ranks) * static_cast<int>(random.between(1, 3));
  const int gone = static_cast<int>(random.between(c.shared_ranks, c.ep - 1));
  std::vector<int> kept;
  for (int rank = 0; rank < c.ep; ++rank) {
    if (rank != gone) kept.push_back(rank);
  }
  scale_down(c, kept);
}

void choose_formats(OperatorCase& c, Random& random) {
  c.h = random.between(1, random.one_in(4) ? 700 : 70);
  c.k = static_cast<int>(random.between(1, random.one_in(8) ? 32 : 8));
  c.type =
      random.pick(std::vector{DataType::kBf16, DataType::kBf16, DataType::kFp16, DataType::kFp32});
  c.quant_mode = static_cast<int>(random.below(4));
  c.comm_quant_mode = random.one_in(3) ? 2 : 0;
  c.token_nums_type = static_cast<int>(random.below(2));
  c.weights_travel = random.one_in(2);
  c.plain_sum = random.one_in(6);
  if (c.plain_sum) c.version = 4;  // the others have none
  c.views = random.one_in(3);
  if (c.quant_mode == 0 && random.one_in(3))
    c.token_scale_columns = static_cast<int>(random.between(1, 5));
  if (c.quant_mode == 1 || (c.quant_mode == 2 && random.one_in(2)))
    fill_factors(c, random.one_in(2), random.one_in(2));
}

}  // namespace

OperatorCase random_case(std::uint64_t seed) {
  Random random(seed);
  OperatorCase c;
  c.seed = seed;
  choose_ranks(c, random);
  choose_elastic(c, random);
  choose_formats(c, random);
  c.views = c.views || c.k > num_ids(c);  // then tokens repeat ids, which A does not count
  const bool equal = random.one_in(3);
  const std::int64_t most = random.between(0, 20);
  std::vector<std::int64_t> batches(c.ep * c.tp, most);
  for (std::int64_t& bs : batches) bs = equal ? most : random.between(0, most);
  if (!equal || random.one_in(2)) c.global_bs = c.ep * std::max<std::int64_t>(most, 1);
  fill_inputs(c, batches,
              {.masks = random.pick(
                   std::vector{Masks::kNone, Masks::kPrefix, Masks::kTokens, Masks::kEntries}),
               .minus_one = random.one_in(3),
               .duplicates = c.views && random.one_in(2),
               .shared_x = random.one_in(3),
               .norm = random.one_in(4)});
  return c;
}

std::string describe(const OperatorCase& c) {
  const OperatorInput& in = c.inputs[0];
  std::string text = "seed " + std::to_string(c.seed) + ": version " + std::to_string(c.version) +
                     ", ep " + std::to_string(c.ep) + ", tp " + std::to_string(c.tp) + ", moe " +
                     std::to_string(c.moe) + ", shared " + std::to_string(c.shared_num) + " on " +
                     std::to_string(c.shared_ranks) + ", special " + std::to_string(c.zero) + "+" +
                     std::to_string(c.copy) + "+" + std::to_string(c.constant) + ", h " +
                     std::to_string(c.h) + ", k " + std::to_string(c.k) + ", global_bs " +
                     std::to_string(c.global_bs) + ", type " + data_type_name(c.type) +
                     ", quant_mode " + std::to_string(c.quant_mode) + ", comm_quant_mode " +
                     std::to_string(c.comm_quant_mode) + (c.factors.empty() ? "" : ", factors") +
                     (c.views ? ", views" : "") + (c.norm() ? ", norm" : "") +
                     (in.mask.empty() ? "" : ", mask") + (c.elastic.empty() ? "" : ", elastic");
  return text;
}

cann::Attributes attributes_of(const OperatorCase& c, int rank) {
  return {.version = c.version,
          .group_ep = "ep",
          .ep_world_size = c.ep,
          .ep_rank_id = rank / c.tp,
          .moe_expert_num = c.moe,
          .group_tp = "tp",
          .tp_world_size = c.tp,
          .tp_rank_id = rank % c.tp,
          .shared_expert_num = c.shared_num,
          .shared_expert_rank_num = c.shared_ranks,
          .global_bs = c.global_bs,
          .zero_expert_num = c.zero,
          .copy_expert_num = c.copy,
          .const_expert_num = c.constant};
}

PreparedCase prepare(OperatorCase c) {
  PreparedCase prepared;
  prepared.c = std::move(c);
  const OperatorCase& made = prepared.c;
  prepared.dispatched = model_dispatch(made);
  for (std::size_t rank = 0; rank < made.inputs.size(); ++rank) {
    Random random(made.seed, 1000 + rank);
    prepared.expert_rows.push_back(
        random_rows(std::ssize(prepared.dispatched[rank].sources) * made.h, made.type, random));
  }
  if (element_bytes(made.type) > 1)
    prepared.combined = model_combine(made, prepared.dispatched, prepared.expert_rows);
  return prepared;
}

}  // namespace ferry::test

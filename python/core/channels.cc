// What DeepEP's normal calls tell of a routing: the ranks that each token goes to, and the channel
// matrices of a handle (ferry/deep_ep/channels.py says what they are). In C++ since a dispatch of a
// few tokens waits for it. Called by ferry/deep_ep/layout.py and channels.py.
#include "core/channels.h"

#include <nanobind/stl/vector.h>

#include <algorithm>
#include <vector>

#include "core/tensor.h"

namespace ferry::python {

namespace {

// Experts lie in blocks, the first E % R ranks have one more.
class Owners {
 public:
  Owners(std::int64_t num_experts, std::int64_t num_ranks)
      : even_(num_experts / num_ranks), larger_(num_experts % num_ranks) {}

  std::int64_t operator()(std::int64_t expert) const noexcept {
    const std::int64_t in_larger = larger_ * (even_ + 1);
    return expert < in_larger ? expert / (even_ + 1) : larger_ + (expert - in_larger) / even_;
  }

 private:
  std::int64_t even_, larger_;
};

// Where the entries of top-k go; each is written.
struct TokenRanks {
  Tensor in_rank, per_rank, per_expert;  // bool [T, R], int32 [R], int32 [E]
};

template <typename Id>
bool fill_token_ranks(const Tensor& topk_idx, const TokenRanks& to) {
  const std::int64_t num_ranks = to.per_rank.dim(0), num_experts = to.per_expert.dim(0);
  const std::int64_t top_k = topk_idx.dim(1);
  auto* in_rank = static_cast<bool*>(to.in_rank.data);
  auto* per_rank = static_cast<std::int32_t*>(to.per_rank.data);
  auto* per_expert = static_cast<std::int32_t*>(to.per_expert.data);
  std::fill_n(in_rank, to.in_rank.size(), false);
  std::fill_n(per_rank, num_ranks, 0);
  std::fill_n(per_expert, num_experts, 0);
  const Owners owner(num_experts, num_ranks);
  bool known = true;
  const Id* ids = static_cast<const Id*>(topk_idx.data);
  for (std::int64_t i = 0; i < topk_idx.size(); ++i) {
    if (ids[i] == -1) continue;
    if (ids[i] < -1 || ids[i] >= num_experts) {
      known = false;
      continue;
    }
    ++per_expert[ids[i]];
    const std::int64_t rank = owner(ids[i]);
    bool& goes = in_rank[i / top_k * num_ranks + rank];
    per_rank[rank] += goes ? 0 : 1;
    goes = true;
  }
  return known;
}

bool token_ranks(nb::handle topk_idx, nb::handle in_rank, nb::handle per_rank,
                 nb::handle per_expert) {
  constexpr Elements kInt{Element::kInt32};
  const Tensor ids =
      read_dense(topk_idx, {"topk_idx", {Element::kInt64, Element::kInt32}, {-1, -1}});
  TokenRanks to;
  to.per_rank = read_dense(per_rank, {"per_rank", kInt, {-1}, true});
  to.per_expert = read_dense(per_expert, {"per_expert", kInt, {-1}, true});
  to.in_rank =
      read_dense(in_rank, {"in_rank", {Element::kBool}, {ids.dim(0), to.per_rank.dim(0)}, true});
  return ids.element == Element::kInt64 ? fill_token_ranks<std::int64_t>(ids, to)
                                        : fill_token_ranks<std::int32_t>(ids, to);
}

std::int64_t tokens_per_channel(std::int64_t num_tokens, std::int64_t num_channels) {
  return std::max<std::int64_t>((num_tokens + num_channels - 1) / num_channels, 1);
}

void fill_sent(nb::handle goes, nb::handle prefix, nb::handle head) {
  const Tensor from = read_dense(goes, {"goes", {Element::kBool}, {-1, -1}});
  const std::int64_t num_tokens = from.dim(0), columns = from.dim(1);
  const Tensor to = read_dense(prefix, {"prefix", {Element::kInt32}, {columns, -1}, true});
  const Tensor before = read_dense(head, {"head", {Element::kInt32}, {num_tokens, columns}, true});
  const std::int64_t num_channels = to.dim(1);
  const std::int64_t each = tokens_per_channel(num_tokens, num_channels);
  for (std::int64_t column = 0; column < columns; ++column) {
    const bool* mask = static_cast<const bool*>(from.data) + column;
    auto* of_token = before.given() ? static_cast<std::int32_t*>(before.data) + column : nullptr;
    auto* sums = static_cast<std::int32_t*>(to.data) + column * num_channels;
    std::int32_t sent = 0;
    for (std::int64_t channel = 0; channel < num_channels; ++channel) {
      const std::int64_t begin = std::min(channel * each, num_tokens);
      const std::int64_t end = std::min(begin + each, num_tokens);
      const std::int32_t first = sent;
      for (std::int64_t token = begin; token < end; ++token) {
        const bool is_sent = mask[token * columns];
        if (of_token) of_token[token * columns] = is_sent ? sent - first : -1;
        sent += is_sent ? 1 : 0;
      }
      sums[channel] = sent;
    }
  }
}

void fill_received(nb::handle sources, const std::vector<std::int64_t>& num_tokens,
                   const std::vector<std::int64_t>& num_rows, nb::handle prefix) {
  const Tensor rows = read_dense(sources, {"sources", {Element::kInt32}, {-1, 3}});
  const auto ranks = static_cast<std::int64_t>(num_tokens.size());
  const Tensor to = read_dense(prefix, {"prefix", {Element::kInt32}, {ranks, -1}, true});
  const std::int64_t num_channels = to.dim(1);
  const auto* source = static_cast<const std::int32_t*>(rows.data);
  auto* place = static_cast<std::int32_t*>(to.data);
  std::int64_t row = 0, end = 0;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const std::int64_t first = row, each = tokens_per_channel(num_tokens[rank], num_channels);
    end = std::min(end + num_rows[rank], rows.dim(0));
    for (std::int64_t channel = 0; channel < num_channels; ++channel) {
      *place++ = static_cast<std::int32_t>(row - first);
      while (row < end && source[row * 3 + 1] < (channel + 1) * each) ++row;
    }
  }
}

}  // namespace

void bind_channels(nb::module_& module) {
  using nb::arg;
  module.def(
      "token_ranks", &token_ranks, arg("topk_idx"), arg("in_rank"), arg("per_rank"),
      arg("per_expert"),
      "Fills in_rank bool [T, R], whether a token goes to a rank, per_rank int32 [R], tokens "
      "that do, and per_expert int32 [E], entries of topk_idx. False: an id is of no expert.");
  module.def("fill_sent", &fill_sent, arg("goes"), arg("prefix"), arg("head").none() = nb::none(),
             "Of goes, bool [T, columns]: fills prefix int32 [columns, C], the running sum over "
             "channels of the tokens that go to a column, and head int32 [T, columns], how many of "
             "its channel do so before a token that does, else -1.");
  module.def("fill_received", &fill_received, arg("sources"), arg("num_tokens"), arg("num_rows"),
             arg("prefix"),
             "Fills prefix int32 [R, C]: how many rows of a source came from the channels before "
             "each. sources int32 [N, 3], num_tokens and num_rows [R]: of each source.");
}

}  // namespace ferry::python

// The routing as DeepEP's normal calls return it: the ranks to which each token goes, and the
// channel matrices of a handle, which ferry/deep_ep/channels.py defines. In C++ because a dispatch
// of few tokens waits for them.
#include "core/bindings.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "base/check.h"
#include "core/errors.h"
#include "core/results.h"
#include "core/tensor.h"

namespace ferry::python {

namespace {

// The owner of an expert. Ranks own contiguous blocks; the first E % R ranks own one expert more.
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

constexpr Elements kInt{Element::kInt32};
constexpr Elements kBool{Element::kBool};

template <typename T>
std::span<T> elements(const Tensor& tensor) {
  return {static_cast<T*>(tensor.data), static_cast<std::size_t>(tensor.size())};
}

// The outputs that count the entries of top-k; all elements are written.
struct TokenRanks {
  std::span<bool> in_rank;  // [T, R]
  std::span<std::int32_t> per_rank, per_expert;
};

template <typename Id>
bool fill_token_ranks(const Tensor& topk_idx, const TokenRanks& to) {
  const auto num_ranks = static_cast<std::int64_t>(to.per_rank.size());
  const auto num_experts = static_cast<std::int64_t>(to.per_expert.size());
  const std::int64_t top_k = topk_idx.dim(1);
  std::ranges::fill(to.in_rank, false);
  std::ranges::fill(to.per_rank, 0);
  std::ranges::fill(to.per_expert, 0);
  const Owners owner(num_experts, num_ranks);
  bool known = true;
  const std::span<const Id> ids = elements<const Id>(topk_idx);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] == -1) continue;
    if (ids[i] < -1 || ids[i] >= num_experts) {
      known = false;
      continue;
    }
    ++to.per_expert[ids[i]];
    const std::int64_t rank = owner(ids[i]);
    bool& goes = to.in_rank[i / top_k * num_ranks + rank];
    to.per_rank[rank] += goes ? 0 : 1;
    goes = true;
  }
  return known;
}

Tensor read_needed(nb::handle object, const Expected& expected) {
  Tensor tensor = read_dense(object, expected);
  if (tensor.given()) return tensor;
  refuse("{} is None, need a tensor", expected.name);
}

Tensor read_ids(nb::handle topk_idx) {
  return read_needed(topk_idx, {"topk_idx", {Element::kInt64, Element::kInt32}, {-1, -1}});
}

bool fill(const Tensor& ids, const TokenRanks& to) {
  return ids.element == Element::kInt64 ? fill_token_ranks<std::int64_t>(ids, to)
                                        : fill_token_ranks<std::int32_t>(ids, to);
}

bool token_ranks(nb::handle topk_idx, nb::handle in_rank, nb::handle per_rank,
                 nb::handle per_expert) {
  const Tensor ids = read_ids(topk_idx);
  const Tensor ranks = read_needed(per_rank, {"per_rank", kInt, {-1}, true});
  const Tensor experts = read_needed(per_expert, {"per_expert", kInt, {-1}, true});
  const Tensor mask = read_needed(in_rank, {"in_rank", kBool, {ids.dim(0), ranks.dim(0)}, true});
  return fill(
      ids, {elements<bool>(mask), elements<std::int32_t>(ranks), elements<std::int32_t>(experts)});
}

// The caller finds the reason where this returns false.
bool is_layout(nb::handle topk_idx, nb::handle in_rank, nb::handle per_rank, nb::handle per_expert,
               std::int64_t num_tokens, std::int64_t num_ranks) try {
  const Tensor ids = read_ids(topk_idx);
  const Tensor ranks = read_needed(per_rank, {"per_rank", kInt, {num_ranks}});
  const Tensor experts = read_needed(per_expert, {"per_expert", kInt, {-1}});
  const Tensor mask = read_needed(in_rank, {"in_rank", kBool, {num_tokens, num_ranks}});
  if (ids.dim(0) != num_tokens) return false;
  const auto wanted = std::make_unique<bool[]>(mask.size());
  std::vector<std::int32_t> counts(num_ranks), of_experts(experts.size());
  const TokenRanks to{{wanted.get(), static_cast<std::size_t>(mask.size())}, counts, of_experts};
  return fill(ids, to) && std::ranges::equal(to.in_rank, elements<const bool>(mask)) &&
         std::ranges::equal(counts, elements<const std::int32_t>(ranks));
} catch (const Error&) {
  return false;
}

std::int64_t tokens_per_channel(std::int64_t num_tokens, std::int64_t num_channels) {
  return std::max<std::int64_t>((num_tokens + num_channels - 1) / num_channels, 1);
}

void fill_sent(nb::handle goes, nb::handle prefix, nb::handle head) {
  const Tensor from = read_needed(goes, {"goes", kBool, {-1, -1}});
  const std::int64_t num_tokens = from.dim(0), columns = from.dim(1);
  const Tensor to = read_needed(prefix, {"prefix", kInt, {columns, -1}, true});
  const Tensor before = read_dense(head, {"head", kInt, {num_tokens, columns}, true});
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

// The place of each rank among the ranks of a dispatch; -1: it took no part.
std::vector<int> places_in(const Handle& handle, std::int64_t num_ranks) {
  const std::span<const int> active = handle.active_ranks();
  std::vector<int> places(num_ranks, -1);
  const auto count = active.empty() ? static_cast<int>(num_ranks) : static_cast<int>(active.size());
  for (int place = 0; place < count; ++place)
    places[active.empty() ? place : active[place]] = place;
  return places;
}

// Writes for each source and channel the rows of the source that came from earlier channels.
void fill_channels(const Received& received, const std::vector<int>& places, const Tensor& to) {
  const std::span<const std::int64_t> tokens = received.handle.tokens_per_rank();
  const std::span<const std::int64_t> ends = received.handle.running_rows_per_rank();
  FERRY_CHECK(tokens.size(), ==, ends.size());
  if (!ends.empty()) FERRY_CHECK(ends.back(), ==, received.num_rows);
  const std::int64_t num_channels = to.dim(1);
  auto* place = static_cast<std::int32_t*>(to.data);
  std::int64_t row = 0;
  for (const int source : places) {
    const std::int64_t first = row, end = source < 0 ? row : ends[source];
    const std::int64_t each = tokens_per_channel(source < 0 ? 0 : tokens[source], num_channels);
    for (std::int64_t channel = 0; channel < num_channels; ++channel) {
      *place++ = static_cast<std::int32_t>(row - first);
      while (row < end && received.sources[row * 3 + 1] < (channel + 1) * each) ++row;
    }
  }
}

// Writes for each source the rows that each rank gets from it and from the sources before it.
void fill_rank_prefix(const Handle& handle, const std::vector<int>& places, const Tensor& to) {
  const std::span<const std::int64_t> sent = handle.rows_sent();
  const std::size_t ranks = places.size();
  const std::size_t took_part = handle.tokens_per_rank().size();
  FERRY_CHECK(sent.size(), ==, took_part * took_part);
  auto* sum = static_cast<std::int32_t*>(to.data);
  for (std::size_t source = 0; source < ranks; ++source) {
    for (std::size_t rank = 0; rank < ranks; ++rank, ++sum) {
      const bool sends = places[source] >= 0 && places[rank] >= 0;
      *sum = source > 0 ? sum[-static_cast<std::ptrdiff_t>(ranks)] : 0;
      if (sends) *sum += static_cast<std::int32_t>(sent[places[source] * took_part + places[rank]]);
    }
  }
}

void fill_received(const PyReceived& dispatched, nb::handle prefix, nb::handle rank_prefix,
                   nb::handle tokens) {
  const Received& received = **dispatched.kept;
  const std::int64_t ranks = dispatched.num_ranks;
  FERRY_CHECK(std::ssize(received.sources), ==, 3 * received.num_rows);
  const std::vector<int> places = places_in(received.handle, ranks);
  fill_channels(received, places, read_needed(prefix, {"prefix", kInt, {ranks, -1}, true}));
  const Tensor sums = read_dense(rank_prefix, {"rank_prefix", kInt, {ranks, ranks}, true});
  if (sums.given()) fill_rank_prefix(received.handle, places, sums);
  const Tensor of_row = read_dense(tokens, {"tokens", kInt, {-1}, true});
  if (!of_row.given()) return;
  auto* token = static_cast<std::int32_t*>(of_row.data);
  for (std::int64_t row = 0; row < received.num_rows; ++row)
    token[row] = received.sources[row * 3 + 1];
  std::fill(token + received.num_rows, token + of_row.dim(0), -1);
}

}  // namespace

void bind_channels(nb::module_& module) {
  using nb::arg;
  module.def("with_memory", &with_memory, arg("tensor").none(), arg("name"),
             "The tensor; the result of a functional collective of torch is waited for. "
             "InvalidArgument for a tensor of torch that has a shape but no memory.");
  module.def(
      "token_ranks", &token_ranks, arg("topk_idx"), arg("in_rank"), arg("per_rank"),
      arg("per_expert"),
      "Fills in_rank bool [T, R], whether a token goes to a rank, per_rank int32 [R], the tokens "
      "that go to a rank, and per_expert int32 [E], the entries of topk_idx. False: an id is out "
      "of "
      "range.");
  module.def("is_layout", &is_layout, arg("topk_idx").none(), arg("in_rank").none(),
             arg("per_rank").none(), arg("per_expert").none(), arg("num_tokens"), arg("num_ranks"),
             "Whether in_rank and per_rank equal the outputs of token_ranks for topk_idx, all ids "
             "are in range, and all four tensors have the types and shapes of token_ranks.");
  module.def("fill_sent", &fill_sent, arg("goes"), arg("prefix"), arg("head").none() = nb::none(),
             "From goes, bool [T, columns]: fills prefix int32 [columns, C], the running sum over "
             "channels of the tokens that go to a column. Fills head int32 [T, columns]: for a "
             "token that goes to a column, the number of earlier tokens of its channel that go "
             "there; else -1.");
  module.def("fill_received", &fill_received, arg("received"), arg("prefix"),
             arg("rank_prefix").none() = nb::none(), arg("tokens").none() = nb::none(),
             "From the rows of a rank_major dispatch: fills prefix int32 [R, C], the rows of a "
             "source from the channels before each, and rank_prefix int32 [R, R], the running sum "
             "over sources of the rows that each rank gets. Fills tokens int32 [N or more], the "
             "token of each row, and -1 after the last row.");
}

}  // namespace ferry::python

// The rows of a dispatch on their way: encoded once, written to their final slots, their scales,
// source triplets and weights beside them. Called by dispatch.cc when every slot is known.
#include <algorithm>
#include <cstring>

#include "exchange/state.h"

namespace ferry::internal {

namespace {

// Rows that one token can have: entries at every tensor-parallel position.
constexpr int kMaxDestinations = kMaxEntries * kMaxPositions;

}  // namespace

Status ExchangeState::send_rows(const InFlight& operation, const DispatchArgs& args) {
  const Route& route = *operation.route;
  const ActiveSet& active = *operation.active;
  const SendJob job{args, route, stores_for(route.total_rows * layout_.row_bytes())};
  posted_.clear();
  for (const int peer : active.ranks) {
    const int buffer = record(peer, operation.number).posted.buffer;
    posted_.push_back(here(peer) ? view_.window(peer) + layout_.buffer(buffer) : nullptr);
  }
  scale_strides_.clear();
  for (std::size_t i = 0; layout_.scale_bytes() > 0 && i < route.section_rows.size(); ++i)
    scale_strides_.push_back(layout_.scale_strides(route.section_rows[i]));
  if (forwarder_) {
    if (Status status = cross_rows(operation, job); !status.ok()) return status;
  }
  workers_.run(route.num_tokens, [&](std::int64_t begin, std::int64_t end) {
    const auto scratch = std::make_unique_for_overwrite<std::byte[]>(scratch_bytes());
    for (std::int64_t token = begin; token < end; ++token) send_token(job, token, scratch.get());
    if (job.stores == Stores::kStreaming) stores_fence();
  });
  send_all_metadata(job);
  clear_gaps(operation);
  const std::size_t rows_sent = route.order.size() * active.num_positions;
  stats_.rows_sent += rows_sent;
  stats_.bytes_sent += rows_sent * layout_.row_bytes();
  ++stats_.dispatches;
  return {};
}

// With factors by expert a token is another row for each of its experts, else it is one row for
// all.
void ExchangeState::send_token(const SendJob& job, std::int64_t token, std::byte* scratch) {
  const int entries = job.route.num_entries;
  const std::int64_t first = token * entries;
  if (job.args.scales.num_rows <= 1) return send_entries(job, first, entries, scratch);
  for (int k = 0; k < entries; ++k) send_entries(job, first + k, 1, scratch);
}

// `count` entries of one token that send the same row.
void ExchangeState::send_entries(const SendJob& job, std::int64_t first, int count,
                                 std::byte* scratch) {
  const Route& route = job.route;
  const ActiveSet& active = *route.active;
  Destination to[kMaxDestinations];
  void* rows[kMaxDestinations];
  int num_rows = 0;
  for (std::int64_t entry = first; entry < first + count; ++entry) {
    const RowRef ref = route.refs[entry];
    for (int position = 0; ref.sent() && position < active.num_positions; ++position) {
      if (posted_[active.index(ref.member, position)] == nullptr) continue;  // cross_rows.cc
      to[num_rows] = {active.index(ref.member, position), row_at(route, entry, position)};
      rows[num_rows] =
          posted_[to[num_rows].index] + layout_.rows() + to[num_rows].row * layout_.row_bytes();
      ++num_rows;
    }
  }
  if (num_rows == 0) return;
  copy_encoded(job, first, {rows, static_cast<std::size_t>(num_rows)}, scratch);
  if (layout_.scale_bytes() == 0) return;
  const std::byte* scales = scales_of_row(job, first, scratch);
  for (int i = 0; i < num_rows; ++i)
    layout_.put_scales(posted_[to[i].index], scale_strides_[to[i].index % active.num_members],
                       to[i].row, scales);
}

// After copy_encoded().
const std::byte* ExchangeState::scales_of_row(const SendJob& job, std::int64_t entry,
                                              const std::byte* scratch) const noexcept {
  if (wire_.encode) return scratch + scales_in_scratch();
  return static_cast<const std::byte*>(job.args.token_scales) +
         entry / job.route.num_entries * layout_.scale_bytes();
}

// Encodes the row of `entry` into `scratch` and copies it to `rows`.
void ExchangeState::copy_encoded(const SendJob& job, std::int64_t entry, std::span<void*> rows,
                                 std::byte* scratch) const {
  const Rows& tokens = job.args.tokens;
  const std::int64_t token = entry / job.route.num_entries;
  const std::byte* row = static_cast<const std::byte*>(tokens.data) + token * pitch_of(tokens);
  const std::byte* next = token + 1 < job.route.num_tokens ? row + pitch_of(tokens) : nullptr;
  if (next) prefetch_row(next, dense_pitch(tokens));
  if (wire_.encode) {
    wire_.encode({.row = row,
                  .row_type = tokens.dtype,
                  .hidden = tokens.hidden,
                  .factors = factors(job, entry),
                  .out = scratch,
                  .scales = scratch + scales_in_scratch(),
                  .next = job.stores == Stores::kStreaming ? next : nullptr});
    row = scratch;
  }
  copy_row_to_many(rows.data(), static_cast<int>(rows.size()), row, layout_.row_bytes(),
                   job.stores);
}

// Shared experts come first in the caller's table, then the experts that ids name.
RowFactors ExchangeState::factors(const SendJob& job, std::int64_t entry) const noexcept {
  const ScaleRows& scales = job.args.scales;
  if (scales.data == nullptr) return {};
  std::int64_t row = 0;
  if (scales.num_rows > 1) {
    const auto k = static_cast<int>(entry % job.route.num_entries);
    const std::int32_t expert = job.route.columns[entry];
    row = k >= job.route.top_k
              ? k - job.route.top_k
              : config_.shared.num_experts + (logical_.empty() ? expert : logical_[expert]);
  }
  return {scales.data + row * scales.num_channels, scales.num_channels > 1};
}

// In the order of the rows, so that lines which hold the metadata of several rows are fetched once
// and not taken from the sources next door again and again. Starts at a different peer per rank.
void ExchangeState::send_all_metadata(const SendJob& job) {
  const Route& route = job.route;
  const auto count = static_cast<std::int64_t>(route.order.size());
  const std::int64_t first = count * rank_ / size_;
  workers_.run(count, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = first + begin; i < first + end; ++i) {
      const std::int32_t entry = route.order[i < count ? i : i - count];
      for (int position = 0; position < route.active->num_positions; ++position)
        send_metadata(job, entry, position);
    }
  });
}

void ExchangeState::send_metadata(const SendJob& job, std::int64_t entry, int position) {
  const RowRef ref = job.route.refs[entry];
  const std::int64_t at = row_at(job.route, entry, position);
  std::byte* buffer = posted_[job.route.active->index(ref.member, position)];
  if (buffer == nullptr) return;
  fill_metadata(job, entry,
                {.source = reinterpret_cast<std::int32_t*>(buffer + layout_.sources()) + at * 3,
                 .weights = reinterpret_cast<float*>(buffer + layout_.weights()) +
                            at * layout_.weights_per_row(),
                 .ids = reinterpret_cast<std::int32_t*>(buffer + layout_.topk_ids()) +
                        at * layout_.ids_per_row()});
}

// Source triplet and weights of the row that refs[entry] names.
void ExchangeState::fill_metadata(const SendJob& job, std::int64_t entry,
                                  const RowMetadata& to) const {
  const Route& route = job.route;
  const int member = route.refs[entry].member;
  // 32 bits: this division runs for every row.
  const std::uint32_t token =
      static_cast<std::uint32_t>(entry) / static_cast<std::uint32_t>(route.num_entries);
  const int k = static_cast<int>(entry - std::int64_t{token} * route.num_entries);
  const float* weights =
      job.args.topk_weights ? job.args.topk_weights + std::int64_t{token} * route.top_k : nullptr;
  to.source[0] = route.active->member;
  to.source[1] = static_cast<std::int32_t>(token);
  to.source[2] = k;
  if (!rank_major()) {
    if (weights) to.weights[0] = k < route.top_k ? weights[k] : 1.0f;
    return;
  }
  const ExpertMap& map = route.active->map;
  const std::int32_t* columns = route.columns.data() + (entry - k);
  to.source[2] = -1;
  for (int j = 0; j < route.num_entries; ++j) {
    const bool local = columns[j] >= 0 && map.owner(columns[j]) == member;
    if (local && to.source[2] < 0) to.source[2] = j;
    if (j >= route.top_k) continue;
    to.ids[j] = local ? map.local(columns[j]) : -1;
    if (weights) to.weights[j] = local ? weights[j] : 0.0f;
  }
}

// Gap rows of my own buffer: source -1, weight 0, and zero rows on request. Padding is left alone
// unless asked for.
void ExchangeState::clear_gaps(const InFlight& operation) {
  const Route& route = *operation.route;
  const bool padded = config_.layout == Layout::kPadded;
  if (rank_major() || (padded && !config_.zero_gaps) || (!padded && config_.expert_alignment == 1))
    return;
  std::byte* buffer = pool_->data(operation.buffer);
  for (std::size_t expert = 0; expert + 1 < route.expert_offsets.size(); ++expert) {
    const std::int64_t first = route.expert_offsets[expert] + route.tokens_per_expert[expert];
    const std::int64_t count = route.expert_offsets[expert + 1] - first;
    if (count == 0) continue;
    std::memset(buffer + layout_.sources() + first * 3 * sizeof(std::int32_t), 0xff,
                count * 3 * sizeof(std::int32_t));
    std::memset(buffer + layout_.weights() + first * sizeof(float), 0, count * sizeof(float));
    if (!config_.zero_gaps) continue;
    std::memset(buffer + layout_.rows() + first * layout_.row_bytes(), 0,
                count * layout_.row_bytes());
    const std::vector<std::byte> zeros(layout_.scale_bytes());
    for (std::int64_t row = first; row < first + count && !zeros.empty(); ++row)
      layout_.put_scales(buffer, scale_strides_[route.active->member], row, zeros.data());
  }
}

}  // namespace ferry::internal

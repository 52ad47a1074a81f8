#include "exchange/dispatch/send_rows.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "exchange/dispatch/row_metadata.h"

namespace ferry::internal {

namespace {

// The most rows that one token can have: each entry has a row at every tensor-parallel rank.
constexpr int kMaxDestinations = kMaxEntries * kMaxTpSize;

}  // namespace

RowSender::RowSender(ExchangeParts& exchange, const Issued& issued, const Route& route,
                     const DispatchArgs& args, std::int64_t now_ns)
    : exchange_(exchange),
      setup_(*exchange.setup),
      layout_(setup_.layout),
      issued_(issued),
      route_(route),
      args_(args),
      stores_(exchange.stores.begin(bytes_of_all(), now_ns)) {
  posted_.reserve(issued.active->ranks.size());
  for (const int peer : issued.active->ranks) {
    posted_.push_back(nullptr);
    if (!exchange.view.has_window(peer)) continue;
    const Record& theirs = exchange.record(peer, issued.number);
    FERRY_CHECK(theirs.number, ==, issued.number);
    const int buffer = theirs.posted.buffer;
    FERRY_CHECK(buffer, >=, 0);
    posted_.back() = exchange.view.window(peer) + layout_.buffer(buffer);
  }
  for (std::size_t i = 0; layout_.scale_bytes() > 0 && i < route_.section_rows.size(); ++i)
    scale_strides_.push_back(layout_.scale_strides(route_.section_rows[i]));
}

Status RowSender::send(int buffer) {
  if (!exchange_.ways.none()) {
    if (Status status = cross_rows(); !status.ok()) return status;
  }
  FERRY_CHECK(posted_.size(), ==, issued_.active->ranks.size());
  const std::size_t rows_sent = route_.num_sent * issued_.active->tp_size;
  exchange_.stores.measure(StoreChoice::kSend, bytes_of_all(), rows_sent * layout_.row_bytes(),
                           [&] { send_tokens(); });
  if (setup_.receives())
    take_metadata(exchange_, issued_.number, route_, exchange_.pool->data(buffer));
  clear_gaps(buffer);
  ExchangeStats& stats = exchange_.stats;
  stats.rows_sent += rows_sent;
  stats.bytes_sent += rows_sent * layout_.row_bytes();
  ++stats.dispatches;
  return {};
}

void RowSender::send_tokens() const {
  exchange_.workers->run(route_.num_tokens, [&](std::int64_t begin, std::int64_t end) {
    const auto scratch = std::make_unique_for_overwrite<std::byte[]>(setup_.scratch_bytes());
    for (std::int64_t token = begin; token < end; ++token) send_token(token, scratch.get());
    if (stores_ == Stores::kStreaming) stores_fence();
  });
}

// With factors by expert the row of a token differs for each of its experts; otherwise all get the
// same row.
void RowSender::send_token(std::int64_t token, std::byte* scratch) const {
  const int entries = route_.num_entries;
  const std::int64_t first = token * entries;
  if (args_.scales.num_rows <= 1) return send_entries(first, entries, scratch);
  for (int k = 0; k < entries; ++k) send_entries(first + k, 1, scratch);
}

// Writes the row that `count` entries of one token share to all their slots in this node.
void RowSender::send_entries(std::int64_t first, int count, std::byte* scratch) const {
  const ActiveSet& active = *route_.active;
  const std::size_t row_bytes = layout_.row_bytes();
  Slot to[kMaxDestinations];
  void* rows[kMaxDestinations];
  int num_rows = 0;
  for (std::int64_t entry = first; entry < first + count; ++entry) {
    const RowRef ref = route_.refs[entry];
    for (int tp_rank = 0; ref.sent() && tp_rank < active.tp_size; ++tp_rank) {
      const int index = active.index(ref.member, tp_rank);
      std::byte* data = posted_[index];
      if (data == nullptr) continue;  // at another node (cross_rows.cc)
      const std::int64_t row = setup_.row_at(route_, entry, tp_rank);
      to[num_rows] = {index, row};
      rows[num_rows++] = data + layout_.rows() + row * row_bytes;
    }
  }
  if (num_rows == 0) return;
  copy_row_to_many(rows, num_rows, encode(first, scratch), row_bytes, stores_);
  if (layout_.scale_bytes() == 0) return;
  const std::byte* scales = scales_of_row(first, scratch);
  for (int i = 0; i < num_rows; ++i)
    layout_.put_scales(posted_[to[i].index], scale_strides_[to[i].index % active.num_members],
                       to[i].row, scales);
}

// The scales of the row of `entry`. Call after encode().
const std::byte* RowSender::scales_of_row(std::int64_t entry,
                                          const std::byte* scratch) const noexcept {
  if (setup_.wire.encode) return scratch + setup_.scales_in_scratch();
  return static_cast<const std::byte*>(args_.token_scales) +
         entry / route_.num_entries * layout_.scale_bytes();
}

// The row of `entry` as it is sent: encoded into `scratch`, or where it lies.
const std::byte* RowSender::encode(std::int64_t entry, std::byte* scratch) const {
  const Rows& tokens = args_.tokens;
  const std::int64_t token = entry / route_.num_entries;
  const std::byte* row = static_cast<const std::byte*>(tokens.data) + token * pitch_of(tokens);
  const std::byte* next = token + 1 < route_.num_tokens ? row + pitch_of(tokens) : nullptr;
  if (next) prefetch_row(next, dense_pitch(tokens));
  if (!setup_.wire.encode) return row;
  setup_.wire.encode({.row = row,
                      .row_type = tokens.dtype,
                      .hidden = tokens.hidden,
                      .factors = factors(entry),
                      .out = scratch,
                      .scales = scratch + setup_.scales_in_scratch(),
                      .next = stores_ == Stores::kStreaming ? next : nullptr});
  return scratch;
}

// Shared experts come first in the caller's table, then the experts that ids name.
RowFactors RowSender::factors(std::int64_t entry) const noexcept {
  const ScaleRows& scales = args_.scales;
  if (scales.data == nullptr) return {};
  std::int64_t row = 0;
  if (scales.num_rows > 1) {
    const auto k = static_cast<int>(entry % route_.num_entries);
    const std::int32_t expert = route_.columns[entry];
    row = k >= route_.top_k ? k - route_.top_k
                            : setup_.config.shared.num_experts +
                                  (setup_.logical.empty() ? expert : setup_.logical[expert]);
  }
  return {scales.data + row * scales.num_channels, scales.num_channels > 1};
}

// Marks the gap rows of this rank's buffer: source -1, weight 0, and with zero_gaps zeros in the
// rows and scales. The padding of the padded layout is written with zero_gaps only.
void RowSender::clear_gaps(int mine) const {
  const bool padded = setup_.config.layout == Layout::kPadded;
  if (setup_.rank_major() || (padded && !setup_.config.zero_gaps) ||
      (!padded && setup_.config.expert_alignment == 1))
    return;
  std::byte* buffer = exchange_.pool->data(mine);
  for (std::size_t expert = 0; expert + 1 < route_.received.expert_offsets.size(); ++expert) {
    const std::int64_t first =
        route_.received.expert_offsets[expert] + route_.received.tokens_per_expert[expert];
    const std::int64_t count = route_.received.expert_offsets[expert + 1] - first;
    if (count == 0) continue;
    std::memset(buffer + layout_.sources() + first * 3 * sizeof(std::int32_t), 0xff,
                count * 3 * sizeof(std::int32_t));
    std::memset(buffer + layout_.weights() + first * sizeof(float), 0, count * sizeof(float));
    if (!setup_.config.zero_gaps) continue;
    std::memset(buffer + layout_.rows() + first * layout_.row_bytes(), 0,
                count * layout_.row_bytes());
    const std::vector<std::byte> zeros(layout_.scale_bytes());
    for (std::int64_t row = first; row < first + count && !zeros.empty(); ++row)
      layout_.put_scales(buffer, scale_strides_[route_.active->member], row, zeros.data());
  }
}

}  // namespace ferry::internal

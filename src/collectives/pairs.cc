// Data of pairs: the half of a rank's window has a slot for each other rank.
#include <vector>

#include "collectives/data.h"
#include "kernels/reduce_elements.h"

namespace ferry::internal {

namespace {

// The place of `bytes` that `sender` writes for `receiver`.
std::byte* slot(const Calls& calls, int sender, int receiver, std::int64_t round,
                std::size_t bytes) noexcept {
  const int index = receiver - sender - 1 + (receiver < sender ? calls.size() : 0);
  return calls.place_for(static_cast<std::size_t>(index), sender, round, bytes);
}

// A chunk that `sender` has for this rank. Published counts are of elements of so many bytes.
const std::byte* data_of(const Calls& calls, int sender, std::int64_t round, const Chunk& chunk,
                         std::size_t element) noexcept {
  const std::byte* const shown = calls.shown(sender);
  if (shown == nullptr) return slot(calls, sender, calls.rank(), round, chunk.size);
  const CountedBytes sent{calls.sent_counts(sender), element};
  return shown + sent.before(calls.rank()) + chunk.begin;
}

// Writes the data for each other rank into the slots. `in` has a place for ranks that the view
// lacks as well.
void fill_slots(const Calls& calls, const std::byte* in, const CountedBytes& sent,
                std::int64_t round) {
  for (int peer = 0; peer < calls.size(); ++peer) {
    const Chunk chunk(sent.of(peer), calls.layout().slot_bytes(), round);
    if (peer != calls.rank() && chunk.size > 0 && calls.has(peer))
      calls.put(slot(calls, calls.rank(), peer, round, chunk.size), in + chunk.begin, chunk.size,
                peer);
    in += sent.of(peer);
  }
}

}  // namespace

std::size_t CountedBytes::most(int but) const noexcept {
  std::size_t most = 0;
  for (int rank = 0; rank < static_cast<int>(counts.size()); ++rank)
    if (rank != but) most = std::max(most, of(rank));
  return most;
}

std::size_t CountedBytes::before(int rank) const noexcept {
  std::size_t before = 0;
  for (int other = 0; other < rank; ++other) before += of(other);
  return before;
}

std::int64_t num_rounds(std::size_t bytes, std::size_t most) noexcept {
  if (bytes <= most) return 1;  // a division takes as long as a small copy
  return static_cast<std::int64_t>((bytes + most - 1) / most);
}

Status move_pairs(Calls& calls, const PairData& data) {
  const int rank = calls.rank();
  const std::size_t most = std::max(data.sent.most(rank), data.received.most(rank));
  const Stores stores = calls.stores(data.received.before(calls.size()));
  const auto take = [&](std::int64_t round) {
    std::byte* out = data.out;
    for (int peer = 0; peer < calls.size(); ++peer) {
      const Chunk chunk(data.received.of(peer), calls.layout().slot_bytes(), round);
      if (peer != rank && chunk.size > 0 && calls.has(peer))
        copy(out + chunk.begin, data_of(calls, peer, round, chunk, data.received.element),
             chunk.size, stores);
      if (peer == rank && round == 0)
        copy(out, data.in + data.sent.before(rank), data.sent.of(rank), stores);
      out += data.received.of(peer);
    }
  };
  return calls.run(
      num_rounds(most, calls.layout().slot_bytes()),
      [&](std::int64_t round) { fill_slots(calls, data.in, data.sent, round); }, take);
}

Status reduce_scatter(Calls& calls, const ReducedBlocks& data) {
  const int rank = calls.rank();
  const std::size_t before = data.blocks.before(rank);
  const std::vector<int>& members = calls.members();
  const std::span<const void*> rows = calls.rows();
  const auto take = [&](std::int64_t round) {
    const Chunk chunk(data.blocks.of(rank), calls.layout().slot_bytes(), round);
    for (std::size_t i = 0; i < members.size(); ++i) {
      const std::byte* in = members[i] == rank ? data.in : calls.shown(members[i]);
      rows[i] = in ? in + before + chunk.begin : slot(calls, members[i], rank, round, chunk.size);
    }
    reduce_elements({.rows = rows.data(),
                     .num_rows = static_cast<int>(rows.size()),
                     .type = data.dtype,
                     .op = data.op,
                     .out = data.out + chunk.begin,
                     .count = static_cast<std::int64_t>(chunk.size / data.blocks.element)});
  };
  calls.show(data.in, data.blocks.before(calls.size()), /*readers=*/1);
  return calls.run(
      num_rounds(data.blocks.most(/*but=*/-1), calls.layout().slot_bytes()),
      [&](std::int64_t round) { fill_slots(calls, data.in, data.blocks, round); }, take);
}

}  // namespace ferry::internal

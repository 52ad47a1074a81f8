// Data that all ranks read: a rank writes each chunk once.
#include "collectives/data.h"

namespace ferry::internal {

namespace {

// A chunk of the data of `peer`.
const std::byte* given(const Calls& calls, int peer, std::int64_t round, const Chunk& chunk) {
  const std::byte* const shown = calls.shown(peer);
  return shown ? shown + chunk.begin : calls.place(peer, round, chunk.size);
}

}  // namespace

Status gather_all(Calls& calls, const GatheredData& data) {
  const int rank = calls.rank();
  const std::size_t half = calls.layout().half_bytes();
  const Stores stores = calls.stores(data.parts.before(calls.size()));
  calls.show(data.in, data.parts.of(rank), /*readers=*/calls.size());
  const auto write = [&](std::int64_t round) {
    const Chunk chunk(data.parts.of(rank), half, round);
    calls.put(calls.place(rank, round, chunk.size), data.in + chunk.begin, chunk.size, Calls::kAll);
  };
  const auto take = [&](std::int64_t round) {
    std::byte* out = data.out;
    for (int peer = 0; peer < calls.size(); ++peer) {
      const Chunk chunk(data.parts.of(peer), half, round);
      const std::byte* from =
          peer == rank ? data.in + chunk.begin : given(calls, peer, round, chunk);
      if (calls.has(peer)) copy(out + chunk.begin, from, chunk.size, stores);
      out += data.parts.of(peer);
    }
  };
  return calls.run(num_rounds(data.parts.most(/*but=*/-1), half), write, take);
}

Status broadcast(Calls& calls, std::byte* data, std::size_t bytes, int root) {
  const std::size_t half = calls.layout().half_bytes();
  const bool sends = calls.rank() == root;
  const Stores stores = calls.stores(bytes);
  if (sends) calls.show(data, bytes, /*readers=*/calls.size());
  const auto write = [&](std::int64_t round) {
    const Chunk chunk(bytes, half, round);
    if (sends)
      calls.put(calls.place(root, round, chunk.size), data + chunk.begin, chunk.size, Calls::kAll);
  };
  const auto take = [&](std::int64_t round) {
    const Chunk chunk(bytes, half, round);
    if (!sends) copy(data + chunk.begin, given(calls, root, round, chunk), chunk.size, stores);
  };
  return calls.run(num_rounds(bytes, half), write, take);
}

}  // namespace ferry::internal

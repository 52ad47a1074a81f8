#include "collectives/caller.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <span>

#include "exchange/frame.h"
#include "kernels/reduce_elements.h"

namespace ferry::test {

namespace {

using Counts = std::vector<std::int64_t>;

// One rank's view of a case.
class Caller {
 public:
  Caller(Collectives& collectives, const CallCase& c)
      : collectives_(collectives), case_(c), rank_(collectives.rank()), size_(collectives.size()) {}

  Bytes of(int rank, std::int64_t count) const {
    return elements_of(case_.seed, rank, count, case_.dtype);
  }
  Bytes room(std::int64_t count) const { return Bytes(bytes(count), std::byte{0x5a}); }
  std::size_t bytes(std::int64_t count) const {
    return static_cast<std::size_t>(count) * element_bytes(case_.dtype);
  }
  std::int64_t before(const Counts& counts, int rank) const {
    return std::accumulate(counts.begin(), counts.begin() + rank, std::int64_t{0});
  }
  std::int64_t sum(const Counts& counts) const { return before(counts, size_); }
  void require_same(const Bytes& seen, const Bytes& expected, const char* call) const {
    require(seen.size() == expected.size(), call);
    require_same_bytes(seen.data(), expected.data(), seen.size(), [&] {
      return std::string(call) + " of " + std::to_string(case_.count) + " " +
             data_type_name(case_.dtype) + " on rank " + std::to_string(rank_) + ", seed " +
             std::to_string(case_.seed);
    });
  }
  std::span<const std::byte> part(const Bytes& all, std::int64_t begin, std::int64_t count) const {
    return std::span(all).subspan(bytes(begin), bytes(count));
  }

  void all_to_all(bool shared) const;
  void all_gather() const;
  void gather_and_scatter(int root) const;
  void broadcast(int root) const;
  void reduce_everywhere(ReduceOp op) const;
  void reduce_scatter(ReduceOp op) const;
  void all_gather_in_place(bool shared) const;
  void reduce_scatter_in_place(bool shared) const;
  void broadcast_in_place(int root, bool shared) const;
  void ring() const;
  void tags() const;
  void begun() const;

 private:
  std::vector<Bytes> of_all(std::int64_t count) const {
    std::vector<Bytes> all;
    for (int rank = 0; rank < size_; ++rank) all.push_back(of(rank, count));
    return all;
  }

  Collectives& collectives_;
  const CallCase& case_;
  int rank_, size_;
};

void append(Bytes& to, std::span<const std::byte> from) {
  to.insert(to.end(), from.begin(), from.end());
}

void Caller::all_gather() const {
  const Counts counts = counts_of(size_, case_.count);
  Bytes expected;
  for (int rank = 0; rank < size_; ++rank) append(expected, of(rank, counts[rank]));
  const Bytes in = of(rank_, counts[rank_]);
  Bytes out = room(sum(counts));
  require_ok(collectives_.all_gather_v(in.data(), counts[rank_], out.data(), counts, case_.dtype),
             "all_gather_v");
  require_same(out, expected, "all_gather_v");
  Bytes in_place = room(sum(counts));
  std::byte* const mine = in_place.data() + bytes(before(counts, rank_));
  if (!in.empty()) std::memcpy(mine, in.data(), in.size());
  require_ok(collectives_.all_gather_v(mine, counts[rank_], in_place.data(), counts, case_.dtype),
             "all_gather_v in place");
  require_same(in_place, expected, "all_gather_v in place");
}

void Caller::gather_and_scatter(int root) const {
  const Counts counts = counts_of(size_, case_.count);
  Bytes all;
  for (int rank = 0; rank < size_; ++rank) append(all, of(rank, counts[rank]));
  const Bytes mine = of(rank_, counts[rank_]);
  Bytes out = rank_ == root ? room(sum(counts)) : Bytes();
  require_ok(collectives_.gather_v(mine.data(), out.data(), counts, case_.dtype, root), "gather_v");
  if (rank_ == root) require_same(out, all, "gather_v");
  Bytes back = room(counts[rank_]);
  require_ok(collectives_.scatter_v(rank_ == root ? all.data() : nullptr, back.data(), counts,
                                    case_.dtype, root),
             "scatter_v");
  require_same(back, mine, "scatter_v");
}

void Caller::broadcast(int root) const {
  const Bytes expected = of(root, case_.count);
  Bytes data = rank_ == root ? expected : room(case_.count);
  require_ok(collectives_.broadcast(data.data(), case_.count, case_.dtype, root), "broadcast");
  require_same(data, expected, "broadcast");
}

void Caller::reduce_everywhere(ReduceOp op) const {
  const Bytes expected = reduced(of_all(case_.count), case_.dtype, op);
  const Bytes in = of(rank_, case_.count);
  Bytes out = room(case_.count), in_place = in;
  require_ok(collectives_.all_reduce(in.data(), out.data(), case_.count, case_.dtype, op),
             "all_reduce");
  require_same(out, expected, reduce_op_name(op));
  require_ok(
      collectives_.all_reduce(in_place.data(), in_place.data(), case_.count, case_.dtype, op),
      "all_reduce in place");
  require_same(in_place, expected, reduce_op_name(op));
  const int root = size_ / 2;
  Bytes at_root = rank_ == root ? room(case_.count) : Bytes();
  require_ok(collectives_.reduce(in.data(), at_root.data(), case_.count, case_.dtype, op, root),
             "reduce");
  if (rank_ == root) require_same(at_root, expected, "reduce");
}

void Caller::reduce_scatter(ReduceOp op) const {
  const Counts counts = counts_of(size_, case_.count);
  const Bytes all = reduced(of_all(sum(counts)), case_.dtype, op);
  const auto block = part(all, before(counts, rank_), counts[rank_]);
  Bytes in = of(rank_, sum(counts)), out = room(counts[rank_]);
  require_ok(collectives_.reduce_scatter_v(in.data(), counts, out.data(), case_.dtype, op),
             "reduce_scatter_v");
  require_same(out, Bytes(block.begin(), block.end()), "reduce_scatter_v");
}

// Memory of a call: of the Collectives, or of the process.
class Memory {
 public:
  Memory(const Collectives& collectives, bool shared, std::size_t bytes)
      : owned_(shared ? 0 : bytes),
        shared_(shared ? collectives.allocate(static_cast<std::int64_t>(bytes)) : nullptr),
        size_(bytes) {}
  std::byte* data() { return shared_ ? static_cast<std::byte*>(shared_.get()) : owned_.data(); }
  void fill(std::size_t at, const Bytes& bytes) { std::ranges::copy(bytes, data() + at); }
  void fill(std::byte value) { std::fill_n(data(), size_, value); }
  Bytes bytes() { return {data(), data() + size_}; }

 private:
  Bytes owned_;
  std::shared_ptr<void> shared_;
  std::size_t size_;
};

// Rank s sends base[(s + d) % R] elements to rank d. The data are overwritten as soon as the call
// returns, since no rank reads them any more.
void Caller::all_to_all(bool shared) const {
  const Counts base = counts_of(size_, case_.count);
  const auto sent_by = [&](int rank) {
    Counts counts;
    for (int peer = 0; peer < size_; ++peer) counts.push_back(base[(rank + peer) % size_]);
    return counts;
  };
  const Counts sent = sent_by(rank_);  // and received, as the table is symmetric
  Memory memory(collectives_, shared, bytes(sum(sent)));
  memory.fill(0, of(rank_, sum(sent)));
  Bytes out = room(sum(sent)), expected;
  for (int peer = 0; peer < size_; ++peer) {
    const Counts theirs = sent_by(peer);
    append(expected, part(of(peer, sum(theirs)), before(theirs, rank_), theirs[rank_]));
  }
  require_ok(collectives_.all_to_all_v(memory.data(), sent, out.data(), sent, case_.dtype),
             "all_to_all_v");
  memory.fill(std::byte{0x5a});
  require_same(out, expected, "all_to_all_v");
}

void Caller::all_gather_in_place(bool shared) const {
  const Counts counts = counts_of(size_, case_.count);
  Bytes expected;
  for (int rank = 0; rank < size_; ++rank) append(expected, of(rank, counts[rank]));
  Memory memory(collectives_, shared, bytes(sum(counts)));
  memory.fill(bytes(before(counts, rank_)), of(rank_, counts[rank_]));
  require_ok(collectives_.all_gather_v(memory.data() + bytes(before(counts, rank_)), counts[rank_],
                                       memory.data(), counts, case_.dtype),
             "all_gather_v in place");
  const Bytes seen = memory.bytes();
  memory.fill(std::byte{0x5a});
  require_same(seen, expected, "all_gather_v in place");
}

void Caller::reduce_scatter_in_place(bool shared) const {
  const Counts counts = counts_of(size_, case_.count);
  const Bytes all = reduced(of_all(sum(counts)), case_.dtype, ReduceOp::kSum);
  const auto block = part(all, before(counts, rank_), counts[rank_]);
  Memory memory(collectives_, shared, bytes(sum(counts)));
  memory.fill(0, of(rank_, sum(counts)));
  Bytes out = room(counts[rank_]);
  require_ok(
      collectives_.reduce_scatter_v(memory.data(), counts, out.data(), case_.dtype, ReduceOp::kSum),
      "reduce_scatter_v in place");
  memory.fill(std::byte{0x5a});
  require_same(out, Bytes(block.begin(), block.end()), "reduce_scatter_v in place");
}

void Caller::broadcast_in_place(int root, bool shared) const {
  Memory memory(collectives_, shared, bytes(case_.count));
  if (rank_ == root) memory.fill(0, of(root, case_.count));
  require_ok(collectives_.broadcast(memory.data(), case_.count, case_.dtype, root),
             "broadcast in place");
  const Bytes seen = memory.bytes();
  memory.fill(std::byte{0x5a});
  require_same(seen, of(root, case_.count), "broadcast in place");
}

void Caller::ring() const {
  const int next = (rank_ + 1) % size_, last = (rank_ + size_ - 1) % size_;
  const Bytes in = of(rank_, case_.count);
  Bytes out = room(case_.count);
  require_ok(collectives_.send(in.data(), case_.count, case_.dtype, next, -1), "send");
  require_ok(collectives_.recv(out.data(), case_.count, case_.dtype, last, -1), "recv");
  require_same(out, of(last, case_.count), "recv");
}

// Every rank sends two messages to rank 0, which receives those with the second tag first, then
// those with the first tag from any rank. The tags differ between cases, since messages of the next
// case may already have come.
void Caller::tags() const {
  const std::int64_t first = 2 * case_.count, second = first + 1;
  if (rank_ != 0) {
    for (const std::int64_t tag : {first, second}) {
      const Bytes in = elements_of(case_.seed + tag, rank_, case_.count, case_.dtype);
      require_ok(collectives_.send(in.data(), case_.count, case_.dtype, 0, tag), "send");
    }
    return;
  }
  Bytes out = room(case_.count);
  for (int peer = 1; peer < size_; ++peer) {
    require_ok(collectives_.recv(out.data(), case_.count, case_.dtype, peer, second), "recv");
    require_same(out, elements_of(case_.seed + second, peer, case_.count, case_.dtype),
                 "the second tag");
  }
  for (int peer = 1; peer < size_; ++peer) {
    int source = -1;
    require_ok(collectives_.recv(out.data(), case_.count, case_.dtype, -1, first, &source), "recv");
    require_same(out, elements_of(case_.seed + first, source, case_.count, case_.dtype),
                 "the first tag");
  }
}

// Every rank begins to receive two messages from each rank, the second one first, and then begins
// to send.
void Caller::begun() const {
  constexpr int kMessages = 2;
  const auto seed = [&](int number) { return case_.seed + 7 * number; };
  std::vector<Bytes> in, out;
  std::vector<Message> received, sent;
  for (int number = 0; number < kMessages; ++number)
    in.push_back(elements_of(seed(number), rank_, case_.count, case_.dtype));
  out.assign(static_cast<std::size_t>(kMessages * size_), room(case_.count));
  const std::int64_t tag = -2 - 2 * case_.count;
  for (int at = 0; at < kMessages * size_; ++at) {
    const int number = kMessages - 1 - at / size_, peer = at % size_;
    received.push_back(
        collectives_.begin_recv(out[at].data(), case_.count, case_.dtype, peer, tag - number));
  }
  for (int peer = 0; peer < size_; ++peer) {
    for (int number = 0; number < kMessages; ++number)
      sent.push_back(
          collectives_.begin_send(in[number].data(), case_.count, case_.dtype, peer, tag - number));
  }
  const auto all_ended = [](const std::vector<Message>& messages) {
    return std::ranges::all_of(messages, [](const Message& message) { return message.ended(); });
  };
  while (!all_ended(received) || !all_ended(sent)) require_ok(collectives_.progress(), "progress");
  for (const Message& message : sent) require_ok(message.status(), "begin_send");
  for (int at = 0; at < kMessages * size_; ++at) {
    const int number = kMessages - 1 - at / size_, peer = at % size_;
    require_ok(received[at].status(), "begin_recv");
    require(received[at].source() == peer, "the sender");
    require_same(out[at], elements_of(seed(number), peer, case_.count, case_.dtype), "begin_recv");
  }
  require_ok(collectives_.progress(), "nothing is on its way");
}

}  // namespace

void make_moves(Collectives& collectives, const CallCase& c) {
  const Caller caller(collectives, c);
  caller.all_to_all(/*shared=*/false);
  caller.all_gather();
  for (int root = 0; root < collectives.size(); root += 2) {
    caller.gather_and_scatter(root);
    caller.broadcast(root);
  }
  require_ok(collectives.barrier(), "barrier");
}

void make_reductions(Collectives& collectives, const CallCase& c, ReduceOp op) {
  const Caller caller(collectives, c);
  if (!internal::can_reduce(c.dtype, op)) return;
  caller.reduce_everywhere(op);
  caller.reduce_scatter(op);
}

void make_calls_in_place(Collectives& collectives, const CallCase& c, unsigned ranks) {
  const Caller caller(collectives, c);
  const bool shared = (ranks >> collectives.rank() % 8 & 1) != 0;
  caller.all_to_all(shared);
  caller.all_gather_in_place(shared);
  caller.reduce_scatter_in_place(shared);
  caller.broadcast_in_place(collectives.size() - 1, shared);
}

void make_messages(Collectives& collectives, const CallCase& c) {
  const Caller caller(collectives, c);
  caller.ring();
  caller.tags();
  caller.begun();
}

}  // namespace ferry::test

// Reductions of the same elements on all ranks. Small ones: every rank that needs the result reads
// the elements of all ranks. Large ones: each rank reduces a slice of every chunk, and the others
// read its result. Both reduce in ascending rank order, so that the bits are equal.
#include <vector>

#include "collectives/data.h"
#include "kernels/reduce_elements.h"

namespace ferry::internal {

namespace {

// Up to this size waiting for one more flag takes longer than reading the data of all ranks.
constexpr std::size_t kSmallBytes = std::size_t{16} << 10;

// One reduction on this rank.
class Reduction {
 public:
  Reduction(Calls& calls, const ReducedData& data)
      : calls_(calls),
        data_(data),
        element_(element_bytes(data.dtype)),
        bytes_(static_cast<std::size_t>(data.count) * element_),
        stores_(calls.stores(bytes_)),
        members_(calls.members()),
        rows_(calls.rows()) {}

  Status run() {
    const std::size_t half = calls_.layout().half_bytes();
    if (bytes_ <= std::min(kSmallBytes, half)) return run_small();
    // The slices are the same in all rounds: a result lies in the slice of its own rank, to which
    // write() never writes.
    const std::size_t ranks = members_.size();
    constexpr std::size_t kLine = CollectivesLayout::kLine;
    slice_ = std::min(half / ranks, (bytes_ + ranks - 1) / ranks + kLine - 1) / kLine * kLine;
    chunk_ = slice_ * ranks;
    return calls_.run(
        num_rounds(bytes_, chunk_), [this](std::int64_t round) { write(round); },
        [this](std::int64_t round) { reduce_slice(round); },
        [this](std::int64_t round) { read(round); });
  }

 private:
  static_assert(ReducedData::kAll == Calls::kAll);
  bool gets_result() const noexcept {
    return data_.root == ReducedData::kAll || data_.root == calls_.rank();
  }

  Status run_small() {
    const auto write = [this](std::int64_t round) {
      calls_.put(calls_.place(calls_.rank(), round, bytes_), data_.in, bytes_, data_.root);
    };
    const auto take = [this](std::int64_t round) {
      if (!gets_result()) return;
      for (std::size_t i = 0; i < members_.size(); ++i)
        rows_[i] = is_mine(i) ? data_.in : calls_.place(members_[i], round, bytes_);
      reduce_rows_to(data_.out, bytes_);
    };
    return calls_.run(1, write, take);
  }

  bool is_mine(std::size_t owner) const noexcept { return members_[owner] == calls_.rank(); }

  // The slice of the member `owner`, as a range of the bytes of the call.
  Chunk slice(std::size_t owner, std::int64_t round) const noexcept {
    const std::size_t begin = static_cast<std::size_t>(round) * chunk_ + owner * slice_;
    Chunk slice(bytes_ - std::min(bytes_, begin), slice_, 0);
    slice.begin = begin;
    return slice;
  }
  std::byte* place(int rank, std::size_t owner, std::int64_t round) const noexcept {
    return calls_.half(rank, round) + owner * slice_;
  }

  void write(std::int64_t round) const {
    for (std::size_t owner = 0; owner < members_.size(); ++owner) {
      const Chunk part = slice(owner, round);
      if (!is_mine(owner))
        calls_.put(place(calls_.rank(), owner, round), data_.in + part.begin, part.size,
                   members_[owner]);
    }
  }

  // Writes the result to this rank's window, in the place of its own elements, and to its output.
  void reduce_slice(std::int64_t round) {
    const auto mine =
        static_cast<std::size_t>(std::ranges::find(members_, calls_.rank()) - members_.begin());
    const Chunk part = slice(mine, round);
    if (part.size == 0) return;
    for (std::size_t i = 0; i < members_.size(); ++i)
      rows_[i] = is_mine(i) ? data_.in + part.begin : place(members_[i], mine, round);
    std::byte* const result = place(calls_.rank(), mine, round);
    reduce_rows_to(result, part.size);
    calls_.put(result, result, part.size, data_.root);  // in place for this node
    if (gets_result()) copy(data_.out + part.begin, result, part.size, stores_);
  }

  void read(std::int64_t round) const noexcept {
    if (!gets_result()) return;
    for (std::size_t owner = 0; owner < members_.size(); ++owner) {
      const Chunk part = slice(owner, round);
      if (!is_mine(owner))
        copy(data_.out + part.begin, place(members_[owner], owner, round), part.size, stores_);
    }
  }

  void reduce_rows_to(std::byte* out, std::size_t bytes) noexcept {
    reduce_elements({.rows = rows_.data(),
                     .num_rows = static_cast<int>(rows_.size()),
                     .type = data_.dtype,
                     .op = data_.op,
                     .out = out,
                     .count = static_cast<std::int64_t>(bytes / element_)});
  }

  Calls& calls_;
  const ReducedData& data_;
  std::size_t element_, bytes_;
  Stores stores_;                      // for writing the result
  std::size_t slice_ = 0, chunk_ = 0;  // bytes of a slice, and of the chunk of a round
  const std::vector<int>& members_;    // the ranks that reduce; each owns a slice
  std::span<const void*> rows_;        // [members]
};

}  // namespace

Status reduce(Calls& calls, const ReducedData& data) { return Reduction(calls, data).run(); }

}  // namespace ferry::internal

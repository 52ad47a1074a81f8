// Collectives: all-to-all, gather, scatter, reductions, broadcast and messages between the ranks of
// a group, over any contiguous memory. The sizes are known to the callers, so no counts travel.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ferry/export.h"
#include "ferry/group.h"
#include "ferry/status.h"
#include "ferry/types.h"

namespace ferry {

namespace internal {
class CollectivesState;
struct MessageState;
}  // namespace internal

struct CollectivesOptions {
  // The deadline of each call that gives none; 0: that of the group.
  std::chrono::nanoseconds deadline{0};
  // Bytes of the window of each rank, through which data are moved in chunks. Equal on all ranks.
  std::int64_t window_bytes = std::int64_t{2} << 20;
  // The deadline of the creation; 0: that of the group.
  std::chrono::nanoseconds creation_deadline{0};
  // Bytes that allocate() can hand out on each rank at a time. Equal on all ranks. They are address
  // space in each process, of all ranks together, until they are handed out.
  std::int64_t shared_bytes = 0;
};

// A message that a rank has begun to send or to receive. Copies are the same message.
class FERRY_EXPORT Message {
 public:
  Message() = default;  // has ended, with kClosed
  explicit Message(std::shared_ptr<internal::MessageState> state) noexcept;
  explicit Message(Status failure) noexcept;  // has ended with it

  bool ended() const noexcept;
  // The status that send or recv would have returned. Valid when the message has ended.
  Status status() const;
  // The sender, of a receive that has ended ok.
  int source() const noexcept;

 private:
  std::shared_ptr<internal::MessageState> state_;
  Status failure_;  // of a message without a state; ok: it was default-made
};

// One rank's access to the collectives of a group. All calls except rank(), size(), allocate(),
// latest_calls() and those for messages are collective: every rank makes the same calls in the same
// order, one at a time on each object. One thread at a time moves the messages of an object (send,
// recv, progress); it may be another thread than that of the collective calls. Several objects of a
// group are independent of each other.
//
// Counts are in elements. A `deadline` of 0 is that of the options. A call whose input and output
// overlap is refused, unless its comment allows it.
//
// An object belongs to the view of the group in which it was made; in a later view its calls return
// kClosed. Its ranks are those of its view, with their numbers: counts have an element, and memory
// a place, for every rank of the group, but those of a rank that the view lacks are neither read
// nor written. Such a rank cannot be a root or a peer.
//
// Errors: a refused argument is kInvalidArgument on its rank and kPeerRejected on the others; ranks
// whose calls differ all get kMismatch, which names the ranks and the values. The group is usable
// after both, and no rank's output is specified. A rank that dies or is late breaks the group, as
// everywhere (Status).
class FERRY_EXPORT Collectives {
 public:
  using Deadline = std::chrono::nanoseconds;
  using Counts = std::span<const std::int64_t>;  // [ranks]

  Collectives() = default;  // every call fails
  // Collective. Throws Error on all ranks when one of them is refused memory, or the options
  // differ.
  explicit Collectives(const Group& group, const CollectivesOptions& options = {});
  // Call in place of the constructor on a rank that cannot call it. Throws `why` on this rank; the
  // constructors of the other ranks throw Error(kPeerRejected).
  static void refuse(const Group& group, const Status& why);

  int rank() const;
  int size() const;

  // Sends in_counts[r] elements to each rank r, in rank order in `in`, and receives out_counts[r]
  // from each. in_counts[r] on this rank must equal out_counts[this rank] on rank r.
  [[nodiscard]] Status all_to_all_v(const void* in, Counts in_counts, void* out, Counts out_counts,
                                    DataType dtype, Deadline deadline = {}) noexcept;
  // Every rank receives the `count` elements of each rank, in rank order. counts[r] is the `count`
  // of rank r. `in` may be this rank's part of `out`.
  [[nodiscard]] Status all_gather_v(const void* in, std::int64_t count, void* out, Counts counts,
                                    DataType dtype, Deadline deadline = {}) noexcept;
  // Rank r receives counts[r] elements: its block of `in`, reduced over all ranks. `out` may be
  // that block.
  [[nodiscard]] Status reduce_scatter_v(const void* in, Counts counts, void* out, DataType dtype,
                                        ReduceOp op, Deadline deadline = {}) noexcept;
  // `out` may equal `in`, here and in reduce.
  [[nodiscard]] Status all_reduce(const void* in, void* out, std::int64_t count, DataType dtype,
                                  ReduceOp op, Deadline deadline = {}) noexcept;
  // `out` is used on the root only, and may be null on other ranks.
  [[nodiscard]] Status reduce(const void* in, void* out, std::int64_t count, DataType dtype,
                              ReduceOp op, int root, Deadline deadline = {}) noexcept;
  [[nodiscard]] Status broadcast(void* data, std::int64_t count, DataType dtype, int root,
                                 Deadline deadline = {}) noexcept;
  // The root receives counts[r] elements of each rank r, in rank order; `in` of this rank has
  // counts[rank] elements, and may be their part of `out`. `out` is used on the root only.
  [[nodiscard]] Status gather_v(const void* in, void* out, Counts counts, DataType dtype, int root,
                                Deadline deadline = {}) noexcept;
  // Rank r receives its counts[r] elements of the root's `in`, which is used on the root only.
  // `out` of the root may be its part of `in`.
  [[nodiscard]] Status scatter_v(const void* in, void* out, Counts counts, DataType dtype, int root,
                                 Deadline deadline = {}) noexcept;
  [[nodiscard]] Status barrier(Deadline deadline = {}) noexcept;

  // Memory of this rank that the other ranks of its node can read, not initialised, aligned to 4
  // KiB. Local, any thread. Data of all_gather_v, reduce_scatter_v and broadcast that lie there and
  // do not fit the caches are read in place: no rank of the node copies them into its window. For
  // other calls it is memory like any other. It outlives this object, and is handed out again when
  // the last copy of the pointer is gone. Throws Error(kCapacity) when this many bytes in a row are
  // not left of shared_bytes, or the machine has no memory for them.
  std::shared_ptr<void> allocate(std::int64_t bytes) const;

  // Call in place of a collective on a rank that cannot make it. Returns `why` on this rank; the
  // calls of the other ranks return kPeerRejected.
  [[nodiscard]] Status refuse(const Status& why) noexcept;

  // The latest ten calls of a rank, as far as this rank knows: "4: broadcast of fp32, 3 elements,
  // root 0". Call it when no call is in progress, as after an error. Throws Error.
  std::vector<std::string> latest_calls(int rank) const;

  // Messages of one rank to another with one tag arrive in order. send returns when the message has
  // been copied; for a small message it does not wait for the receiver. A rank keeps up to 64 MiB
  // of each sender that no receive wants yet; from then on the sender waits. A message of another
  // size or type than the receiver expects is kMismatch at the receiver, and stays for the next
  // recv.
  [[nodiscard]] Status send(const void* data, std::int64_t count, DataType dtype, int peer,
                            std::int64_t tag, Deadline deadline = {}) noexcept;
  // `peer`: the sender; -1: any rank, whose number is written to `source` (may be null).
  [[nodiscard]] Status recv(void* data, std::int64_t count, DataType dtype, int peer,
                            std::int64_t tag, int* source = nullptr,
                            Deadline deadline = {}) noexcept;

  // Begin a send or a receive and return. The message moves while this rank is in progress(), send
  // or recv. `data` belong to the message until it has ended. Sends to one rank arrive in the order
  // in which they began; a message goes to the first receive with its sender (or -1) and its tag.
  // Both may be called while another thread is in progress(), which then also moves these messages.
  Message begin_send(const void* data, std::int64_t count, DataType dtype, int peer,
                     std::int64_t tag, Deadline deadline = {}) noexcept;
  Message begin_recv(void* data, std::int64_t count, DataType dtype, int peer, std::int64_t tag,
                     Deadline deadline = {}) noexcept;
  // Moves the messages that were begun. Returns when one of them has ended or none is left; without
  // `waits` at once. After an error the group is broken or the view is over, and all messages have
  // ended with that error.
  [[nodiscard]] Status progress(bool waits = true) noexcept;

 private:
  friend class internal::CollectivesState;
  std::shared_ptr<internal::CollectivesState> state_;
};

}  // namespace ferry

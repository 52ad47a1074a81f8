// StoreChoice: ordinary or streaming stores for the rows of an operation. Ordinary stores first
// read the line that they overwrite; streaming ones do not, but throw it out of the caches, and who
// reads it fetches it again. Which are better depends on how much of the last-level cache this job
// has to itself, and no system file says that: other tenants of the machine fill it too. So a rank
// tries both with its first dispatches of a size and the combines that follow, and keeps what took
// it less (docs/decisions/streaming_stores.md). One trial can be wrong, as others disturb it: the
// choice changes when two in a row say so. One per exchange; a later exchange of the process starts
// from what an earlier one found (learned_stores.h). send_rows.cc and combine.cc measure.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "exchange/workers/learned_stores.h"
#include "kernels/kernels.h"

namespace ferry::internal {

class StoreChoice {
 public:
  enum Phase : std::uint8_t { kSend, kReduce };

  // Rows of at most `private_bytes`, on all ranks together, fit caches that nobody else uses: they
  // take ordinary stores. So do larger ones up to two to four times `shared_bytes`, the last-level
  // caches, until trials have shown what is best. Results of trials are read from `learned` and
  // kept there; null: there are no trials.
  StoreChoice(std::uint64_t private_bytes, std::uint64_t shared_bytes,
              LearnedStores* learned) noexcept
      : private_bytes_(private_bytes), shared_bytes_(shared_bytes), learned_(learned) {}

  // A dispatch begins at `now_ns`, of rows of `bytes` on all ranks together. Returns stores(bytes).
  Stores begin(std::uint64_t bytes, std::int64_t now_ns) noexcept;

  // For such rows: what is best, or what is tried now.
  Stores stores(std::uint64_t bytes) const noexcept;
  // Whether they are tried now.
  bool trying(std::uint64_t bytes) const noexcept;

  // Does `work` for the last dispatch of such rows, or for its combine: on `mine` bytes, those of
  // this rank.
  template <typename Work>
  void measure(Phase phase, std::uint64_t bytes, std::uint64_t mine, const Work& work) {
    took(phase, bytes, mine, time(bytes, work));
  }
  // The same in parts: the nanoseconds of one, 0 without a trial, and then those of all.
  template <typename Work>
  std::int64_t time(std::uint64_t bytes, const Work& work) const {
    const std::int64_t began = trying(bytes) ? thread_ns() : 0;
    work();
    return began > 0 ? thread_ns() - began : 0;
  }
  void took(Phase phase, std::uint64_t bytes, std::uint64_t mine, std::int64_t ns) noexcept;

 private:
  // Dispatches of a size, to a factor of two: first some with one kind of stores, then some with
  // the other.
  struct Size {
    Stores choice = Stores::kCached;  // at first that of the caches
    bool doubted = false;             // the last trial was against the choice
    int dispatches = 0;               // since the trial began
    std::int64_t tried_ns = 0;        // when it did
    std::array<std::array<double, 2>, 2> fastest =
        {};  // [Stores][Phase] ns per byte; 0: not measured
    bool known() const noexcept;
    Stores faster() const noexcept;
    void begin_trial() noexcept;
    void end_trial() noexcept;
  };
  Stores by_caches(std::uint64_t bytes) const noexcept;
  void begin_size(std::uint64_t bytes, std::int64_t now_ns) noexcept;
  std::optional<Stores> found(int bits) const noexcept;
  // Processor time of this thread: what other ranks on the same processor take is not in it.
  static std::int64_t thread_ns() noexcept;

  std::uint64_t private_bytes_, shared_bytes_;
  LearnedStores* learned_;
  std::array<Size, LearnedStores::kSizes> sizes_ = {};  // [bits of the bytes]
};

}  // namespace ferry::internal

// StoreChoice: ordinary or streaming stores for the rows of an operation. Ordinary stores first
// read the line that they overwrite. Streaming ones do not, but evict the line from the caches, so
// that a later read fetches it again. Which are faster depends on the part of the last-level cache
// that this job can use, which no system file gives, since other tenants of the machine use it too.
// So a rank tries both with its first dispatches of a size and the combines after them, and keeps
// the faster one (docs/decisions/streaming_stores.md). Other programs may disturb a trial, so the
// choice changes only when two trials in a row agree. There is one per exchange; a later exchange
// of the process starts from the results of earlier ones (learned_stores.h). send_rows.cc and
// combine.cc measure.
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

  // Rows of at most `private_bytes`, on all ranks together, fit caches that no other program uses:
  // they take ordinary stores. Where no trial has ended, larger ones take them too, up to two to
  // four times `shared_bytes`, the last-level caches. Results of trials are read from `learned` and
  // written to it; null: there are no trials.
  StoreChoice(std::uint64_t private_bytes, std::uint64_t shared_bytes,
              LearnedStores* learned) noexcept
      : private_bytes_(private_bytes), shared_bytes_(shared_bytes), learned_(learned) {}

  // A dispatch begins at `now_ns`, of rows of `bytes` on all ranks together. Returns stores(bytes).
  Stores begin(std::uint64_t bytes, std::int64_t now_ns) noexcept;

  // The stores for rows of this size: the best ones, or those that are tried now.
  Stores stores(std::uint64_t bytes) const noexcept;
  // Whether a trial of this size is in progress.
  bool trying(std::uint64_t bytes) const noexcept;

  // Runs and measures `work` of the last dispatch of such rows, or of its combine, on the `mine`
  // bytes of this rank.
  template <typename Work>
  void measure(Phase phase, std::uint64_t bytes, std::uint64_t mine, const Work& work) {
    took(phase, bytes, mine, time(bytes, work));
  }
  // The same for work in parts: time() returns the nanoseconds of one part, or 0 without a trial;
  // took() gets the sum.
  template <typename Work>
  std::int64_t time(std::uint64_t bytes, const Work& work) const {
    const std::int64_t began = trying(bytes) ? thread_ns() : 0;
    work();
    return began > 0 ? thread_ns() - began : 0;
  }
  void took(Phase phase, std::uint64_t bytes, std::uint64_t mine, std::int64_t ns) noexcept;

 private:
  // The dispatches of one size, to a factor of two. In a trial a number of them have one kind of
  // stores, and then as many the other kind.
  struct Size {
    Stores choice = Stores::kCached;  // at first by the size of the caches
    bool doubted = false;             // the last trial was against the choice
    int dispatches = 0;               // dispatches since the trial began
    std::int64_t tried_ns = 0;        // time when the trial began
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
  // Processor time of this thread, without that of other ranks on the same processor.
  static std::int64_t thread_ns() noexcept;

  std::uint64_t private_bytes_, shared_bytes_;
  LearnedStores* learned_;
  std::array<Size, LearnedStores::kSizes> sizes_ = {};  // [bits of the bytes]
};

}  // namespace ferry::internal

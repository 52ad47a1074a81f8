#include "exchange/workers/store_choice.h"

#include <time.h>

#include <algorithm>
#include <bit>

namespace ferry::internal {

namespace {

// In the first dispatches of a trial the caches still have the contents that the other stores left:
// for 17 MiB of rows this took four dispatches to change. So each kind of stores has eight
// dispatches, of which the first does not count, and the fastest of the others does.
constexpr int kTrial = 8;

// Other tenants come and go, so the trials are repeated, after a thousand dispatches and at least a
// second. Eight dispatches of each trial then have the slower stores.
constexpr int kTryAgain = 1000;
constexpr std::int64_t kTryAgainNs = 1'000'000'000;

// Where no trial has ended, rows of more than this many times the last-level caches get streaming
// stores. Measured on machines on which the job alone used the last-level cache.
constexpr std::uint64_t kStreamingCaches = 2;

Stores opposite(Stores stores) noexcept {
  return stores == Stores::kCached ? Stores::kStreaming : Stores::kCached;
}

}  // namespace

std::int64_t StoreChoice::thread_ns() noexcept {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return t.tv_sec * 1'000'000'000LL + t.tv_nsec;
}

bool StoreChoice::Size::known() const noexcept { return dispatches > 2 * kTrial; }

void StoreChoice::Size::begin_trial() noexcept {
  dispatches = 1;
  fastest = {};
}

void StoreChoice::Size::end_trial() noexcept {
  const bool against = faster() != choice;
  if (against && doubted) choice = opposite(choice);
  if (against && !doubted) begin_trial();
  doubted = against && !doubted;
}

Stores StoreChoice::Size::faster() const noexcept {
  const auto& streaming = fastest[static_cast<int>(Stores::kStreaming)];
  const auto& cached = fastest[static_cast<int>(Stores::kCached)];
  double gain = 0;
  for (const Phase phase : {kSend, kReduce})
    if (streaming[phase] > 0 && cached[phase] > 0) gain += cached[phase] - streaming[phase];
  return gain > 0 ? Stores::kStreaming : Stores::kCached;
}

// The result is equal for all rows of a size.
Stores StoreChoice::by_caches(std::uint64_t bytes) const noexcept {
  return std::bit_floor(bytes) > kStreamingCaches * shared_bytes_ ? Stores::kStreaming
                                                                  : Stores::kCached;
}

Stores StoreChoice::begin(std::uint64_t bytes, std::int64_t now_ns) noexcept {
  if (learned_ != nullptr && bytes > private_bytes_) {
    const int bits = std::bit_width(bytes);
    Size& size = sizes_[bits];
    if (size.dispatches == 0) begin_size(bytes, now_ns);
    const bool again = ++size.dispatches > kTryAgain && now_ns - size.tried_ns >= kTryAgainNs;
    if (again) size.begin_trial();
    if (size.dispatches == 1) size.tried_ns = now_ns;
    if (size.dispatches == 2 * kTrial + 1) size.end_trial();
    if (size.dispatches == 2 * kTrial + 1) learned_->keep(bits, size.choice);
  }
  return stores(bytes);
}

// If the process has learned the faster stores for this size, this exchange skips its first trial.
void StoreChoice::begin_size(std::uint64_t bytes, std::int64_t now_ns) noexcept {
  const int bits = std::bit_width(bytes);
  Size& size = sizes_[bits];
  const std::optional<Stores> learned = learned_->find(bits);
  size.choice = learned.value_or(by_caches(bytes));
  if (learned) size.dispatches = 2 * kTrial + 1;
  size.tried_ns = now_ns;
}

bool StoreChoice::trying(std::uint64_t bytes) const noexcept {
  const Size& size = sizes_[std::bit_width(bytes)];
  return bytes > private_bytes_ && size.dispatches > 0 && !size.known();
}

// The result of trials of this exchange, or else of the process.
std::optional<Stores> StoreChoice::found(int bits) const noexcept {
  if (sizes_[bits].known()) return sizes_[bits].choice;
  return learned_ != nullptr ? learned_->find(bits) : std::nullopt;
}

Stores StoreChoice::stores(std::uint64_t bytes) const noexcept {
  if (bytes <= private_bytes_) return by_caches(bytes);
  const int bits = std::bit_width(bytes);
  const Size& size = sizes_[bits];
  if (trying(bytes))
    return size.dispatches > kTrial ? opposite(by_caches(bytes)) : by_caches(bytes);
  if (const std::optional<Stores> best = found(bits)) return *best;
  // If fewer rows did not fit the caches, these do not either.
  for (int less = 0; less < bits; ++less)
    if (found(less) == Stores::kStreaming) return Stores::kStreaming;
  return by_caches(bytes);
}

void StoreChoice::took(Phase phase, std::uint64_t bytes, std::uint64_t mine,
                       std::int64_t ns) noexcept {
  if (!trying(bytes) || mine == 0) return;
  Size& size = sizes_[std::bit_width(bytes)];
  if ((size.dispatches - 1) % kTrial == 0) return;
  double& fastest = size.fastest[static_cast<int>(stores(bytes))][phase];
  const double now = static_cast<double>(ns) / static_cast<double>(mine);
  fastest = fastest == 0 ? now : std::min(fastest, now);
}

}  // namespace ferry::internal

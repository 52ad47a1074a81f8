// SumsInbox: memory for the sums that this rank has requested from others, laid out before they
// arrive, and the flags for their arrival. Any thread may call it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace ferry::internal {

// The sums of one combine from one mate, for this rank or for a rank that it serves.
struct IncomingSums {
  std::uint64_t number = 0;
  int source = 0, mate = 0;  // the rank that needs the sums; the rank that sends them
  std::unique_ptr<std::byte[]> memory = {};
  std::size_t size = 0, capacity = 0;
  std::atomic<std::size_t> filled{0};  // bytes that have arrived

  // Acquire: the bytes may be read. Partner: SumsInbox::take().
  std::size_t come() const noexcept { return filled.load(std::memory_order_acquire); }
  bool whole() const noexcept { return come() == size; }
};

class SumsInbox {
 public:
  explicit SumsInbox(int num_ranks) : summed_(num_ranks) {}

  // Returns memory for `bytes` from `mate`. It is valid until forget() or begin_view().
  const IncomingSums& expect(std::uint64_t number, int source, int mate, std::size_t bytes);
  void forget(std::uint64_t number, int source);
  void begin_view(std::uint64_t last);  // SumServer::begin_view
  // Stores the next bytes from `mate`. True if the sums for `source` are now complete.
  bool take(std::uint64_t number, int source, int mate, std::span<const std::byte> bytes);
  bool whole(std::uint64_t number, int source, int mate) const;
  // [ranks] the last combine whose sums for this rank each mate has sent; kDeparted: no more come.
  const std::vector<std::atomic<std::uint64_t>>& summed() const noexcept { return summed_; }
  void raise_summed(int mate, std::uint64_t number) noexcept;

 private:
  mutable std::mutex mutex_;  // for the next two members; sums are read without it
  std::list<IncomingSums> expected_;
  std::vector<std::pair<std::size_t, std::unique_ptr<std::byte[]>>> spare_;  // for reuse
  std::vector<std::atomic<std::uint64_t>> summed_;
};

}  // namespace ferry::internal

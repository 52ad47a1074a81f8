// Segment: one shared mapping (a memfd), reserved virtually and backed with memory piece by piece.
// Owns the descriptor and the mapping. A segment has no name in any file system, so no file remains
// however its processes end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace ferry::internal {

class Segment {
 public:
  // Address and file offset are both aligned to this, as huge pages need.
  static constexpr std::size_t kHugePage = std::size_t{2} << 20;

  // A new sparse segment. Throws Error(kSystem) naming the bytes when address space or the file is
  // refused.
  static std::shared_ptr<Segment> create(std::size_t bytes);
  // Maps a segment that another process created. Takes ownership of `fd`, and closes it on failure
  // too.
  static std::shared_ptr<Segment> attach(int fd, std::size_t bytes);

  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  std::byte* data() const noexcept { return data_; }
  std::size_t bytes() const noexcept { return bytes_; }
  int fd() const noexcept { return fd_; }
  // A number that no other segment of this host has, equal in all processes that map this one.
  std::uint64_t id() const;

  // Backs [offset, offset + length) with memory on the caller's NUMA node, in huge pages where the
  // kernel allows, and maps it in this process. Returns false if memory is refused. The caller then
  // does not use the range, so no access ends in SIGBUS.
  bool commit(std::size_t offset, std::size_t length) noexcept;

  // Maps memory that another process committed, so that the first exchange takes no page faults.
  void map_in(std::size_t offset, std::size_t length) noexcept;

 private:
  Segment(int fd, std::byte* data, std::size_t bytes) : fd_(fd), data_(data), bytes_(bytes) {}

  int fd_;
  std::byte* data_;
  std::size_t bytes_;
};

}  // namespace ferry::internal

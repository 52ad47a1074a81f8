// Reserving, backing and mapping of one memfd.
#include "memory/segment.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "base/check.h"
#include "base/round_up.h"
#include "base/waiting.h"
#include "ferry/status.h"
#include "memory/available.h"

namespace ferry::internal {
namespace {

// Constants of newer kernels, which Debian 12's headers or the oldest supported kernel may lack.
constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, Linux 5.14
constexpr int kCollapse = 25;       // MADV_COLLAPSE, Linux 6.1

// Memory is requested and checked in pieces, because several ranks may grow at the same time.
constexpr std::size_t kPiece = 32 * Segment::kHugePage;
// Memory that ferry does not take, for the other processes of the machine.
constexpr std::uint64_t kReserve = std::uint64_t{64} << 20;

std::size_t page_bytes() noexcept {
  static const std::size_t bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

std::size_t round_down(std::size_t value, std::size_t unit) noexcept { return value / unit * unit; }

// The file and the mapping are whole huge pages; bytes() is the size that was requested.
std::size_t mapped_bytes(std::size_t bytes) noexcept { return round_up(bytes, Segment::kHugePage); }

Error refused(const char* what, std::size_t bytes, int error) {
  return Error(Code::kSystem, fmt::format("a shared segment of {} bytes was refused: {}: {}", bytes,
                                          what, std::strerror(error)));
}

void check_bytes(std::size_t bytes) {
  constexpr std::size_t kMost = std::size_t{1} << 62;
  if (bytes == 0 || bytes > kMost) {
    throw Error(Code::kInvalidArgument,
                fmt::format("a shared segment has 1 to {} bytes, {} were requested", kMost, bytes));
  }
}

int create_file(std::size_t bytes) {
  // A size over this limit would end the process with SIGXFSZ.
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      mapped_bytes(bytes) > limit.rlim_cur) {
    throw Error(
        Code::kSystem,
        fmt::format("a shared segment of {} bytes was refused: the limit on file size is {} "
                    "bytes (ulimit -f)",
                    bytes, limit.rlim_cur));
  }
  const int fd = memfd_create("ferry", MFD_CLOEXEC);
  if (fd < 0) throw refused("memfd_create", bytes, errno);
  if (ftruncate(fd, static_cast<off_t>(mapped_bytes(bytes))) != 0) {
    const int error = errno;
    close(fd);
    throw refused("ftruncate", bytes, error);
  }
  return fd;
}

// Maps the file at an address aligned to a huge page. Null, with errno, when refused.
std::byte* map_aligned(int fd, std::size_t bytes) noexcept {
  const std::size_t room = bytes + Segment::kHugePage;
  void* reserved =
      mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return nullptr;
  auto* begin = static_cast<std::byte*>(reserved);
  const std::size_t head = round_up(reinterpret_cast<std::uintptr_t>(begin), Segment::kHugePage) -
                           reinterpret_cast<std::uintptr_t>(begin);
  std::byte* data = begin + head;
  if (mmap(data, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
    const int error = errno;
    munmap(reserved, room);
    errno = error;
    return nullptr;
  }
  if (head > 0) munmap(begin, head);
  if (head < Segment::kHugePage) munmap(data + bytes, Segment::kHugePage - head);
  madvise(data, bytes, MADV_HUGEPAGE);  // needed if the kernel's shmem_enabled is `advise`
  return data;
}

int retrying_madvise(std::byte* begin, std::size_t length, int advice) noexcept {
  int result = 0;
  do {
    result = madvise(begin, length, advice);
  } while (result != 0 && errno == EINTR);
  return result;
}

// Maps pages by reading them, on kernels without MADV_POPULATE_WRITE. All these pages exist in the
// file already.
void read_pages(const std::byte* begin, std::size_t length) noexcept {
  for (std::size_t at = 0; at < length; at += page_bytes()) {
    static_cast<void>(*reinterpret_cast<const volatile std::byte*>(begin + at));
  }
}

std::size_t missing_bytes(std::byte* begin, std::size_t length) noexcept {
  unsigned char present[kPiece / 4096];
  const std::size_t pages = length / page_bytes();
  if (mincore(begin, length, present) != 0) return length;
  const auto found =
      std::count_if(present, present + pages, [](unsigned char page) { return (page & 1) != 0; });
  return (pages - static_cast<std::size_t>(found)) * page_bytes();
}

// The bytes of memory of the whole file.
std::size_t file_bytes(int fd) noexcept {
  struct stat file {};
  return fstat(fd, &file) == 0 ? static_cast<std::size_t>(file.st_blocks) * 512 : 0;
}

// Makes huge pages where the kernel allows. The kernel collapses only ranges that have a page, so
// this makes one page in each first. After a refusal the pages stay small.
void collapse(std::byte* begin, std::size_t length) noexcept {
  const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(begin);
  const std::size_t head = round_up(address, Segment::kHugePage) - address;
  if (head >= length) return;
  const std::size_t whole = round_down(length - head, Segment::kHugePage);
  if (whole == 0) return;
  for (std::size_t at = 0; at < whole; at += Segment::kHugePage) {
    if (retrying_madvise(begin + head + at, page_bytes(), kPopulateWrite) != 0) return;
  }
  retrying_madvise(begin + head, whole, kCollapse);
}

std::size_t piece_end(std::size_t at, std::size_t end) noexcept {
  return std::min(end, round_down(at, kPiece) + kPiece);
}

// The available memory without the reserve.
std::uint64_t available_to_ranks() {
  const std::uint64_t available = available_memory();
  return available > kReserve ? available - kReserve : 0;
}

bool is_available(std::size_t bytes) noexcept {
  thread_local MemoryAllowance allowance;
  if (bytes == 0) return true;
  try {
    return allowance.take(bytes, now_ns(), available_to_ranks);
  } catch (...) {
    return false;  // no memory is available for reading the files
  }
}

// Backs a piece with pages and maps it. Contents are kept.
bool back(int fd, std::byte* begin, std::size_t offset, std::size_t length) noexcept {
  collapse(begin, length);
  if (retrying_madvise(begin, length, kPopulateWrite) == 0) return true;
  if (errno != EINVAL) return false;
  // A kernel before 5.14: allocate in the file, which fails without SIGBUS, then map.
  if (fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(length)) != 0) return false;
  read_pages(begin, length);
  return true;
}

}  // namespace

std::shared_ptr<Segment> Segment::create(std::size_t bytes) {
  check_bytes(bytes);
  return attach(create_file(bytes), bytes);
}

std::shared_ptr<Segment> Segment::attach(int fd, std::size_t bytes) {
  struct stat file {};
  if (fstat(fd, &file) != 0 || static_cast<std::size_t>(file.st_size) < mapped_bytes(bytes)) {
    close(fd);
    throw refused("the file is shorter", bytes, EINVAL);
  }
  std::byte* data = map_aligned(fd, mapped_bytes(bytes));
  if (data == nullptr) {
    const int error = errno;
    close(fd);
    throw refused("mmap", bytes, error);
  }
  std::shared_ptr<Segment> segment(new Segment(fd, data, bytes));
  FERRY_CHECK(reinterpret_cast<std::uintptr_t>(data) % kHugePage, ==, 0U);
  return segment;
}

std::uint64_t Segment::id() const {
  struct stat status {};
  if (fstat(fd_, &status) != 0) throw refused("fstat", bytes_, errno);
  return status.st_ino;
}

Segment::~Segment() {
  munmap(data_, mapped_bytes(bytes_));
  close(fd_);
}

bool Segment::commit(std::size_t offset, std::size_t length) noexcept {
  if (offset > bytes_ || length > bytes_ - offset) return false;
  const std::size_t begin = round_down(offset, page_bytes());
  const std::size_t end = round_up(offset + length, page_bytes());
  // A lower bound of the missing memory. Below, the missing pages of each piece are counted.
  if (!is_available((end - begin) - std::min(end - begin, file_bytes(fd_)))) return false;
  std::size_t fresh = begin;  // all pieces from here on had no page before this call
  for (std::size_t at = begin; at < end;) {
    const std::size_t next = piece_end(at, end);
    const std::size_t missing = missing_bytes(data_ + at, next - at);
    // Checked again for each piece: other ranks commit at the same time.
    if (!is_available(missing) || !back(fd_, data_ + at, at, next - at)) {
      if (missing < next - at) fresh = next;
      fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(fresh),
                static_cast<off_t>(next - fresh));
      return false;
    }
    if (missing < next - at) fresh = next;
    at = next;
  }
  return true;
}

void Segment::map_in(std::size_t offset, std::size_t length) noexcept {
  if (offset > bytes_ || length > bytes_ - offset) return;
  const std::size_t begin = round_down(offset, page_bytes());
  const std::size_t bytes = round_up(offset + length, page_bytes()) - begin;
  if (bytes == 0) return;
  if (retrying_madvise(data_ + begin, bytes, kPopulateWrite) != 0 && errno == EINVAL) {
    read_pages(data_ + begin, bytes);
  }
}

}  // namespace ferry::internal

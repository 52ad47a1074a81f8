#include "exchange/trace/trace_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <memory>

#include "ferry/status.h"

namespace ferry::internal {

namespace {

template <typename T>
iovec piece_of(T& object) noexcept {
  return {&object, sizeof object};
}

// Writes all pieces, or returns false.
bool write_all(int file, std::span<iovec> pieces) noexcept {
  while (!pieces.empty()) {
    const ssize_t written = writev(file, pieces.data(), static_cast<int>(pieces.size()));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    std::size_t bytes = static_cast<std::size_t>(written);
    while (!pieces.empty() && bytes >= pieces.front().iov_len) {
      bytes -= pieces.front().iov_len;
      pieces = pieces.subspan(1);
    }
    if (pieces.empty()) break;
    pieces.front().iov_base = static_cast<std::byte*>(pieces.front().iov_base) + bytes;
    pieces.front().iov_len -= bytes;
  }
  return true;
}

[[noreturn]] void refuse_file(const std::string& name, const std::string& reason) {
  throw Error(Code::kInvalidArgument,
              fmt::format("FERRY_TRACE: cannot write '{}': {}", name, reason));
}

// Does not follow symbolic links, and does not wait for the reader of a pipe: the name may be in a
// directory that others can write to.
Descriptor make_file(const std::string& name) {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  Descriptor file(::open(name.c_str(), kFlags, 0644));
  if (!file) refuse_file(name, std::strerror(errno));
  if (flock(file.fd(), LOCK_EX | LOCK_NB) != 0)
    refuse_file(name, "another process writes it, so two ranks of the job have the same number");
  if (ftruncate(file.fd(), 0) != 0) refuse_file(name, std::strerror(errno));
  return file;
}

}  // namespace

TraceFile& TraceFile::open(const std::string& name, int rank, std::uint64_t from) {
  static std::mutex mutex;
  static auto& files = *new std::map<std::string, std::unique_ptr<TraceFile>>();  // never destroyed
  const std::scoped_lock lock(mutex);
  std::unique_ptr<TraceFile>& file = files[name];
  if (!file) file = std::make_unique<TraceFile>(name, rank, from);
  return *file;
}

TraceFile::TraceFile(const std::string& name, int rank, std::uint64_t from)
    : name_(name), from_(from), file_(make_file(name)) {
  TraceHead head{.rank = rank};
  iovec piece = piece_of(head);
  if (!write_all(file_.fd(), {&piece, 1})) refuse_file(name, std::strerror(errno));
  bytes_ = sizeof head;
}

std::uint32_t TraceFile::next_exchange() noexcept {
  const std::scoped_lock lock(mutex_);
  return num_exchanges_++;
}

bool TraceFile::wants_detail() noexcept {
  const std::scoped_lock lock(mutex_);
  return num_records_ >= from_ && bytes_ < kTraceDetailBytes;
}

void TraceFile::append(TraceRecord record, std::span<const std::byte> detail) noexcept {
  const std::scoped_lock lock(mutex_);
  ++num_records_;
  if (!file_) return;
  record.detail_bytes = detail.size();
  iovec pieces[2] = {piece_of(record), {const_cast<std::byte*>(detail.data()), detail.size()}};
  const std::uint64_t bytes = sizeof record + detail.size();
  if (bytes_ + bytes > kTraceMostBytes || !write_all(file_.fd(), pieces)) {
    file_ = Descriptor();
    return;
  }
  bytes_ += bytes;
}

}  // namespace ferry::internal

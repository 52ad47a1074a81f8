// Reads pipes and writes whole lines with their prefix; see output.h.
#include "tools/launch/output.h"

#include <fmt/format.h>
#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace ferry::tools {

void Output::add(std::string_view prefix, std::string_view head, std::string_view tail) {
  if (error_ != 0) return;
  pending_.append(prefix).append(head).append(tail).push_back('\n');
}

void Output::flush() {
  std::size_t written = 0;
  while (written < pending_.size()) {
    // The shell may share stdout, so it must stay blocking. A write of PIPE_BUF bytes does not
    // block if poll says that the pipe is writable.
    pollfd ready{fd_, POLLOUT, 0};
    if (poll(&ready, 1, 0) <= 0) break;
    const ssize_t put = write(fd_, pending_.data() + written,
                              std::min<std::size_t>(pending_.size() - written, PIPE_BUF));
    if (put < 0 && (errno == EAGAIN || errno == EINTR)) break;
    if (put < 0) {
      error_ = errno;
      written = pending_.size();
    } else {
      written += static_cast<std::size_t>(put);
    }
  }
  pending_.erase(0, written);
}

bool LineStream::read(bool last) {
  if (fd() < 0) return false;
  std::array<char, 65536> buffer;
  const ssize_t got = ::read(pipe_.fd(), buffer.data(), buffer.size());
  if (got > 0) {
    take({buffer.data(), static_cast<std::size_t>(got)});
  } else if (got == 0 || last || (errno != EAGAIN && errno != EINTR)) {
    close();
  }
  // If the output has failed, the pipe is closed. The rank then gets SIGPIPE, as it would without a
  // launcher.
  if (output_->error() != 0) pipe_ = {};
  return got > 0;
}

void LineStream::take(std::string_view bytes) {
  for (std::size_t end; (end = bytes.find('\n')) != std::string_view::npos;
       bytes.remove_prefix(end + 1)) {
    end_line(bytes.substr(0, end));
  }
  partial_.append(bytes);
  if (partial_.size() >= kLongestLine) end_line("");
}

void LineStream::end_line(std::string_view tail) {
  if (edit_) {
    partial_.append(tail);
    if (const auto line = edit_(partial_)) output_->add(prefix_, *line, "");
  } else {
    output_->add(prefix_, partial_, tail);
  }
  partial_.clear();
}

void LineStream::close() {
  if (!partial_.empty()) end_line("");
  pipe_ = {};
}

}  // namespace ferry::tools

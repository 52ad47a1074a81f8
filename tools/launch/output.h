// The output of the children of a launch, line by line: LineStream reads the pipe of one child and
// gives whole lines to an Output, which writes to the launcher's stdout or stderr without ever
// blocking the launcher.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/descriptor.h"

namespace ferry::tools {

class Output {
 public:
  explicit Output(int fd) : fd_(fd) {}

  void add(std::string_view prefix, std::string_view head, std::string_view tail);
  // Writes as many bytes as the reader takes without blocking.
  void flush();

  int fd() const noexcept { return fd_; }
  bool empty() const noexcept { return pending_.empty(); }
  // Whether the reader is too slow. Until it has read enough, no pipe of a child is read, so that
  // ranks wait as they would without a launcher.
  bool congested() const noexcept { return pending_.size() >= kMostPending; }
  // The errno of the write that failed, or 0. After a failure nothing is written. EPIPE means that
  // the output has no reader.
  int error() const noexcept { return error_; }

 private:
  static constexpr std::size_t kMostPending = std::size_t{1} << 20;

  int fd_;
  std::string pending_;
  int error_ = 0;
};

class LineStream {
 public:
  // Changes a line before it is shown, or returns nothing, and then the line is not shown.
  using Edit = std::function<std::optional<std::string_view>(std::string_view line)>;

  LineStream(internal::Descriptor pipe, std::string prefix, Output& output, Edit edit = {})
      : pipe_(std::move(pipe)),
        prefix_(std::move(prefix)),
        output_(&output),
        edit_(std::move(edit)) {}

  void set_prefix(std::string prefix) { prefix_ = std::move(prefix); }
  bool open() const noexcept { return pipe_.fd() >= 0; }
  // The descriptor for poll(2). It is negative while the output is congested.
  int fd() const noexcept { return output_->congested() ? -1 : pipe_.fd(); }
  // Reads some bytes of the pipe, unless the output is congested. Returns false when it read
  // nothing. Closes the pipe at the end of the stream. `last` says that the pipe has no writer any
  // more, so that an empty pipe is at its end.
  bool read(bool last);

 private:
  void take(std::string_view bytes);
  void end_line(std::string_view tail);
  void close();

  // A line that is longer than this is cut, which bounds the memory.
  static constexpr std::size_t kLongestLine = std::size_t{16} << 20;

  internal::Descriptor pipe_;
  std::string prefix_;
  Output* output_;
  Edit edit_;
  std::string partial_;  // the line that has not ended yet
};

}  // namespace ferry::tools

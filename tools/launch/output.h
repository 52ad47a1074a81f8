// What children of a launch print, line by line: LineStream reads the pipe of one child and gives
// whole lines to an Output, which writes to the launcher's stdout or stderr without ever blocking
// the launcher.
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
  // Writes as much as the reader takes now.
  void flush();

  int fd() const noexcept { return fd_; }
  bool empty() const noexcept { return pending_.empty(); }
  // The reader is slow: pipes are not read until it has caught up, so that ranks wait as they would
  // without a launcher.
  bool congested() const noexcept { return pending_.size() >= kMostPending; }
  // The errno of the write that failed, after which nothing is written: EPIPE where the output has
  // no reader any more. 0: none failed.
  int error() const noexcept { return error_; }

 private:
  static constexpr std::size_t kMostPending = std::size_t{1} << 20;

  int fd_;
  std::string pending_;
  int error_ = 0;
};

class LineStream {
 public:
  // Changes a line before it is shown; nothing: the line is not shown.
  using Edit = std::function<std::optional<std::string_view>(std::string_view line)>;

  LineStream(internal::Descriptor pipe, std::string prefix, Output& output, Edit edit = {})
      : pipe_(std::move(pipe)),
        prefix_(std::move(prefix)),
        output_(&output),
        edit_(std::move(edit)) {}

  bool open() const noexcept { return pipe_.fd() >= 0; }
  // For poll(2): negative while there is nothing to wait for.
  int fd() const noexcept { return output_->congested() ? -1 : pipe_.fd(); }
  // Takes some of what is there unless the output is congested; false when nothing was taken.
  // Closes at the end of the stream; `last`: the pipe has no writer any more, so an empty pipe is
  // the end, too.
  bool read(bool last);

 private:
  void take(std::string_view bytes);
  void end_line(std::string_view tail);
  void close();

  // A longer line is cut, which bounds memory.
  static constexpr std::size_t kLongestLine = std::size_t{16} << 20;

  internal::Descriptor pipe_;
  std::string prefix_;
  Output* output_;
  Edit edit_;
  std::string partial_;  // the line that has not ended yet
};

}  // namespace ferry::tools

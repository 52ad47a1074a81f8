// Passes a terminal's lines to rank 0. Called by launch_job.cc.
#include "launch_input.h"

#include <array>
#include <cerrno>

namespace ferry::tools {

void TerminalInput::read_terminal() {
  std::array<char, 4096> buffer;
  const ssize_t got = ::read(STDIN_FILENO, buffer.data(), buffer.size());
  if (got > 0) {
    pending_.assign(buffer.data(), static_cast<std::size_t>(got));
  } else if (got == 0 || errno != EINTR) {
    to_rank_ = {};  // end of input; a launcher in the background gets EIO, and rank 0 no input
  }
}

void TerminalInput::write_rank() {
  const ssize_t put = ::write(to_rank_.fd(), pending_.data(), pending_.size());
  if (put >= 0) {
    pending_.erase(0, static_cast<std::size_t>(put));
  } else if (errno != EAGAIN && errno != EINTR) {
    pending_.clear();
    to_rank_ = {};
  }
}

}  // namespace ferry::tools

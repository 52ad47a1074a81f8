// Rank 0's input when the launcher's stdin is a terminal: only the foreground process group may
// read a terminal, and ranks have groups of their own, so the launcher passes the lines on. Called
// by launch_job.cc.
#pragma once

#include <unistd.h>

#include <string>

#include "bootstrap/socket.h"

namespace ferry::tools {

class TerminalInput {
 public:
  TerminalInput() = default;  // nothing to pass on
  explicit TerminalInput(internal::Descriptor to_rank) : to_rank_(std::move(to_rank)) {}

  // For poll(2): negative while there is nothing to wait for.
  int terminal_fd() const noexcept { return to_rank_ && pending_.empty() ? STDIN_FILENO : -1; }
  int rank_fd() const noexcept { return pending_.empty() ? -1 : to_rank_.fd(); }

  void read_terminal();
  void write_rank();

 private:
  internal::Descriptor to_rank_;
  std::string pending_;
};

}  // namespace ferry::tools

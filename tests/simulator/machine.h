// Machine: what the ranks of a simulation share besides time: memory, which it may refuse, and what
// a process keeps for all its ranks. Each rank is a process of its own. Made by run.cc.
#pragma once

#include <functional>
#include <map>

#include "network/message_channel.h"

namespace ferry::test {

class Machine {
 public:
  Machine();
  ~Machine();
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;
  static Machine& current();

  std::function<bool()> refuses_memory = [] { return false; };
  int num_segments = 0;                               // that are alive
  std::map<int, internal::MessageChannel*> channels;  // of each rank
};

}  // namespace ferry::test

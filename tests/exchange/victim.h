// The fault of a rank in the fault tests: it stops or dies by a real signal at a chosen moment.
// Memory and /dev/shm are compared before and after.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>

#include "ferry/config.h"

namespace ferry::test {

// The exchange of the fault tests.
ExchangeConfig fault_config();

// Shared by all processes of a test.
struct Board {
  std::atomic<std::int64_t> struck_ns{0};  // when the victim was hit
  std::atomic<int> ready{0};               // ranks that are under way
  std::atomic<int> told{0};                // calls of tell(), such as by ranks that got their error
};

class SharedBoard {
 public:
  SharedBoard();
  ~SharedBoard();
  SharedBoard(const SharedBoard&) = delete;
  SharedBoard& operator=(const SharedBoard&) = delete;
  Board* operator->() const { return board_; }
  Board& operator*() const { return *board_; }

  void tell() const;  // one more rank got its error
  // Waits until `ranks` calls of tell() were made; ten seconds at most, in case ranks fail before.
  void await_told(int ranks) const;

 private:
  Board* board_;
};

// Hits this process with `signal` (SIGKILL or SIGSTOP) and notes the time. Returns after a SIGCONT.
void strike_self(Board& board, int signal);

// Memory whose second half strikes this process with `signal` when the engine first touches it, in
// the middle of a copy or a sum. After a SIGCONT the half is ordinary memory and the engine goes
// on.
class Trap {
 public:
  Trap(std::size_t bytes, Board& board, int signal);
  ~Trap();
  Trap(const Trap&) = delete;
  Trap& operator=(const Trap&) = delete;
  void* data() const { return data_; }
  // From here on a touch of the second half strikes.
  void arm();

 private:
  std::byte* data_;
  std::size_t bytes_;
};

std::int64_t now_ns();
// Bytes of shared memory on this machine.
std::int64_t shared_memory_in_use();
std::set<std::string> files_in_dev_shm();

}  // namespace ferry::test

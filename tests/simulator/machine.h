// Machine: the memory of the ranks of a simulation, which may be refused, and the state that a
// process keeps for all its ranks. Each rank is a process of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "memory/segment.h"
#include "simulator/kernel.h"

namespace ferry::internal {
class GroupState;
}

namespace ferry::test {

// Memory that ranks of one host share.
class Memory final : public Kernel::File {
 public:
  explicit Memory(std::size_t bytes);
  ~Memory() override;
  std::byte* data() const { return data_; }
  std::uint64_t number() const { return number_; }

 private:
  std::uint64_t number_;
  std::size_t bytes_;
  std::byte* data_;
};

class Machine {
 public:
  struct Mapping {
    const internal::Segment* segment;
    int rank;
    std::shared_ptr<Memory> memory;
  };

  Machine();
  ~Machine();
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;
  static Machine& current();
  // The first and the last of the mappings that a rank has; null: it has none.
  std::shared_ptr<Memory> first_mapped(int rank) const;
  std::shared_ptr<Memory> last_mapped(int rank) const;

  std::function<bool()> refuses_memory = [] { return false; };
  // Called when a rank backs bytes of a segment with memory.
  std::function<void(int rank, std::size_t bytes)> on_commit = [](int, std::size_t) {};
  std::vector<Mapping> mappings;                // in the order in which they were made
  std::map<int, internal::GroupState*> groups;  // of each rank
  std::uint64_t num_memories = 0;               // made so far
};

}  // namespace ferry::test

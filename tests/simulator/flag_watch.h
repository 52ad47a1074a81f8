// FlagWatch: flags in the shared memory of a simulation that must only grow.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "exchange/setup/record.h"
#include "group/shared_flags.h"
#include "memory/window_layout.h"
#include "simulator/machine.h"

namespace ferry::test {

class FlagWatch {
 public:
  // Those of a group's segment (SharedFlags). `memory`: null if the rank has none.
  void add_group(const std::shared_ptr<Memory>& memory, int num_ranks) {
    using internal::GroupSlot;
    const std::size_t slots = sizeof(internal::CountersHead);
    const std::size_t words = slots + static_cast<std::size_t>(num_ranks) * sizeof(GroupSlot);
    for (std::size_t peer = 0; memory && peer < static_cast<std::size_t>(num_ranks); ++peer) {
      const std::string of_rank = " of rank " + std::to_string(peer);
      const std::size_t slot = slots + peer * sizeof(GroupSlot);
      add("barrier" + of_rank, memory, slot + offsetof(GroupSlot, barrier));
      add("seat" + of_rank, memory, slot + offsetof(GroupSlot, seat));
      add("abort word" + of_rank, memory, words + peer * sizeof(std::uint64_t), true);
    }
  }

  void add_exchange(const std::shared_ptr<Memory>& memory, const internal::WindowLayout& layout,
                    int num_ranks) {
    for (int peer = 0; memory && peer < num_ranks; ++peer) {
      const std::string of_rank = " of rank " + std::to_string(peer);
      const std::size_t at = layout.control(peer);
      add("progress" + of_rank, memory, at);
      add("read_through" + of_rank, memory, at + offsetof(internal::ControlFlags, read_through));
    }
  }

  // Whether a flag has changed.
  bool look(std::vector<std::string>& wrong) {
    bool changed = false;
    for (Watched& one : watched_) {
      if (one.memory.expired()) continue;
      const std::uint64_t now = one.flag->load(std::memory_order_relaxed);  // one thread
      if (now == one.last) continue;
      if (now < one.last || (one.is_abort && !may_replace(one.last, now)))
        wrong.push_back(one.name + " went from " + std::to_string(one.last) + " to " +
                        std::to_string(now));
      one.last = now;
      changed = true;
    }
    return changed;
  }

 private:
  struct Watched {
    std::string name;
    std::weak_ptr<Memory> memory;
    const std::atomic<std::uint64_t>* flag;
    std::uint64_t last;
    bool is_abort;
  };

  // An abort word is set once in each view, and the mark that its rank has left once.
  static bool may_replace(std::uint64_t last, std::uint64_t now) {
    using internal::AbortWord;
    const auto view_of = [](std::uint64_t word) {
      return (word & ~AbortWord::kLeft) >> AbortWord::kViewShift;
    };
    return now == (last | AbortWord::kLeft) || view_of(now) > view_of(last);
  }

  void add(std::string name, const std::shared_ptr<Memory>& memory, std::size_t offset,
           bool is_abort = false) {
    watched_.push_back(
        {std::move(name), memory,
         reinterpret_cast<const std::atomic<std::uint64_t>*>(memory->data() + offset), 0,
         is_abort});
  }

  std::vector<Watched> watched_;
};

}  // namespace ferry::test

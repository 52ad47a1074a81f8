// FlagWatch: checks flags in the shared memory of a simulation, which may only grow and, with
// `one_writer`, have one writer at a time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
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
  // Whether `process` may now clear the flags of `rank`, whose place another process will take.
  using HandsOver = std::function<bool(int rank, int process)>;

  FlagWatch() = default;
  // `one_writer`: the flags of a rank are written by the process that last took the seat of the
  // rank in a view, and before that by the process with the number of the rank. Without it the
  // writers are not checked, since any rank of a node may write there the flags of a rank of
  // another node.
  FlagWatch(HandsOver hands_over, bool one_writer)
      : hands_over_(std::move(hands_over)), one_writer_(one_writer) {}

  // Watches the flags of a group's segment (SharedFlags), once for each segment. `memory`: null if
  // the rank has none.
  void add_group(const std::shared_ptr<Memory>& memory, int num_ranks) {
    using internal::GroupSlot;
    if (!memory || !groups_.insert(memory->number()).second) return;
    const std::size_t slots = sizeof(internal::CountersHead);
    const std::size_t words = slots + static_cast<std::size_t>(num_ranks) * sizeof(GroupSlot);
    for (int rank = 0; rank < num_ranks; ++rank) {
      const auto place = static_cast<std::size_t>(rank);
      const std::size_t slot = slots + place * sizeof(GroupSlot);
      add(Kind::kSeat, "seat", rank, memory, slot + offsetof(GroupSlot, seat));
      add(Kind::kOther, "barrier", rank, memory, slot + offsetof(GroupSlot, barrier));
      add(Kind::kAbort, "abort word", rank, memory, words + place * sizeof(std::uint64_t));
    }
  }

  void add_exchange(const std::shared_ptr<Memory>& memory, const internal::WindowLayout& layout,
                    int num_ranks) {
    for (int rank = 0; memory && rank < num_ranks; ++rank) {
      const std::size_t at = layout.control(rank);
      add(Kind::kOther, "progress", rank, memory, at);
      add(Kind::kOther, "read_through", rank, memory,
          at + offsetof(internal::ControlFlags, read_through));
    }
  }

  // To be called after each step of a process. Returns whether a flag has changed.
  bool look(std::vector<std::string>& wrong, int process) {
    bool changed = false;
    for (Watched& one : watched_) {
      if (one.memory.expired()) continue;
      const std::uint64_t now = one.flag->load(std::memory_order_relaxed);  // one thread
      if (now == one.last) continue;
      const char* const why = hands_over_ ? written_by(one, now, process) : nullptr;
      const bool cleared = hands_over_ && now == 0 && why == nullptr;
      if (why != nullptr || !(cleared || may_replace(one, now)))
        wrong.push_back(one.name + " of rank " + std::to_string(one.rank) + " went from " +
                        std::to_string(one.last) + " to " + std::to_string(now) +
                        (why == nullptr ? "" : why + std::to_string(process)) +
                        " at a step of process " + std::to_string(process));
      one.last = now;
      changed = true;
    }
    return changed;
  }

 private:
  enum class Kind { kSeat, kAbort, kOther };
  struct Watched {
    Kind kind;
    std::string name;
    int rank;
    std::weak_ptr<Memory> memory;
    const std::atomic<std::uint64_t>* flag;
    std::uint64_t last;
  };

  int writer_of(int rank) const {
    const auto found = writers_.find(rank);
    return found == writers_.end() ? rank : found->second;
  }

  // Why `process` may not write this flag; null: it may. The seat of a rank is watched before the
  // other flags of the rank, so that its change names their new writer first.
  const char* written_by(const Watched& one, std::uint64_t now, int process) {
    if (one.kind == Kind::kSeat) {
      if (now == internal::Seat::in(now / 2)) writers_[one.rank] = process;
      return nullptr;
    }
    if (now == 0) return hands_over_(one.rank, process) ? nullptr : ", by a clearing process ";
    return !one_writer_ || writer_of(one.rank) == process ? nullptr : ", by process ";
  }

  // An abort word is set once in each view, and the mark that its rank has left once.
  static bool may_replace(const Watched& one, std::uint64_t now) {
    using internal::AbortWord;
    if (one.kind != Kind::kAbort) return now > one.last;
    const auto view_of = [](std::uint64_t word) {
      return (word & ~AbortWord::kLeft) >> AbortWord::kViewShift;
    };
    return now == (one.last | AbortWord::kLeft) || view_of(now) > view_of(one.last);
  }

  void add(Kind kind, std::string name, int rank, const std::shared_ptr<Memory>& memory,
           std::size_t offset) {
    const auto* const flag =
        reinterpret_cast<const std::atomic<std::uint64_t>*>(memory->data() + offset);
    watched_.push_back({kind, std::move(name), rank, memory, flag, 0});
    // Watching begins at the present value of the flag, whose earlier writers are not checked.
    // Relaxed: one thread.
    if (hands_over_) watched_.back().last = flag->load(std::memory_order_relaxed);
  }

  HandsOver hands_over_;
  bool one_writer_ = false;
  std::set<std::uint64_t> groups_;  // the memories of groups
  std::map<int, int> writers_;      // by rank
  std::vector<Watched> watched_;
};

}  // namespace ferry::test

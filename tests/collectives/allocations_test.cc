// Memory that a Collectives hands out: it is given once at a time, joined again, refused by name,
// and outlives the object.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "exchange/frame.h"
#include "ferry/collectives.h"

namespace ferry::test {
namespace {

constexpr std::int64_t kPage = 4096;

void on_ranks(Mode mode, const std::function<void(const Group&)>& body) {
  run_ranks(mode, 2, body, "", {.deadline = std::chrono::seconds(20)});
}

void require_full(const Collectives& collectives, std::int64_t bytes, const char* text) {
  require_status(error_of([&] { collectives.allocate(bytes); }), Code::kCapacity, {text}, text);
}

TEST(CollectivesMemory, BlocksAreGivenOnceAndJoinedWhenTheyReturn) {
  on_ranks(Mode::kThreads, [](const Group& group) {
    const Collectives collectives(group, {.shared_bytes = 8 * kPage + 100});
    std::vector<std::shared_ptr<void>> blocks;
    for (const std::int64_t bytes : {std::int64_t{1}, 2 * kPage, kPage + 1, std::int64_t{0}}) {
      blocks.push_back(collectives.allocate(bytes));
      require(reinterpret_cast<std::uintptr_t>(blocks.back().get()) % kPage == 0, "alignment");
    }
    const auto* const first = static_cast<const std::byte*>(blocks[0].get());
    for (const auto& [block, pages] : {std::pair{1, 1}, {2, 3}, {3, 5}})
      require(blocks[block].get() == first + pages * kPage, "blocks lie one after another");
    require_full(collectives, 2 * kPage + 1, "no 12288 bytes in a row are left of shared_bytes");
    require_full(collectives, 9 * kPage, "36864 bytes are requested, and shared_bytes is 32768");
    blocks[1].reset();
    blocks[2].reset();
    require(collectives.allocate(4 * kPage).get() == first + kPage, "two blocks are one again");
    require_full(collectives, 4 * kPage + 1, "in a row");
    blocks[0].reset();
    blocks[3].reset();
    require(collectives.allocate(8 * kPage).get() == first, "all is one again");
    require_status(error_of([&] { collectives.allocate(-1); }), Code::kInvalidArgument,
                   {"bytes is -1"}, "negative");
  });
}

TEST(CollectivesMemory, OutlivesTheObjectAndItsGroup) {
  std::shared_ptr<void> memory[2];
  on_ranks(Mode::kThreads, [&](const Group& group) {
    const Collectives collectives(group, {.shared_bytes = 4 * kPage});
    memory[group.rank()] = collectives.allocate(4 * kPage);
  });
  for (const auto& each : memory) {
    auto* const bytes = static_cast<volatile unsigned char*>(each.get());
    for (std::int64_t i = 0; i < 4 * kPage; i += kPage) bytes[i] = 7;
    EXPECT_EQ(bytes[3 * kPage], 7);
  }
}

TEST(CollectivesMemory, OptionsThatDifferOrCannotBeAreRefused) {
  on_ranks(Mode::kThreads, [](const Group& group) {
    const bool first = group.rank() == 0;
    const auto make = [&](std::int64_t shared_bytes) {
      return error_of([&] { Collectives(group, {.shared_bytes = shared_bytes}); });
    };
    require_status(make(first ? kPage : 0), Code::kMismatch, {"shared_bytes is 4096 and 0"},
                   "different");
    require_status(make(first ? -1 : 0), first ? Code::kInvalidArgument : Code::kPeerRejected,
                   {"shared_bytes is -1, need 0 to"}, "negative");
    const Collectives none(group);
    require_full(none, 1, "1 bytes are requested, and shared_bytes is 0");
  });
}

TEST(CollectivesFaults, MemoryThatTheMachineDoesNotHaveIsRefused) {
  constexpr std::int64_t kTerabyte = std::int64_t{1} << 40;
  if (sysconf(_SC_PHYS_PAGES) >= kTerabyte / sysconf(_SC_PAGESIZE)) GTEST_SKIP();
  on_ranks(Mode::kProcesses, [](const Group& group) {
    Collectives collectives(group, {.shared_bytes = kTerabyte});
    require_full(collectives, kTerabyte, "no memory for 1099511627776 bytes");
    require(collectives.allocate(kPage) != nullptr, "what it has is given");
    require_ok(collectives.barrier(), "the group goes on");
  });
}

}  // namespace
}  // namespace ferry::test

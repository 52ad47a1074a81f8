// Processes that take the places of lost ranks, by the environment and by the address of a group
// that was made by an all-gather.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "bootstrap/forked.h"
#include "ferry/group.h"

namespace ferry::internal {
namespace {

constexpr int kFounders = 3;

enum Role : int { kFirst, kSecond, kThird, kThirdAgain };

// The other ranks wait for the third one to be killed, and for the process in its place.
std::string take_part(Group& group, Role role) {
  if (role == kThird) raise(SIGKILL);
  if (role != kThirdAgain) {
    while (group.barrier().ok()) {
    }
    require_ok(group.survive());
    require_ok(group.admit());
  }
  require_ok(group.barrier());
  return fmt::format("rank {} of view {}", group.rank(), group.view().number);
}

const GroupOptions kOptions{.deadline = std::chrono::seconds(20), .name = "newcomers"};
const auto kAllWell =
    testing::ElementsAre("rank 0 of view 3", "rank 1 of view 3", "", "rank 2 of view 3");

TEST(Newcomer, IsNamedByTheEnvironment) {
  const std::string address = fmt::format("newcomer-test-{}", getpid());
  const auto results = in_processes({kFirst, kSecond, kThird, kThirdAgain}, [&](int role) {
    setenv("FERRY_ADDR", address.c_str(), 1);
    setenv("FERRY_SIZE", std::to_string(kFounders).c_str(), 1);
    setenv("FERRY_RANK", std::to_string(role == kThirdAgain ? kThird : role).c_str(), 1);
    if (role == kThirdAgain) setenv("FERRY_NEWCOMER", "1", 1);
    Group group = Group::from_environment(kOptions);
    return take_part(group, static_cast<Role>(role));
  });
  EXPECT_THAT(results, kAllWell);
}

// The records of an all-gather, and the address of the group, in memory that the processes share.
struct Meeting {
  static constexpr std::size_t kMostBytes = 1024;
  std::atomic<int> come{0};
  std::atomic<bool> has_address{false};
  char records[kFounders][kMostBytes];
  char address[64];
};

TEST(Newcomer, FindsAGroupThatWasMadeByAnAllGather) {
  void* const memory =
      mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  Meeting& board = *new (memory) Meeting;
  const auto results = in_processes({kFirst, kSecond, kThird, kThirdAgain}, [&](int role) {
    if (role == kThirdAgain) {
      while (!board.has_address.load(std::memory_order_acquire)) usleep(1000);
      GroupOptions options = kOptions;
      options.newcomer = true;
      Group group = Group::connect(board.address, kThird, kFounders, options);
      return take_part(group, kThirdAgain);
    }
    const AllGather gather = [&](const void* mine, void* all, std::size_t bytes) {
      std::memcpy(board.records[role], mine, bytes);
      board.come.fetch_add(1, std::memory_order_acq_rel);
      while (board.come.load(std::memory_order_acquire) < kFounders) usleep(1000);
      for (int rank = 0; rank < kFounders; ++rank)
        std::memcpy(static_cast<char*>(all) + rank * bytes, board.records[rank], bytes);
      return true;
    };
    Group group = Group::from_all_gather(role, kFounders, gather, kOptions);
    if (role == kFirst) {
      group.origin().address.copy(board.address, sizeof board.address - 1);
      board.has_address.store(true, std::memory_order_release);
    }
    return take_part(group, static_cast<Role>(role));
  });
  EXPECT_THAT(results, kAllWell);
  munmap(memory, sizeof(Meeting));
}

}  // namespace
}  // namespace ferry::internal

// Groups of every kind, the order in which objects are destroyed, threads of the library, and the
// allocator of the caller.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <thread>

#include "seat.h"

namespace ferry::test {
namespace {

// A name that the same test in another build does not use.
std::string address(const std::string& name) { return name + std::to_string(getpid()); }

// A group of one rank, so that one thread is all ranks.
void expect_works_alone(ferry_group* group) {
  EXPECT_EQ(ferry_group_rank(group), 0);
  EXPECT_EQ(ferry_group_size(group), 1);
  EXPECT_EQ(ferry_group_usable(group), 1);
  expect_ok(ferry_group_barrier(group));
  Seat(group).expect_works();
  ferry_group_destroy(group);
}

TEST(CapiLife, GroupByAddress) {
  ferry_group* group = nullptr;
  expect_ok(ferry_group_connect(address("capi-life").c_str(), 0, 1, nullptr, &group));
  EXPECT_STREQ(ferry_group_launcher(group), "address");
  EXPECT_NE(std::strstr(ferry_group_reason(group), "capi-life"), nullptr);
  expect_works_alone(group);
  expect_error(ferry_group_connect("", 0, 1, nullptr, &group), FERRY_INVALID_ARGUMENT, {"1 to 64"});
  EXPECT_EQ(group, nullptr);
}

TEST(CapiLife, GroupFromTheEnvironment) {
  ferry_group* group = nullptr;
  expect_error(ferry_group_from_environment(nullptr, &group), FERRY_INVALID_ARGUMENT,
               {"FERRY_ADDR", "RANK"});
  setenv("FERRY_ADDR", address("capi-environment").c_str(), 1);
  setenv("FERRY_RANK", "0", 1);
  setenv("FERRY_SIZE", "1", 1);
  expect_ok(ferry_group_from_environment(nullptr, &group));
  for (const char* name : {"FERRY_ADDR", "FERRY_RANK", "FERRY_SIZE"}) unsetenv(name);
  expect_works_alone(group);
}

TEST(CapiLife, GroupByTheCallersAllGather) {
  auto gather = sized<ferry_all_gather>();
  int calls = 0;
  gather.context = &calls;
  gather.gather = [](const void* mine, void* all, size_t bytes, void* context) {
    ++*static_cast<int*>(context);
    std::memcpy(all, mine, bytes);
    return 0;
  };
  ferry_group* group = nullptr;
  expect_ok(ferry_group_from_all_gather(0, 1, &gather, nullptr, &group));
  EXPECT_EQ(calls, 1);
  EXPECT_STREQ(ferry_group_launcher(group), "callback");
  expect_works_alone(group);

  gather.gather = [](const void*, void*, size_t, void*) { return 5; };
  expect_error(ferry_group_from_all_gather(0, 1, &gather, nullptr, &group), FERRY_SYSTEM,
               {"all-gather", "failed"});
  gather.gather = nullptr;
  expect_error(ferry_group_from_all_gather(0, 1, &gather, nullptr, &group), FERRY_INVALID_ARGUMENT,
               {"got none"});
  gather.gather = [](const void*, void*, size_t, void*) -> int {
    throw std::runtime_error("oops");
  };
  expect_error(ferry_group_from_all_gather(0, 1, &gather, nullptr, &group), FERRY_SYSTEM, {"oops"});
  gather.gather = [](const void*, void*, size_t, void*) -> int { throw 7; };
  expect_error(ferry_group_from_all_gather(0, 1, &gather, nullptr, &group), FERRY_SYSTEM,
               {"callback"});
  EXPECT_EQ(group, nullptr);
}

TEST(CapiLife, GroupsOfThreads) {
  ferry_group* groups[3] = {};
  expect_ok(ferry_group_threads(3, nullptr, groups));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([rank, group = groups[rank]] {
      EXPECT_EQ(ferry_group_rank(group), rank);
      EXPECT_EQ(ferry_group_size(group), 3);
      EXPECT_STREQ(ferry_group_launcher(group), "threads");
      const int mine = rank * 11;
      int all[3] = {};
      expect_ok(ferry_group_all_gather(group, &mine, sizeof mine, all));
      EXPECT_EQ(all[2], 22);
      expect_ok(ferry_group_barrier(group));
      ferry_group_destroy(group);
    });
  }
  for (std::thread& thread : threads) thread.join();
  expect_error(ferry_group_threads(0, nullptr, groups), FERRY_INVALID_ARGUMENT, {"0"});
}

TEST(CapiLife, ADeadlineNamesWhoIsMissing) {
  auto options = sized<ferry_group_options>();
  options.deadline_ns = 200'000'000;
  std::atomic<bool> over{false};
  on_ranks(
      2,
      [&](ferry_group* group) {
        if (ferry_group_rank(group) == 1) {
          while (!over.load(std::memory_order_acquire)) std::this_thread::yield();
          return;
        }
        expect_error(ferry_group_barrier(group), FERRY_TIMEOUT, {"rank 1"});
        EXPECT_EQ(ferry_last_error_rank(), 1);
        EXPECT_EQ(ferry_group_usable(group), 0);
        over.store(true, std::memory_order_release);
      },
      &options);
}

// Rank 1 leaves, and the view of the others lacks it.
TEST(CapiLife, AGroupSurvivesARankThatLeaves) {
  on_ranks(3, [](ferry_group* group) {
    uint64_t number = 0;
    int32_t members[3] = {}, num_members = 0;
    expect_ok(ferry_group_view(group, &number, members, &num_members));
    EXPECT_EQ(number, 1u);
    EXPECT_EQ(num_members, 3);
    if (ferry_group_rank(group) == 1) return;
    expect_error(ferry_group_barrier(group), FERRY_PEER_LOST, {"rank 1", "view 1 is over"});
    expect_error(ferry_group_fence(group, 1), FERRY_INVALID_ARGUMENT, {"rank 1", "thread"});
    expect_ok(ferry_group_survive(group, 0));
    EXPECT_EQ(ferry_group_usable(group), 1);
    expect_ok(ferry_group_view(group, &number, members, &num_members));
    EXPECT_EQ(number, 2u);
    EXPECT_EQ(num_members, 2);
    EXPECT_EQ(members[0], 0);
    EXPECT_EQ(members[1], 2);
    expect_ok(ferry_group_barrier(group));
    const std::int32_t lost = 1;
    expect_error(ferry_group_admit(group, &lost, 1, 0), FERRY_INVALID_ARGUMENT, {"threads"});
    expect_error(ferry_group_admit(group, nullptr, 1, 0), FERRY_INVALID_ARGUMENT,
                 {"ranks is NULL"});
    expect_ok(ferry_group_barrier(group));
    expect_error(ferry_group_view(group, nullptr, members, &num_members), FERRY_INVALID_ARGUMENT,
                 {"number"});
  });
  expect_error(ferry_group_survive(nullptr, 0), FERRY_INVALID_ARGUMENT, {"group"});
  expect_error(ferry_group_fence(nullptr, 0), FERRY_INVALID_ARGUMENT, {"group"});
  expect_error(ferry_group_admit(nullptr, nullptr, 0, 0), FERRY_INVALID_ARGUMENT, {"group"});
  ferry_group* alone = nullptr;
  auto newcomer = sized<ferry_group_options>();
  newcomer.deadline_ns = 50'000'000;
  newcomer.newcomer = 1;
  expect_error(ferry_group_connect(address("capi-nobody").c_str(), 0, 2, &newcomer, &alone),
               FERRY_TIMEOUT, {"a member that admits others"});
}

// The group has two ranks and begins with the first one.
TEST(CapiLife, AGroupBeginsWithSomeOfItsRanks) {
  auto options = sized<ferry_group_options>();
  options.deadline_ns = 50'000'000;
  const std::int32_t first = 0;
  options.members = &first;
  options.num_members = 1;
  const std::string where = address("capi-some");
  ferry_group *group = nullptr, *later = nullptr;
  expect_ok(ferry_group_connect(where.c_str(), 0, 2, &options, &group));
  EXPECT_EQ(ferry_group_size(group), 2);
  uint64_t number = 0;
  int32_t members[2] = {}, num_members = 0;
  expect_ok(ferry_group_view(group, &number, members, &num_members));
  EXPECT_EQ(number, 1u);
  EXPECT_EQ(num_members, 1);
  expect_ok(ferry_group_barrier(group));
  expect_error(ferry_group_connect(where.c_str(), 1, 2, &options, &later), FERRY_TIMEOUT,
               {"a member that admits others"});
  expect_error(ferry_group_admit(group, nullptr, 0, 0), FERRY_PEER_REJECTED, {"rank 1"});
  ferry_group_destroy(group);
  options.members = nullptr;
  expect_error(ferry_group_connect(where.c_str(), 0, 2, &options, &group), FERRY_INVALID_ARGUMENT,
               {"members is NULL"});
}

TEST(CapiLife, FailuresOfBodiesAreReportedByRank) {
  const auto body = [](ferry_group* group, void*) -> ferry_code {
    if (ferry_group_rank(group) == 0) return FERRY_OK;
    return ferry_group_connect("here", 9, 2, nullptr, &group);
  };
  expect_error(ferry_run_threads(3, body, nullptr, nullptr), FERRY_INVALID_ARGUMENT,
               {"rank 1", "rank 9 of 2"});
  const auto thrower = [](ferry_group*, void*) -> ferry_code { throw std::runtime_error("oops"); };
  expect_error(ferry_run_threads(2, thrower, nullptr, nullptr), FERRY_SYSTEM, {"oops"});
}

TEST(CapiLife, ExchangesOfADestroyedGroupAreClosed) {
  ferry_group* group = nullptr;
  expect_ok(ferry_group_connect(address("capi-destroyed").c_str(), 0, 1, nullptr, &group));
  Seat seat(group);
  expect_ok(seat.dispatch());
  auto combine = seat.combine_args();
  ferry_group_destroy(group);
  expect_error(ferry_combine(seat.exchange, &combine), FERRY_CLOSED, {"destroyed"});
  auto dispatch = seat.dispatch_args();
  std::uint64_t operation = 5;
  expect_error(ferry_dispatch_send(seat.exchange, &dispatch, &operation), FERRY_CLOSED, {});
  EXPECT_EQ(operation, 0U);
  dispatch.struct_size = 0;
  expect_error(ferry_dispatch(seat.exchange, &dispatch, &seat.received), FERRY_CLOSED, {});
  auto stats = sized<ferry_stats>();
  expect_ok(ferry_exchange_stats(seat.exchange, &stats));
}

TEST(CapiLife, RowsAndHandlesOutliveTheirExchange) {
  ferry_group* group = nullptr;
  expect_ok(ferry_group_connect(address("capi-outlive").c_str(), 0, 1, nullptr, &group));
  auto received = sized<ferry_received>();
  auto rows = sized<ferry_output_rows>();
  ferry_handle* kept = nullptr;
  {
    Seat seat(group);
    expect_ok(seat.dispatch());
    expect_ok(ferry_handle_keep(seat.received.handle, &kept));
    expect_ok(ferry_allocate_outputs(seat.exchange, 2, kHidden, FERRY_TYPE_FP32, &rows));
    std::swap(received, seat.received);
  }
  ferry_group_destroy(group);
  static_cast<float*>(rows.data)[2 * kHidden - 1] = static_cast<const float*>(received.data)[0];
  auto counts = sized<ferry_counts>();
  expect_ok(ferry_handle_counts(kept, &counts));
  EXPECT_EQ(counts.num_rows, received.num_rows);
  expect_ok(ferry_output_rows_release(&rows));
  expect_ok(ferry_received_release(&received));
  ferry_handle_free(kept);
}

TEST(CapiLife, DestroyGivesUpHalves) {
  on_ranks(2, [](ferry_group* group) {
    Seat seat(group);
    const auto dispatch = seat.dispatch_args();
    std::uint64_t operation = 0;
    expect_ok(seat.dispatch());
    const auto combine = seat.combine_args();
    expect_ok(ferry_combine_send(seat.exchange, &combine, &operation));
    expect_ok(ferry_dispatch_send(seat.exchange, &dispatch, &operation));
    ferry_exchange_destroy(seat.exchange);
    seat.exchange = nullptr;
    EXPECT_EQ(ferry_group_usable(group), 1);
    Seat(group).expect_works();
  });
}

// Counts the live allocations; returns no memory where the test sets it to.
struct Memory {
  std::atomic<int> alive{0}, made{0};
  std::atomic<bool> refuse{false};

  ferry_allocator allocator() {
    auto given = sized<ferry_allocator>();
    given.context = this;
    given.allocate = [](size_t bytes, void* context) -> void* {
      auto& memory = *static_cast<Memory*>(context);
      if (memory.refuse.load(std::memory_order_relaxed)) return nullptr;
      memory.alive.fetch_add(1, std::memory_order_relaxed);
      memory.made.fetch_add(1, std::memory_order_relaxed);
      return std::malloc(bytes);
    };
    given.release = [](void* object, void* context) {
      static_cast<Memory*>(context)->alive.fetch_sub(1, std::memory_order_relaxed);
      std::free(object);
    };
    return given;
  }
};

TEST(CapiLife, ObjectsLieInTheCallersMemory) {
  Memory memory;
  ferry_allocator allocator = memory.allocator();
  auto options = sized<ferry_group_options>();
  options.allocator = &allocator;
  ferry_group* group = nullptr;
  expect_ok(ferry_group_connect(address("capi-memory").c_str(), 0, 1, &options, &group));
  allocator = {};  // was copied
  EXPECT_EQ(memory.made, 1);
  {
    Seat seat(group);
    EXPECT_EQ(memory.made, 2);
    expect_ok(seat.dispatch());
    EXPECT_EQ(memory.made, 3);
    ferry_handle* kept = nullptr;
    expect_ok(ferry_handle_keep(seat.received.handle, &kept));
    auto rows = sized<ferry_output_rows>();
    expect_ok(ferry_allocate_outputs(seat.exchange, 2, kHidden, FERRY_TYPE_FP32, &rows));
    EXPECT_EQ(memory.made, 5);
    EXPECT_EQ(memory.alive, 5);
    ferry_handle_free(kept);
    expect_ok(ferry_output_rows_release(&rows));
    seat.expect_works();
    EXPECT_EQ(memory.alive, 3);
  }
  ferry_group_destroy(group);
  EXPECT_EQ(memory.alive, 0);
}

TEST(CapiLife, RefusedMemoryIsAnErrorThatAllSurvive) {
  Memory memories[2];
  ferry_group* groups[2] = {};
  auto options = sized<ferry_group_options>();
  memories[0].refuse = true;
  const ferry_allocator first = memories[0].allocator();
  options.allocator = &first;
  expect_error(ferry_group_threads(2, &options, groups), FERRY_SYSTEM, {"allocator", "bytes"});
  EXPECT_EQ(groups[0], nullptr);
  memories[0].refuse = false;
  on_ranks(
      2,
      [&](ferry_group* group) {
        Seat seat(group);
        expect_ok(ferry_group_barrier(group));
        // Both ranks have the same allocator: both refuse, or neither.
        if (ferry_group_rank(group) == 0) memories[0].refuse = true;
        expect_ok(ferry_group_barrier(group));
        expect_error(seat.dispatch(), FERRY_SYSTEM, {"the allocator returned no memory"});
        ferry_handle* kept = nullptr;
        expect_ok(ferry_group_barrier(group));
        if (ferry_group_rank(group) == 0) memories[0].refuse = false;
        expect_ok(ferry_group_barrier(group));
        seat.expect_works();
        expect_ok(ferry_handle_keep(seat.received.handle, &kept));
        ferry_handle_free(kept);
      },
      &options);
  EXPECT_EQ(memories[0].alive, 0);
}

TEST(CapiLife, AllocatorsThatCannotBe) {
  Memory memory;
  ferry_allocator allocator = memory.allocator();
  auto options = sized<ferry_group_options>();
  options.allocator = &allocator;
  ferry_group* group = nullptr;
  allocator.release = nullptr;
  expect_error(ferry_group_threads(1, &options, &group), FERRY_INVALID_ARGUMENT,
               {"release is NULL"});
  allocator.allocate = nullptr;
  expect_error(ferry_group_threads(1, &options, &group), FERRY_INVALID_ARGUMENT,
               {"allocate is NULL"});
}

}  // namespace
}  // namespace ferry::test

// Segments: contents, huge pages, refusals. Touches real memory.
#include "memory/segment.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "ferry/status.h"
#include "memory/available.h"

namespace ferry::internal {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

std::size_t resident_bytes(const Segment& segment) {
  struct stat file {};
  fstat(segment.fd(), &file);
  return static_cast<std::size_t>(file.st_blocks) * 512;
}

// The field of the mapping that begins at `address`, in KiB.
std::size_t smaps_kib(const void* address, const std::string& field) {
  std::ifstream smaps("/proc/self/smaps");
  std::ostringstream begin;
  begin << std::hex << reinterpret_cast<std::uintptr_t>(address) << '-';
  bool inside = false;
  for (std::string line; std::getline(smaps, line);) {
    if (line.find('-') < line.find(' ')) inside = line.starts_with(begin.str());
    if (inside && line.starts_with(field)) return std::stoul(line.substr(field.size()));
  }
  return 0;
}

TEST(Segment, IsAlignedSparseAndZero) {
  const auto segment = Segment::create(10 * kMiB + 5);
  EXPECT_EQ(segment->bytes(), 10 * kMiB + 5);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(segment->data()) % Segment::kHugePage, 0u);
  EXPECT_EQ(resident_bytes(*segment), 0u);
  EXPECT_EQ(segment->data()[10 * kMiB + 4], std::byte{0});
  EXPECT_NE(fcntl(segment->fd(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(Segment, ReservingMuchCostsNothing) {
  const auto segment = Segment::create(std::size_t{1} << 40);
  EXPECT_TRUE(segment->commit((std::size_t{1} << 40) - 1, 1));
  EXPECT_LE(resident_bytes(*segment), Segment::kHugePage);
}

TEST(Segment, CommitBacksWhatWasAskedAndKeepsContents) {
  const auto segment = Segment::create(64 * kMiB);
  ASSERT_TRUE(segment->commit(3 * kMiB + 100, 200));
  std::memset(segment->data() + 3 * kMiB + 100, 7, 200);
  EXPECT_EQ(resident_bytes(*segment), 4096u);
  ASSERT_TRUE(segment->commit(kMiB, 40 * kMiB));
  EXPECT_EQ(resident_bytes(*segment), 40 * kMiB);
  ASSERT_TRUE(segment->commit(kMiB, 40 * kMiB)) << "again";
  for (std::size_t i = 0; i < 200; ++i)
    ASSERT_EQ(segment->data()[3 * kMiB + 100 + i], std::byte{7});
  EXPECT_EQ(segment->data()[3 * kMiB + 300], std::byte{0});
  EXPECT_TRUE(segment->commit(0, 0));
}

TEST(Segment, CommitUsesHugePages) {
  const auto segment = Segment::create(64 * kMiB);
  ASSERT_TRUE(segment->commit(0, 64 * kMiB));
  const std::size_t kib = smaps_kib(segment->data(), "ShmemPmdMapped:");
  if (kib == 0) GTEST_SKIP() << "NOT TESTED: this kernel gives no huge pages to shared memory";
  EXPECT_GE(kib, 32u << 10);
}

TEST(Segment, OutOfRangeIsRefused) {
  const auto segment = Segment::create(4 * kMiB);
  EXPECT_FALSE(segment->commit(4 * kMiB, 1));
  EXPECT_FALSE(segment->commit(1, 4 * kMiB));
  EXPECT_FALSE(segment->commit(SIZE_MAX, 2));
  EXPECT_FALSE(segment->commit(2, SIZE_MAX));
  segment->map_in(2, SIZE_MAX);
}

TEST(Segment, CommitBeyondTheMachinesMemoryIsRefusedAndTakesNothing) {
  const auto segment = Segment::create(std::size_t{1} << 42);
  ASSERT_TRUE(segment->commit(0, kMiB));
  segment->data()[5] = std::byte{9};
  EXPECT_FALSE(segment->commit(0, std::size_t{1} << 41));
  EXPECT_EQ(resident_bytes(*segment), kMiB);
  EXPECT_EQ(segment->data()[5], std::byte{9});
  EXPECT_TRUE(segment->commit(kMiB, kMiB)) << "what is there is still given";
}

TEST(Segment, AbsurdSizesAreErrorsThatNameTheBytes) {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1} << 60, SIZE_MAX}) {
    try {
      Segment::create(bytes);
      ADD_FAILURE() << bytes << " bytes were accepted";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr(std::to_string(bytes)));
    }
  }
}

TEST(Segment, AnotherProcessSeesTheSameBytes) {
  const auto segment = Segment::create(8 * kMiB);
  ASSERT_TRUE(segment->commit(0, 8 * kMiB));
  segment->data()[5 * kMiB] = std::byte{42};
  const pid_t child = fork();
  if (child == 0) {
    const auto mine = Segment::attach(dup(segment->fd()), 8 * kMiB);
    mine->map_in(0, 8 * kMiB);
    const bool mapped = smaps_kib(mine->data(), "Rss:") == 8 << 10;
    const bool seen = mine->data()[5 * kMiB] == std::byte{42};
    mine->data()[6 * kMiB] = std::byte{43};
    _exit(mapped && seen ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(segment->data()[6 * kMiB], std::byte{43});
}

TEST(Segment, AttachClosesADescriptorThatItCannotMap) {
  const int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
  EXPECT_THROW(Segment::attach(fd, kMiB), Error);
  EXPECT_EQ(fcntl(fd, F_GETFD), -1);
}

// A folder with the files that available_memory() reads.
class Files : public testing::Test {
 protected:
  Files() : root_(testing::TempDir() + "ferry-available-" + std::to_string(getpid())) {}
  ~Files() override { std::filesystem::remove_all(root_); }

  void put(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }

  std::string root_;
};
using Available = Files;

TEST_F(Available, NothingReadableIsNoLimit) { EXPECT_EQ(available_memory(root_), UINT64_MAX); }

TEST_F(Available, MachineWithoutGroups) {
  put("/proc/meminfo", "MemTotal:  100 kB\nMemFree:  10 kB\nMemAvailable:   50 kB\n");
  EXPECT_EQ(available_memory(root_), 50u * 1024);
}

TEST_F(Available, TheTightestAncestorOfVersionTwoBinds) {
  put("/proc/meminfo", "MemAvailable:   50000 kB\n");
  put("/proc/self/cgroup", "0::/a/b\n");
  put("/sys/fs/cgroup/a/memory.max", "9000000\n");
  put("/sys/fs/cgroup/a/memory.current", "5000000\n");
  put("/sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 300000\nactive_file 200000\n");
  put("/sys/fs/cgroup/a/b/memory.max", "max\n");
  put("/sys/fs/cgroup/a/b/memory.current", "5000000\n");
  EXPECT_EQ(available_memory(root_), 9000000u - 5000000u + 500000u);
}

TEST_F(Available, ContainerOfVersionOneHasItsLimitAtTheMount) {
  put("/proc/meminfo", "MemAvailable:   50000 kB\n");
  put("/proc/self/cgroup", "4:cpu:/x\n5:memory:/docker/123\n0::/\n");
  put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1000000\n");
  put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "400000\n");
  put("/sys/fs/cgroup/memory/memory.stat", "total_inactive_file 100000\n");
  EXPECT_EQ(available_memory(root_), 700000u);
}

TEST_F(Available, AFullGroupLeavesNothing) {
  put("/proc/self/cgroup", "0::/\n");
  put("/sys/fs/cgroup/memory.max", "1000\n");
  put("/sys/fs/cgroup/memory.current", "2000\n");
  EXPECT_EQ(available_memory(root_), 0u);
}

TEST(AvailableHere, IsPlausible) {
  EXPECT_GT(available_memory(), 0u);
  EXPECT_LT(available_memory(), std::uint64_t{1} << 50);
}

// The available memory of a machine that has 100 bytes for each share; counts the calls.
class Allowance : public testing::Test {
 protected:
  bool take(std::uint64_t bytes, std::int64_t now_ns) {
    return allowance_.take(bytes, now_ns, [this] {
      ++asked_;
      return available_;
    });
  }

  MemoryAllowance allowance_;
  std::uint64_t available_ = 100 * MemoryAllowance::kShare;
  int asked_ = 0;
};

TEST_F(Allowance, AnAnswerHoldsForAThousandthOfWhatWasAvailable) {
  EXPECT_TRUE(take(1, 0));
  for (int i = 0; i < 99; ++i) EXPECT_TRUE(take(1, 0));
  EXPECT_EQ(asked_, 1);
  EXPECT_TRUE(take(1, 0));
  EXPECT_EQ(asked_, 2);
}

TEST_F(Allowance, AnAnswerHoldsForASecond) {
  EXPECT_TRUE(take(1, 0));
  EXPECT_TRUE(take(1, MemoryAllowance::kHoldsNs - 1));
  EXPECT_EQ(asked_, 1);
  EXPECT_TRUE(take(1, MemoryAllowance::kHoldsNs));
  EXPECT_EQ(asked_, 2);
}

TEST_F(Allowance, WhatIsNotThereIsRefused) {
  EXPECT_TRUE(take(available_, 0));
  EXPECT_FALSE(take(available_ + 1, 0));
  available_ = 0;
  EXPECT_FALSE(take(1, 0));
}

}  // namespace
}  // namespace ferry::internal

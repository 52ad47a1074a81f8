// The processors of each NUMA node, on machines that are folders of this test.
#include "topology/numa.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <numeric>

namespace ferry::internal {
namespace {

using Nodes = std::vector<CpuList>;

CpuList cpus(int first, int last) {
  CpuList list(static_cast<std::size_t>(last - first + 1));
  std::iota(list.begin(), list.end(), first);
  return list;
}

// A folder like /sys/devices/system/node.
class Machine {
 public:
  Machine() : folder_(testing::TempDir() + "ferry-numa-" + std::to_string(getpid())) {
    for (const char* other : {"power", "node", "nodes7"})
      std::filesystem::create_directories(folder_ + "/" + other);
    write("online", "0-1");
    write("nodes7/cpulist", "0-63");
    write("node/cpulist", "0-63");
  }
  ~Machine() { std::filesystem::remove_all(folder_); }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  Machine& node(int number, const std::string& cpulist) {
    const std::string name = "node" + std::to_string(number);
    std::filesystem::create_directories(folder_ + "/" + name);
    write(name + "/cpulist", cpulist);
    write(name + "/cpumap", "ffffffff");
    return *this;
  }
  Nodes allowing(const CpuList& allowed) const { return cpus_by_node(folder_, allowed); }

 private:
  void write(const std::string& name, const std::string& line) const {
    std::ofstream(folder_ + "/" + name) << line << "\n";
  }
  std::string folder_;
};

TEST(CpuLists, AreThoseOfTheKernel) {
  EXPECT_EQ(parse_cpu_list("0"), CpuList{0});
  EXPECT_EQ(parse_cpu_list("0-3"), cpus(0, 3));
  EXPECT_EQ(parse_cpu_list("0-2,8,10-11"), (CpuList{0, 1, 2, 8, 10, 11}));
  EXPECT_EQ(parse_cpu_list("5-5"), CpuList{5});
}

TEST(CpuLists, OfNothingAndOfOtherTextsAreEmpty) {
  for (const char* text : {"", ",", "0,", ",0", "-", "0-", "-1", "3-1", "a", "0-3x", "0 1", "0--1",
                           "2,1", "1,1", "0-4000000000", "99999999999999999999", "0:1"})
    EXPECT_EQ(parse_cpu_list(text), CpuList{}) << text;
}

TEST(CpusByNode, AreThoseThatAThreadMayRunOn) {
  Machine machine;
  machine.node(0, "0-3,8-11").node(1, "4-7,12-15");
  EXPECT_EQ(machine.allowing(cpus(0, 15)),
            (Nodes{{0, 1, 2, 3, 8, 9, 10, 11}, {4, 5, 6, 7, 12, 13, 14, 15}}));
  EXPECT_EQ(machine.allowing({2, 9, 13}), (Nodes{{2, 9}, {13}}));
}

TEST(CpusByNode, AreNoneWhereThereIsNothingToChoose) {
  Machine machine;
  EXPECT_EQ(machine.allowing({0, 1}), Nodes{});  // the kernel lists no node
  machine.node(0, "0-3");
  EXPECT_EQ(machine.allowing(cpus(0, 3)), Nodes{});
  machine.node(1, "4-7");
  EXPECT_EQ(machine.allowing({4, 6}), Nodes{});  // inside a node
  EXPECT_EQ(machine.allowing({}), Nodes{});
  EXPECT_EQ(machine.allowing({20, 21}), Nodes{});
  EXPECT_EQ(cpus_by_node(testing::TempDir() + "ferry-no-such-folder", {0, 1}), Nodes{});
}

// A node with memory and without processors, and node numbers with gaps.
TEST(CpusByNode, LeaveOutNodesOfMemoryAlone) {
  Machine machine;
  machine.node(10, "4-7").node(2, "0-3").node(3, "");
  EXPECT_EQ(machine.allowing(cpus(0, 7)), (Nodes{cpus(0, 3), cpus(4, 7)}));
}

TEST(CpusByNode, OfThisMachineAreDisjoint) {
  std::vector<int> seen;
  for (const CpuList& node : my_cpus_by_node()) seen.insert(seen.end(), node.begin(), node.end());
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(std::adjacent_find(seen.begin(), seen.end()), seen.end());
}

}  // namespace
}  // namespace ferry::internal

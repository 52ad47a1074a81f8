// Sample: the counters of all groups at one moment, read from the processes of this host or
// received from `ferry top` of another host. group/counters.h has the layout.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace ferry::tools {

struct RankSample {
  std::string host, program;
  std::int64_t time_ns = 0;           // the time by the clock of that host
  bool ended = false;                 // whether the process of the rank has ended
  std::uint64_t resident_bytes = 0;   // memory of the process
  std::vector<std::uint64_t> totals;  // [kNumCounters]
  // [ranks], the time that this rank waited for each rank. The element of this rank is the wait for
  // the network.
  std::vector<std::uint64_t> wait_ns;
};

struct GroupSample {
  int num_ranks = 0;
  std::map<int, RankSample> ranks;  // the ranks that were found
};

// The key is the group's number in hexadecimal digits.
using Sample = std::map<std::string, GroupSample>;

// Takes a sample of the processes of this user.
Sample look_here();

nlohmann::ordered_json to_json(const RankSample& rank);
// Adds the sample that another host sent. Throws std::invalid_argument if another version of ferry
// wrote it.
void add_received(Sample& sample, const std::string& line);

}  // namespace ferry::tools

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
  std::int64_t time_ns = 0;            // by the clock of its host
  bool ended = false;                  // its process has
  std::uint64_t resident_bytes = 0;    // of its process
  std::vector<std::uint64_t> totals;   // [kNumCounters]
  std::vector<std::uint64_t> wait_ns;  // [ranks]; the element of the rank itself: for the network
};

struct GroupSample {
  int num_ranks = 0;
  std::map<int, RankSample> ranks;  // those that were seen
};

using Sample = std::map<std::string, GroupSample>;  // by the group's number, in hexadecimal digits

// The sample of the processes of this user.
Sample look_here();

nlohmann::ordered_json to_json(const RankSample& rank);
// Adds the sample of another host. Throws std::invalid_argument where another version wrote it.
void add_received(Sample& sample, const std::string& line);

}  // namespace ferry::tools

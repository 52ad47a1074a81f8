// Sample: the counters of all groups at one moment, as they are found in the processes of this
// host, or as `ferry top` of another host told them. Reads what group/counters.h lays out.
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
  std::vector<std::uint64_t> wait_ns;  // [ranks]; its own: for the network
};

struct GroupSample {
  int num_ranks = 0;
  std::map<int, RankSample> ranks;  // those that were seen
};

using Sample = std::map<std::string, GroupSample>;  // by the group's number, in hexadecimal digits

// Of the processes that this user may look into.
Sample look_here();

nlohmann::ordered_json to_json(const RankSample& rank);
// Adds what another host told. Throws std::invalid_argument where it is none of this version's.
void add_told(Sample& sample, const std::string& line);

}  // namespace ferry::tools

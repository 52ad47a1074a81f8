// Compares two runs that FERRY_TRACE recorded, and names the first difference.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace ferry::tools {

// The first difference between the records of a rank. A rank makes its calls in the same order in
// both runs, so of all ranks the difference at the lowest position is the first.
struct RankDifference {
  std::size_t position = 0;  // the record's index in the file of A, or of B if A lacks it
  int part = 0;              // the TracePart that differs; -1: the whole record
  int rank = 0;              // the rank of the file
  std::string where;         // "dispatch 3 of exchange 0"
  std::string what;          // "weights of token 5, k 2: 0.25 in A, 0.5 in B (1 of 32 differ)"
};

struct RunDifference {
  std::vector<RankDifference> ranks;  // one for each rank that differs, in order of position
  // "exchange 0: topology=host:1,rank:4 in A, topology=host:2,rank:2 in B", "ranks only in A: 3"
  std::vector<std::string> settings;
  std::size_t num_ranks = 0, num_records = 0;  // how many were compared
  bool lacks_ranks = false;                    // a run has a rank that the other one lacks
};

// `a` and `b`: the files of the ranks (files_of_run).
RunDifference compare_runs(const std::map<int, std::string>& a,
                           const std::map<int, std::string>& b);

// The text that `ferry trace diff` prints.
std::string text_of(const RunDifference& difference);

}  // namespace ferry::tools

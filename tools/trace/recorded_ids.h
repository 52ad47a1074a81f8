// The router trace of a recorded run.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace ferry::tools {

struct RecordedIds {
  std::vector<std::int32_t> ids;  // [tokens, layers, top_k]
  std::int64_t top_k = 0;
};

// The ids of all dispatches of a run, rank after rank. Dispatches with a handle have no ids, and
// are left out. Of the others, dispatch i of a rank, in the order of the calls, is of layer i %
// layers. Throws std::invalid_argument with the file and the reason.
RecordedIds recorded_ids(const std::map<int, std::string>& files, std::int64_t layers);

}  // namespace ferry::tools

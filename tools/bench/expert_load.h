// Reads the file that SGLang's expert-distribution recorder writes. Called by routing.cc.
#pragma once

#include <string>
#include <vector>

namespace ferry::bench {

// How often each expert of a layer was chosen: key "logical_count" of the JSON file, [layers,
// experts], or [steps, layers, experts], which is summed over steps. layer -1 takes the layer of
// median skew (hottest expert over mean) among the layers with any count. Throws
// std::invalid_argument naming the file and what is wrong with it.
std::vector<double> recorded_shares(const std::string& file, int layer, int num_experts);

}  // namespace ferry::bench

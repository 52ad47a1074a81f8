// Router traces: the experts that a router chose, [tokens, MoE layers, top_k] logical ids in one
// .npy file, as engines return them for replay (vLLM's routed experts, Megatron's router replay).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ferry::bench {

// The ids of one layer of a file, [tokens, top_k]; -1 where nothing is sent. Throws
// std::invalid_argument with the file and the reason, such as another top_k in the file.
std::vector<int> router_ids(const std::string& file, int layer, int top_k, int num_experts);

// Writes ids [tokens, layers, top_k] as int32. Throws std::invalid_argument if the file cannot be
// written.
void write_router_trace(const std::string& file, const std::vector<std::int32_t>& ids,
                        std::int64_t layers, std::int64_t top_k);

}  // namespace ferry::bench

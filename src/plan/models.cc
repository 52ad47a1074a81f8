// Lists models with their published configurations.
#include <fmt/format.h>

#include <algorithm>

#include "base/names.h"
#include "ferry/plan.h"
#include "ferry/status.h"

namespace ferry {

const std::vector<Model>& models() {
  static const std::vector<Model> all = {
      {.name = "deepseek-v3",
       .hidden = 7168,
       .layers = 61,
       .dense_layers = 3,
       .experts = 256,
       .top_k = 8,
       .groups = 8,
       .groups_chosen = 4,
       .shared = 1,
       .ffn = 2048},
      {.name = "kimi-k2",
       .hidden = 7168,
       .layers = 61,
       .dense_layers = 1,
       .experts = 384,
       .top_k = 8,
       .groups = 1,
       .groups_chosen = 1,
       .shared = 1,
       .ffn = 2048},
      {.name = "qwen3-235b",
       .hidden = 4096,
       .layers = 94,
       .dense_layers = 0,
       .experts = 128,
       .top_k = 8,
       .groups = 1,
       .groups_chosen = 1,
       .shared = 0,
       .ffn = 1536},
      {.name = "gpt-oss-120b",
       .hidden = 2880,
       .layers = 36,
       .dense_layers = 0,
       .experts = 128,
       .top_k = 4,
       .groups = 1,
       .groups_chosen = 1,
       .shared = 0,
       .ffn = 2880},
      {.name = "mixtral-8x7b",
       .hidden = 4096,
       .layers = 32,
       .dense_layers = 0,
       .experts = 8,
       .top_k = 2,
       .groups = 1,
       .groups_chosen = 1,
       .shared = 0,
       .ffn = 14336},
  };
  return all;
}

const Model& find_model(std::string_view name) {
  const auto found = std::ranges::find(models(), name, &Model::name);
  if (found != models().end()) return *found;
  std::vector<std::string> names;
  for (const Model& model : models()) names.push_back(model.name);
  throw Error(Code::kInvalidArgument,
              fmt::format("there is no model '{}'{}", name, internal::nearest_name(name, names)));
}

}  // namespace ferry

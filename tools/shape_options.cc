// Defines the names and ranges of the options of a shape; see shape_options.h.
#include "tools/shape_options.h"

#include <charconv>

#include "tools/refuse.h"

namespace ferry::tools {

namespace {

// The whole text as a number of ranks; 0: it is none.
int number_of_ranks(std::string_view text) noexcept {
  constexpr int kMostRanks = 65536;
  int number = 0;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && at == end && number <= kMostRanks ? number : 0;
}

}  // namespace

void add_shape(CLI::App& app, ExchangeConfig& shape) {
  app.add_option("--tokens", shape.max_tokens, "Tokens of each rank")
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  app.add_option("--hidden", shape.hidden, "Elements of a token")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--top-k", shape.top_k, "Experts of a token")
      ->check(CLI::Range(1, 32))
      ->capture_default_str();
  app.add_option("--experts", shape.num_experts, "Experts of all ranks")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  add_choice<DataType>(
      app, "--dtype", "Type of an element",
      {{"bf16", DataType::kBf16}, {"fp16", DataType::kFp16}, {"fp32", DataType::kFp32}},
      shape.dtype);
  add_choice<Layout>(app, "--layout", "Order of the rows received",
                     {{"rank_major", Layout::kRankMajor},
                      {"expert_major", Layout::kExpertMajor},
                      {"padded", Layout::kPadded}},
                     shape.layout);
  add_choice<Wire>(app, "--wire", "Encoding of rows in dispatch",
                   {{"none", Wire::kNone},
                    {"int8", Wire::kInt8},
                    {"fp8", Wire::kFp8},
                    {"fp8_pow2", Wire::kFp8Pow2},
                    {"fp8_ue8m0", Wire::kFp8Ue8m0}},
                   shape.wire);
  add_choice<NodeSums>(app, "--node-sums", "What a node sends back for a token",
                       {{"row", NodeSums::kRowType},
                        {"row_type", NodeSums::kRowType},
                        {"fp32", NodeSums::kFp32},
                        {"exact", NodeSums::kExact}},
                       shape.node_sums);
}

void check_shape(const ExchangeConfig& shape) {
  if (shape.top_k <= shape.num_experts) return;
  refuse("--top-k {} needs that many distinct experts, but --experts is {}", shape.top_k,
         shape.num_experts);
}

std::optional<Split> parse_split(std::string_view text) noexcept {
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos) return std::nullopt;
  const Split split{.token_ranks = number_of_ranks(text.substr(0, colon)),
                    .expert_ranks = number_of_ranks(text.substr(colon + 1))};
  if (split.token_ranks < 1 || split.expert_ranks < 1) return std::nullopt;
  return split;
}

void set_roles(const Split& split, ExchangeConfig& exchange) {
  const int num_ranks = split.token_ranks + split.expert_ranks;
  for (int rank = 0; rank < num_ranks; ++rank)
    (rank < split.token_ranks ? exchange.token_ranks : exchange.expert_ranks).push_back(rank);
}

}  // namespace ferry::tools

// The oracle's combine: for each token, the rows that the dispatch placed for it, summed in the
// order of design 5. Called by tests and by `ferry bench --check`; calls nothing of the engine but
// the scalar conversions.
#include "exchange/reference.h"
#include "exchange/reference_rows.h"
#include "kernels/kernels.h"

namespace ferry::internal {
namespace {

// A row of expert outputs that goes back to a token.
struct Term {
  int rank = 0;          // whose output it is
  std::int64_t row = 0;  // where in that rank's expert_rows
  int k = 0;
};

using TermsOfToken = std::vector<Term>;

// [R][T]: the terms of each token. Expert layouts: k ascending; kRankMajor: ranks ascending.
std::vector<std::vector<TermsOfToken>> find_terms(const ExchangeConfig& config,
                                                  const std::vector<RankInput>& inputs) {
  std::vector<std::vector<TermsOfToken>> terms(inputs.size());
  for (std::size_t rank = 0; rank < inputs.size(); ++rank)
    terms[rank].resize(inputs[rank].num_tokens);
  for (int rank = 0; rank < static_cast<int>(inputs.size()); ++rank) {
    const std::vector<ReferenceRow> rows = reference_rows(config, inputs, rank).rows;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (rows[i].source < 0) continue;
      TermsOfToken& of_token = terms[rows[i].source][rows[i].token];
      auto position = of_token.end();
      if (config.layout != Layout::kRankMajor) {
        position = of_token.begin();
        while (position != of_token.end() && position->k < rows[i].k) ++position;
      }
      of_token.insert(position, Term{rank, static_cast<std::int64_t>(i), rows[i].k});
    }
  }
  return terms;
}

struct CombineShape {
  const ExchangeConfig& config;
  const std::vector<RankOutput>& outputs;
  std::int64_t hidden;
  DataType row_type;
};

float element(const std::vector<std::byte>& matrix, std::int64_t index, DataType type) {
  return to_float(&matrix[static_cast<std::size_t>(index) * element_bytes(type)], type);
}

// The rank whose tokens are summed.
struct TokenSide {
  const RankInput& input;
  const RankOutput& own;
  RankCombined& combined;
};

void sum_token(const CombineShape& shape, const TokenSide& side, std::int64_t token,
               const TermsOfToken& terms) {
  const auto& [input, own, combined] = side;
  for (std::int64_t h = 0; h < shape.hidden; ++h) {
    const std::int64_t index = token * shape.hidden + h;
    float sum = 0.0F;
    for (const std::vector<std::byte>& bias : own.bias) {
      if (!bias.empty()) sum = sum + element(bias, index, own.out_type);
    }
    for (const Term& term : terms) {
      const float value = element(shape.outputs[term.rank].expert_rows, term.row * shape.hidden + h,
                                  shape.row_type);
      const float weight =
          own.weighted ? input.topk_weights[token * shape.config.top_k + term.k] : 1.0F;
      const float product = own.weighted ? weight * value : value;
      sum = sum + product;
    }
    from_float(sum, &combined.out[static_cast<std::size_t>(index) * element_bytes(own.out_type)],
               own.out_type);
  }
}

// The scalars that came home for one token, [K].
void bring_weights(const ExchangeConfig& config, const std::vector<RankOutput>& outputs,
                   std::int64_t token, const TermsOfToken& terms, RankCombined& combined) {
  float* const home = &combined.out_topk_weights[token * config.top_k];
  for (const Term& term : terms) {
    const std::vector<float>& weights = outputs[term.rank].row_weights;
    if (config.layout != Layout::kRankMajor) {
      home[term.k] = weights[term.row];
      continue;
    }
    for (int k = 0; k < config.top_k; ++k) home[k] = home[k] + weights[term.row * config.top_k + k];
  }
}

}  // namespace

std::vector<RankCombined> reference_combine(const ExchangeConfig& config,
                                            const std::vector<RankInput>& inputs,
                                            const std::vector<RankOutput>& outputs,
                                            std::int64_t hidden, DataType row_type) {
  const CombineShape shape{config, outputs, hidden, row_type};
  const std::vector<std::vector<TermsOfToken>> terms = find_terms(config, inputs);
  bool weights_come_home = false;
  for (const RankOutput& output : outputs)
    weights_come_home = weights_come_home || !output.row_weights.empty();
  std::vector<RankCombined> all(inputs.size());
  for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
    const std::int64_t num_tokens = inputs[rank].num_tokens;
    all[rank].out.resize(static_cast<std::size_t>(num_tokens * hidden) *
                         element_bytes(outputs[rank].out_type));
    if (weights_come_home) all[rank].out_topk_weights.assign(num_tokens * config.top_k, 0.0F);
    for (std::int64_t token = 0; token < num_tokens; ++token) {
      sum_token(shape, {inputs[rank], outputs[rank], all[rank]}, token, terms[rank][token]);
      if (weights_come_home) bring_weights(config, outputs, token, terms[rank][token], all[rank]);
    }
  }
  return all;
}

}  // namespace ferry::internal

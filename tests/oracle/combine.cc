// The oracle's combine: for each token, the rows that the dispatch placed for it and the summands
// that its own rank computes, summed in the order of docs/numerics.md, between nodes in two steps.
// It uses the oracle's routing, rows and wires, and nothing of the engine but the scalar
// conversions.
#include <algorithm>
#include <map>
#include <span>
#include <utility>

#include "kernels/kernels.h"
#include "oracle/reference.h"
#include "oracle/rows.h"
#include "oracle/wire.h"

namespace ferry::internal {
namespace {

using Floats = std::vector<float>;

// A row of expert outputs.
struct RowAt {
  int rank = 0;  // whose output it is
  std::int64_t row = 0;
};

// The rows that make one term: one row of each rank of the tensor-parallel group that computed it,
// first that of the token's own tp_rank, then those of the next tp_ranks (cyclic).
using Term = std::vector<RowAt>;  // [tp_size]

// The terms of a token in the order of the sum. Keys are (k, 0); with kRankMajor (0, member).
using TermsOfToken = std::map<std::pair<int, int>, Term>;

struct Combine {
  const ExchangeConfig& config;
  const std::vector<RankInput>& inputs;
  const std::vector<RankOutput>& outputs;
  std::int64_t hidden;
  DataType row_type;
  ReferenceRouting routing;
  std::vector<std::vector<TermsOfToken>> terms;  // [R][T]

  bool rank_major() const { return config.layout == Layout::kRankMajor; }
  // Whether rows are summed at the nodes that have them, and these sums at the source.
  bool sums_at_nodes() const {
    const auto elsewhere = [&](const RankInput& input) { return input.node != inputs[0].node; };
    return config.node_sums != NodeSums::kExact &&
           std::any_of(inputs.begin(), inputs.end(), elsewhere);
  }
};

void add_rows_of_rank(Combine& combine, int member, int tp_rank) {
  const ReferenceRouting& routing = combine.routing;
  const int tp_size = combine.config.tp_size;
  const std::vector<ReferenceRow> rows =
      reference_rows(combine.config, routing, member, tp_rank).rows;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].member < 0) continue;
    const int source = routing.members[rows[i].member].ranks[rows[i].tp_rank];
    const std::pair<int, int> order =
        combine.rank_major() ? std::pair(0, member) : std::pair(rows[i].k, 0);
    Term& term = combine.terms[source][rows[i].token][order];
    term.resize(tp_size);
    term[(tp_rank - rows[i].tp_rank + tp_size) % tp_size] = {routing.members[member].ranks[tp_rank],
                                                             static_cast<std::int64_t>(i)};
  }
}

void find_terms(Combine& combine) {
  combine.terms.resize(combine.inputs.size());
  for (const ReferenceMember& member : combine.routing.members) {
    for (const int rank : member.ranks) combine.terms[rank].resize(combine.inputs[rank].num_tokens);
  }
  for (int member = 0; member < static_cast<int>(combine.routing.members.size()); ++member) {
    for (int tp_rank = 0; tp_rank < combine.config.tp_size; ++tp_rank)
      add_rows_of_rank(combine, member, tp_rank);
  }
}

Floats floats_of(std::span<const std::byte> row, DataType type) {
  Floats values;
  values.reserve(row.size() / element_bytes(type));
  for (std::size_t at = 0; at < row.size(); at += element_bytes(type))
    values.push_back(to_float(&row[at], type));
  return values;
}

std::vector<std::byte> round_to(DataType type, const Floats& values) {
  std::vector<std::byte> row(values.size() * element_bytes(type));
  for (std::size_t h = 0; h < values.size(); ++h)
    from_float(values[h], &row[h * element_bytes(type)], type);
  return row;
}

// Row `row` of a matrix [rows, hidden] of `type`.
std::span<const std::byte> row_of(const std::vector<std::byte>& matrix, std::int64_t row,
                                  std::int64_t hidden, DataType type) {
  const std::size_t bytes = static_cast<std::size_t>(hidden) * element_bytes(type);
  return std::span(matrix).subspan(row * bytes, bytes);
}

void add(Floats& sum, const Floats& term) {
  for (std::size_t h = 0; h < sum.size(); ++h) sum[h] = sum[h] + term[h];
}

void add_weighted(Floats& sum, float weight, const Floats& term) {
  for (std::size_t h = 0; h < sum.size(); ++h) {
    const float product = weight * term[h];
    sum[h] = sum[h] + product;
  }
}

// A term as it arrives: the rows of its ranks added, rounded to their type, encoded and decoded.
Floats arrived(const Combine& combine, const Term& term) {
  Floats values;
  for (const RowAt& at : term) {
    const Floats row = floats_of(
        row_of(combine.outputs[at.rank].expert_rows, at.row, combine.hidden, combine.row_type),
        combine.row_type);
    if (values.empty()) {
      values = row;
    } else {
      add(values, row);
    }
  }
  const std::vector<std::byte> sent = round_to(combine.row_type, values);
  return floats_of(reference_travel(combine.config.combine_wire, sent, combine.row_type),
                   combine.row_type);
}

// One rank as the owner of tokens.
class TokenSide {
 public:
  TokenSide(const Combine& combine, int rank)
      : combine_(combine), rank_(rank), input_(combine.inputs[rank]), own_(combine.outputs[rank]) {}

  // The sum of all terms in float32, before it is rounded to the type of the output.
  Floats sum(std::int64_t token) const {
    Floats sum(combine_.hidden, 0.0F);
    add_matrix(sum, own_.bias[0], token);
    add_matrix(sum, own_.bias[1], token);
    const TermsOfToken& terms = combine_.terms[rank_][token];
    const bool rows_first = combine_.sums_at_nodes() || combine_.rank_major();
    if (combine_.sums_at_nodes()) {
      for (const auto& [lowest, rows] : origins(terms, 0)) add(sum, sum_of_origin(token, rows, 0));
    } else if (combine_.rank_major()) {
      add_rows(sum, token, terms);
    }
    for (int k = 0; k < combine_.routing.entries_per_token; ++k) {
      if (!rows_first && terms.contains({k, 0})) add_routed(sum, token, k, terms);
      const int special = combine_.routing.entry(rank_, token, k).special;
      if (special >= combine_.config.special.zero)
        add_summand(sum, token, k, special_term(token, special - combine_.config.special.zero));
    }
    add_matrix(sum, own_.shared_output, token);
    add_matrix(sum, own_.residual, token);
    return sum;
  }

  // The weights that return to the token's rank, [K].
  Floats weights_home(std::int64_t token) const {
    const bool at_nodes = combine_.rank_major() && combine_.sums_at_nodes();
    if (!at_nodes) return weights_of(combine_.terms[rank_][token]);
    Floats home(combine_.config.top_k, 0.0F);
    for (const auto& [lowest, terms] : origins(combine_.terms[rank_][token], 0))
      add(home, weights_of(terms));
    return home;
  }

 private:
  bool fullmesh() const { return combine_.config.algorithm == Algorithm::kFullmesh; }
  // The number of levels of groups in which rows are summed. The last level is the node. It is the
  // only one where rows go straight to their node: with kFullmesh, or when not all ranks take part.
  int num_levels() const {
    const bool straight = fullmesh() || !input_.active_ranks.empty();
    return straight ? 1 : static_cast<int>(input_.outer.size()) + 1;
  }
  int group_of(int rank, int level) const {
    const RankInput& input = combine_.inputs[rank];
    return level + 1 == num_levels() ? input.node : input.outer[level];
  }

  // The terms by the place where they are summed: the group of `level` that has their rows, or with
  // kFullmesh outside the source's own node the rank that has them. A group stands under its lowest
  // rank.
  std::map<int, TermsOfToken> origins(const TermsOfToken& terms, int level) const {
    std::map<int, TermsOfToken> origins;
    for (const auto& [order, term] : terms) {
      const int rank = term[0].rank;
      int lowest = 0;
      while (group_of(lowest, level) != group_of(rank, level)) ++lowest;
      if (fullmesh() && combine_.inputs[rank].node != input_.node) lowest = rank;
      origins[lowest][order] = term;
    }
    return origins;
  }

  // The sum of the terms of one such place, as the next level out receives it.
  Floats sum_of_origin(std::int64_t token, const TermsOfToken& terms, int level) const {
    Floats sum(combine_.hidden, 0.0F);
    if (level + 1 == num_levels()) {
      add_rows(sum, token, terms);
    } else {
      for (const auto& [lowest, part] : origins(terms, level + 1))
        add(sum, sum_of_origin(token, part, level + 1));
    }
    if (combine_.config.node_sums == NodeSums::kFp32) return sum;
    return floats_of(round_to(combine_.row_type, sum), combine_.row_type);
  }

  Floats weights_of(const TermsOfToken& terms) const {
    const int top_k = combine_.config.top_k;
    Floats home(top_k, 0.0F);
    for (const auto& [order, term] : terms) {
      for (int k = 0; k < top_k; ++k) {
        if (combine_.rank_major()) home[k] = home[k] + scalar(term, top_k, k);
        if (!combine_.rank_major() && order.first == k) home[k] = scalar(term, 1, 0);
      }
    }
    return home;
  }

  // The weights of one term, added in the order of its rows.
  float scalar(const Term& term, int columns, int column) const {
    float sum = 0.0F;
    for (std::size_t i = 0; i < term.size(); ++i) {
      const Floats& weights = combine_.outputs[term[i].rank].row_weights;
      const float weight = weights[term[i].row * columns + column];
      sum = i == 0 ? weight : sum + weight;
    }
    return sum;
  }

  void add_matrix(Floats& sum, const std::vector<std::byte>& matrix, std::int64_t token) const {
    if (matrix.empty()) return;
    add(sum, floats_of(row_of(matrix, token, combine_.hidden, own_.out_type), own_.out_type));
  }

  void add_rows(Floats& sum, std::int64_t token, const TermsOfToken& terms) const {
    for (const auto& [order, term] : terms) {
      if (combine_.rank_major()) {
        add(sum, arrived(combine_, term));
      } else {
        add_routed(sum, token, order.first, terms);
      }
    }
  }

  // Adds the row of entry k. With partials, adds nothing until the last entry of the rank of that
  // row, and then the sum of all rows of that rank.
  void add_routed(Floats& sum, std::int64_t token, int k, const TermsOfToken& terms) const {
    const Term& here = terms.at({k, 0});
    if (own_.partials == Partials::kNone)
      return add_summand(sum, token, k, arrived(combine_, here));
    Floats partial(combine_.hidden, 0.0F);
    int last = k;
    for (const auto& [order, term] : terms) {
      if (term[0].rank != here[0].rank) continue;
      add_summand(partial, token, order.first, arrived(combine_, term));
      last = order.first;
    }
    if (last == k) add(sum, floats_of(round_to(combine_.row_type, partial), combine_.row_type));
  }

  // Adds the row of entry k, times the entry's weight unless the expert is a shared one.
  void add_summand(Floats& sum, std::int64_t token, int k, const Floats& term) const {
    const int top_k = combine_.config.top_k;
    if (own_.weighted && k < top_k) {
      add_weighted(sum, input_.topk_weights[token * top_k + k], term);
    } else {
      add(sum, term);
    }
  }

  // The term of a copy or constant expert; `index` counts from the first copy expert.
  Floats special_term(std::int64_t token, int index) const {
    const ExchangeConfig& config = combine_.config;
    const auto x = row_of(input_.tokens, token, config.hidden, config.dtype);
    if (index < config.special.copy) return floats_of(x, config.dtype);
    const auto constant = [&](const std::vector<std::byte>& matrix) {
      return row_of(matrix, index - config.special.copy, config.hidden, config.dtype);
    };
    return reference_constant_term(x, constant(own_.alpha1), constant(own_.alpha2),
                                   constant(own_.v), config.dtype);
  }

  const Combine& combine_;
  const int rank_;
  const RankInput& input_;
  const RankOutput& own_;
};

void append(std::vector<std::byte>& bytes, const std::vector<std::byte>& more) {
  bytes.insert(bytes.end(), more.begin(), more.end());
}

RankCombined combine_tokens(const Combine& combine, int rank, bool weights_come_home) {
  const RankOutput& own = combine.outputs[rank];
  const TokenSide side(combine, rank);
  RankCombined combined;
  for (std::int64_t token = 0; token < combine.inputs[rank].num_tokens; ++token) {
    const Floats z = side.sum(token);
    append(combined.out, round_to(own.out_type, z));
    if (!own.residual.empty()) {
      const ReferenceNorm norm = reference_norm(z, own.gamma, own.epsilon, own.out_type);
      append(combined.y, norm.y);
      combined.rstd.push_back(norm.rstd);
    }
    if (!weights_come_home) continue;
    const Floats home = side.weights_home(token);
    combined.out_topk_weights.insert(combined.out_topk_weights.end(), home.begin(), home.end());
  }
  return combined;
}

}  // namespace

std::vector<RankCombined> reference_combine(const ExchangeConfig& config,
                                            const std::vector<RankInput>& inputs,
                                            const std::vector<RankOutput>& outputs,
                                            std::int64_t hidden, DataType row_type) {
  Combine combine{config, inputs, outputs, hidden, row_type, reference_routing(config, inputs), {}};
  find_terms(combine);
  bool weights_come_home = false;
  for (const RankOutput& output : outputs)
    weights_come_home = weights_come_home || !output.row_weights.empty();
  std::vector<RankCombined> all(inputs.size());
  for (const ReferenceMember& member : combine.routing.members) {
    for (const int rank : member.ranks)
      all[rank] = combine_tokens(combine, rank, weights_come_home);
  }
  return all;
}

}  // namespace ferry::internal

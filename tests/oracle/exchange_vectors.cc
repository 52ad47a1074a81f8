// Cases of whole operations: the conformance suite's scenarios, and the vector that a real CANN run
// printed. Part of vectors_test.cc.
#include <algorithm>
#include <cstring>
#include <limits>

#include "exchange/cann_golden.h"
#include "exchange/scenario.h"
#include "kernels/kernels.h"
#include "oracle/reference.h"
#include "oracle/vectors.h"

namespace ferry::test {
namespace {

using internal::RankInput;
using internal::RankOutput;
using internal::RankReceived;

constexpr int kMaxRanks = 8;
constexpr int kScenariosOfAShape = 40;
// Rows of up to two groups of channels; small, for padded layouts multiply everything.
const ScenarioLimits kLimits{.max_rounds = 2,
                             .max_tokens = 12,
                             .max_hidden = 140,
                             .wide_rows = false,
                             .many_experts = false,
                             .roles = false};  // the vectors are older than roles

void add_inputs(CaseDigests& cases, const ExchangeConfig& config,
                const std::vector<RankInput>& inputs) {
  for (const RankInput& input : inputs) {
    cases.add(input.tokens, config.dtype);
    cases.add(input.topk_ids);
    cases.add(input.topk_weights);
    cases.add(input.token_mask);
    cases.add(input.topk_mask);
    cases.add(input.factors);
    cases.add(input.token_scales);
    cases.add(input.replica_table);
  }
}

void add_received(CaseDigests& cases, const std::vector<RankReceived>& all) {
  for (const RankReceived& received : all) {
    const internal::ReferenceScales& scales = received.scales;
    cases.add(received.rows, received.dtype);
    cases.add(scales.bytes);
    cases.add(std::vector{scales.columns, scales.element_bytes, scales.row_stride,
                          scales.column_stride, scales.section_stride});
    cases.add(received.row_valid);
    cases.add(received.sources);
    cases.add(received.weights);
    cases.add(received.topk_ids);
    cases.add(received.tokens_per_expert);
    cases.add(received.aligned_tokens_per_expert);
    cases.add(received.expert_offsets);
    cases.add(received.running_counts);
    cases.add(received.running_rows_per_rank);
  }
}

void add_dispatch(CaseDigests& cases, const ExchangeConfig& config, const Round& round) {
  cases.begin_case(std::string("dispatch ") + layout_name(config.layout));
  add_inputs(cases, config, round.inputs);
  add_received(cases, round.expected);
}

// NaN in rows that must not be read, and in a few that are; infinities as well.
void spoil_rows(const Round& round, CombineCase& combine, Random& random) {
  const std::size_t bytes = element_bytes(combine.row_type);
  for (std::size_t rank = 0; rank < combine.outputs.size(); ++rank) {
    std::vector<std::byte>& rows = combine.outputs[rank].expert_rows;
    for (std::int64_t i = 0; i < round.expected[rank].num_rows; ++i) {
      std::byte* const row = rows.data() + static_cast<std::size_t>(i * combine.hidden) * bytes;
      std::byte* const element = row + random.below(combine.hidden) * bytes;
      if (round.expected[rank].row_valid[i] == 0) {
        std::memset(row, 0xff, static_cast<std::size_t>(combine.hidden) * bytes);
      } else if (random.one_in(20)) {
        const float infinity = std::numeric_limits<float>::infinity();
        internal::from_float(random.one_in(2) ? infinity : -infinity, element, combine.row_type);
      } else if (random.one_in(20)) {
        internal::from_float(std::numeric_limits<float>::quiet_NaN(), element, combine.row_type);
      }
    }
  }
}

void add_combine(CaseDigests& cases, const ExchangeConfig& config, const CombineCase& combine) {
  cases.begin_case(std::string("combine ") + layout_name(config.layout));
  for (std::size_t rank = 0; rank < combine.outputs.size(); ++rank) {
    const RankOutput& output = combine.outputs[rank];
    cases.add(output.expert_rows, combine.row_type);
    cases.add(output.row_weights);
    for (const auto* of_config : {&output.alpha1, &output.alpha2, &output.v})
      cases.add(*of_config, config.dtype);
    for (const auto* of_output :
         {&output.shared_output, &output.residual, &output.gamma, &output.bias[0], &output.bias[1]})
      cases.add(*of_output, output.out_type);
    const internal::RankCombined& expected = combine.expected[rank];
    cases.add(expected.out, output.out_type);
    cases.add(expected.y, output.out_type);
    cases.add(expected.rstd);
    cases.add(expected.out_topk_weights);
  }
}

void add_scenario(CaseDigests& cases, Scenario scenario) {
  Random random(scenario.seed, 77);
  for (Round& round : scenario.rounds) {
    add_dispatch(cases, scenario.config, round);
    for (CombineCase& combine : round.combines) {
      spoil_rows(round, combine, random);
      combine.expected = internal::reference_combine(scenario.config, round.inputs, combine.outputs,
                                                     combine.hidden, combine.row_type);
      add_combine(cases, scenario.config, combine);
    }
  }
}

}  // namespace

void add_exchanges(CaseDigests& cases, std::uint64_t seed) {
  std::vector<Nodes> shapes = every_shape();
  for (int num_ranks = 1; num_ranks <= kMaxRanks; ++num_ranks)
    shapes.push_back(test_nodes(num_ranks));
  for (const Nodes& nodes : shapes) {
    for (std::uint64_t i = 0; i < kScenariosOfAShape; ++i)
      add_scenario(cases, make_scenario(nodes, seed * kScenariosOfAShape + i, kLimits));
  }
}

void add_cann_golden(CaseDigests& cases) {
  for (const int top_k : cann_golden::kTopK) {
    const ExchangeConfig config = cann_golden::config(top_k);
    Round round;
    round.inputs = cann_golden::inputs(top_k);
    expect_dispatch(config, round);
    add_dispatch(cases, config, round);
  }
}

}  // namespace ferry::test

// Cases for the operators: inputs of all ranks from one seed, for named features or at random. A
// case runs on a group, and every output is compared with the model bit for bit.
#pragma once

#include <string>
#include <vector>

#include "exchange/frame.h"
#include "ferry/cann.h"
#include "operator_model.h"

namespace ferry::test {

enum class Masks { kNone, kPrefix, kTokens, kEntries };

struct InputOptions {
  Masks masks = Masks::kNone;
  bool minus_one = false;   // some ids are -1
  bool duplicates = false;  // ids of a token may repeat
  bool shared_x = false;
  bool norm = false;
};

// Makes the inputs of every rank with these batch sizes; `c` has all other settings.
void fill_inputs(OperatorCase& c, const std::vector<std::int64_t>& batches,
                 const InputOptions& options = {});
// Random factors for quant modes 1 and 2: one row, or one per expert.
void fill_factors(OperatorCase& c, bool per_expert, bool per_channel);
// elastic_info that keeps these ranks, in this order.
void scale_down(OperatorCase& c, const std::vector<int>& kept);
OperatorCase random_case(std::uint64_t seed);
std::string describe(const OperatorCase& c);

cann::Attributes attributes_of(const OperatorCase& c, int rank);

// A case and the results of the model.
struct PreparedCase {
  OperatorCase c;
  std::vector<OperatorRows> dispatched;
  std::vector<Bytes> expert_rows;
  std::vector<OperatorResult> combined;
};
PreparedCase prepare(OperatorCase c);

// Dispatch and combine on this rank; throws Failure where an output differs from the model.
void play(const PreparedCase& prepared, const cann::Communicator& communicator, int rank);
// Prepares the case, runs the ranks, and runs the case twice on the same communicator.
void run_case(const OperatorCase& c, Mode mode = Mode::kThreads);

void require_success(const cann::Result& result, const std::string& what);

}  // namespace ferry::test

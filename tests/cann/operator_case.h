// Making cases for the operators: inputs of all ranks from one seed, for named features or at
// random; and playing one on a group, every output compared with the model bit for bit.
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

// Inputs of every rank with these batch sizes; `c` says everything else.
void fill_inputs(OperatorCase& c, const std::vector<std::int64_t>& batches,
                 const InputOptions& options = {});
// Random factors for quant modes 1 and 2: one row, or one per expert.
void fill_factors(OperatorCase& c, bool per_expert, bool per_channel);
// elastic_info that keeps these ranks, in this order.
void scale_down(OperatorCase& c, const std::vector<int>& kept);
OperatorCase random_case(std::uint64_t seed);
std::string describe(const OperatorCase& c);

cann::Attributes attributes_of(const OperatorCase& c, int rank);

// A case and what the model says of it.
struct PreparedCase {
  OperatorCase c;
  std::vector<OperatorRows> dispatched;
  std::vector<Bytes> expert_rows;
  std::vector<OperatorResult> combined;
};
PreparedCase prepare(OperatorCase c);

// Dispatch and combine on this rank; throws Failure when something is not as the model says.
void play(const PreparedCase& prepared, const cann::Communicator& communicator, int rank);
// Prepares, runs ranks, and plays it twice on the same communicator.
void run_case(const OperatorCase& c, Mode mode = Mode::kThreads);

void require_success(const cann::Result& result, const std::string& what);

}  // namespace ferry::test

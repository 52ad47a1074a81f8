// The operators with ranks as processes: random cases, and a refusal before there is an exchange.
#include <gtest/gtest.h>

#include "operator_case.h"
#include "small_call.h"

namespace ferry::test {
namespace {

TEST(Processes, RandomCases) {
  for (int seed = 5001; seed <= 5012 && !testing::Test::HasFailure(); ++seed)
    run_case(random_case(seed), Mode::kProcesses);
}

TEST(Processes, AreToldOfARefusedFirstCall) {
  run_ranks(Mode::kProcesses, SmallCall::kRanks, [](Group group) {
    const int rank = group.rank();
    const cann::Communicator communicator(std::move(group), {.group_ep = "ep", .group_tp = "tp"});
    SmallCall call(rank);
    cann::DispatchArgs args = call.dispatch(rank);
    if (rank == 1) args.quant_mode = 4;
    const cann::Result result = moe_distribute_dispatch(communicator, args);
    require(!result.ok() && contains(result.message(), "quant_mode is 4"), result.message());
    require_success(moe_distribute_dispatch(communicator, call.dispatch(rank)), "after it");
  });
}

}  // namespace
}  // namespace ferry::test

// Ranks that do not do the same: other shapes, another operation, a skipped call, other settings.
// All are told who, and the group works after, unless somebody never came.
#include <gtest/gtest.h>

#include "base/clock.h"
#include "seat.h"

namespace ferry::test {
namespace {

constexpr int kRanks = 4;
constexpr int kOdd = 2;  // the rank that does otherwise

class Disagreement : public testing::TestWithParam<Mode> {
 protected:
  void run(const Scenario& scenario, const std::function<void(Group, Seat&)>& body,
           const GroupOptions& options = {}) {
    const auto with_seat = [&](Group group) {
      Seat seat(group, scenario);
      body(std::move(group), seat);
    };
    run_ranks(GetParam(), kRanks, with_seat, scenario.describe(), options);
  }
};

ExchangeConfig small_config() {
  ExchangeConfig config;
  config.max_tokens = 10;
  config.hidden = 48;
  config.num_experts = 9;
  config.top_k = 2;
  return config;
}

void require_mismatch(const Status& status, const std::vector<std::string>& parts) {
  require_status(status, Code::kMismatch, parts, "disagreement");
  require_status(status, Code::kMismatch, {"rank 2"}, "disagreement");
  require(status.culprit() == kOdd,
          "culprit " + std::to_string(status.culprit()) + ": " + status.message());
  require(status.group_usable(), "the group is usable");
}

// A whole round still works.
void require_works(Seat& seat, int round) {
  Received received = seat.dispatch(round);
  seat.combine(round, received.handle, &received);
}

TEST_P(Disagreement, CombineOfAnotherHidden) {
  const Scenario scenario = plain_scenario(kRanks, small_config(), 2, 41);
  run(scenario, [&](Group, Seat& seat) {
    const Received received = seat.dispatch(0);
    Random random(1);
    CombineCall call(seat.exchange(), scenario, scenario.rounds[0], scenario.rounds[0].combines[0],
                     seat.rank(), received.handle, nullptr, random);
    if (seat.rank() == kOdd) call.args().expert_rows.hidden = 40;
    if (seat.rank() == kOdd) call.args().expert_rows.pitch_bytes = 96;
    require_mismatch(seat.exchange().combine(call.args()), {"40", "48"});
    require_works(seat, 1);
  });
}

TEST_P(Disagreement, CombineOfAnotherType) {
  const Scenario scenario = plain_scenario(kRanks, small_config(), 2, 42);
  run(scenario, [&](Group, Seat& seat) {
    const Received received = seat.dispatch(0);
    Random random(1);
    CombineCall call(seat.exchange(), scenario, scenario.rounds[0], scenario.rounds[0].combines[0],
                     seat.rank(), received.handle, nullptr, random);
    if (seat.rank() == kOdd) call.args().expert_rows.dtype = DataType::kFp16;
    require_mismatch(seat.exchange().combine(call.args()), {"fp16", "bf16"});
    require_works(seat, 1);
  });
}

TEST_P(Disagreement, CombineWhereOthersDispatch) {
  const Scenario scenario = plain_scenario(kRanks, small_config(), 3, 43);
  run(scenario, [&](Group, Seat& seat) {
    const Received received = seat.dispatch(0);
    Random random(1);
    Received none;
    DispatchCall dispatch(scenario, scenario.rounds[1], seat.rank(), random);
    CombineCall combine(seat.exchange(), scenario, scenario.rounds[0],
                        scenario.rounds[0].combines[0], seat.rank(), received.handle, nullptr,
                        random);
    const Status status = seat.rank() == kOdd ? seat.exchange().combine(combine.args())
                                              : seat.exchange().dispatch(dispatch.args(), none);
    require_mismatch(status, {"dispatch", "combine"});
    require_works(seat, 2);
  });
}

// Rank 2 thinks that a dispatch has happened already: it is one call ahead.
TEST_P(Disagreement, SkippedDispatchIsNoticedAtTheNextCall) {
  const Scenario scenario = plain_scenario(kRanks, small_config(), 3, 44);
  run(scenario, [&](Group, Seat& seat) {
    const Handle handle = seat.dispatch(0).handle;
    Random random(1);
    if (seat.rank() == kOdd) {
      CombineCall combine(seat.exchange(), scenario, scenario.rounds[0],
                          scenario.rounds[0].combines[0], seat.rank(), handle, nullptr, random);
      require_mismatch(seat.exchange().combine(combine.args()), {"dispatch", "combine"});
    } else {
      Received none;
      DispatchCall dispatch(scenario, scenario.rounds[1], seat.rank(), random);
      require_mismatch(seat.exchange().dispatch(dispatch.args(), none), {"dispatch", "combine"});
    }
    require_works(seat, 2);
  });
}

TEST_P(Disagreement, HandlesOfDifferentDispatches) {
  const Scenario scenario = plain_scenario(kRanks, small_config(), 3, 45);
  run(scenario, [&](Group, Seat& seat) {
    const Handle handles[] = {seat.dispatch(0).handle, seat.dispatch(1).handle};
    const int round = seat.rank() == kOdd ? 1 : 0;
    Random random(1);
    CombineCall call(seat.exchange(), scenario, scenario.rounds[round],
                     scenario.rounds[round].combines[0], seat.rank(), handles[round], nullptr,
                     random);
    call.args().row_weights = nullptr;
    call.args().out_topk_weights = nullptr;
    require_mismatch(seat.exchange().combine(call.args()), {"handle"});
    require_works(seat, 2);
  });
}

TEST_P(Disagreement, CachedDispatchWhereOthersCount) {
  const Scenario scenario = plain_scenario(kRanks, small_config(), 2, 46);
  run(scenario, [&](Group, Seat& seat) {
    const Handle handle = seat.dispatch(0).handle;
    Random random(1);
    DispatchCall call(scenario, scenario.rounds[1], seat.rank(), random);
    if (seat.rank() == kOdd) call.args().topk_ids = {};
    if (seat.rank() == kOdd) call.args().cached = handle;
    Received none;
    require_mismatch(seat.exchange().dispatch(call.args(), none), {"cached"});
    require_works(seat, 1);
  });
}

TEST_P(Disagreement, OneRankGivesNoWeights) {
  const Scenario scenario = plain_scenario(kRanks, small_config(), 2, 47);
  run(scenario, [&](Group, Seat& seat) {
    Random random(1);
    DispatchCall call(scenario, scenario.rounds[0], seat.rank(), random);
    if (seat.rank() == kOdd) call.args().topk_weights = nullptr;
    Received none;
    require_mismatch(seat.exchange().dispatch(call.args(), none), {"weights"});
    require_works(seat, 1);
  });
}

// A rank without tokens agrees with either, so nobody may be compared with it alone.
TEST_P(Disagreement, OneRankGivesNoWeightsAndAnotherHasNoTokens) {
  const Scenario scenario = plain_scenario(kRanks, small_config(), 2, 49);
  run(scenario, [&](Group, Seat& seat) {
    Random random(1);
    DispatchCall call(scenario, scenario.rounds[0], seat.rank(), random);
    if (seat.rank() == 0) call.args().tokens.num_rows = 0;
    if (seat.rank() == 0 || seat.rank() == kOdd) call.args().topk_weights = nullptr;
    Received none;
    require_mismatch(seat.exchange().dispatch(call.args(), none), {"weights"});
    require_works(seat, 1);
  });
}

TEST_P(Disagreement, ACallThatNeverComesIsNamedAtTheDeadline) {
  const Scenario scenario = plain_scenario(kRanks, small_config(), 2, 48);
  const auto body = [&](Group group, Seat& seat) {
    require_works(seat, 0);
    Random random(1);
    DispatchCall call(scenario, scenario.rounds[1], seat.rank(), random);
    Received none;
    const std::int64_t began = std::chrono::steady_clock::now().time_since_epoch().count();
    if (seat.rank() == kOdd) nap(1200);
    const Status status = seat.exchange().dispatch(call.args(), none);
    const double seconds =
        static_cast<double>(std::chrono::steady_clock::now().time_since_epoch().count() - began) *
        1e-9;
    require(!group.usable() && !status.group_usable(), "the group is broken: " + status.message());
    if (seat.rank() == kOdd) {
      require(status.culprit() == kOdd,
              "the late rank is told that it was itself: " + status.message());
      return;
    }
    require_status(status, Code::kTimeout,
                   {"dispatch 3: gave up waiting for counts of rank", ", which came to call",
                    " 2; rank 2 (pid ", "0.5 s"},
                   "the others");
    require(status.culprit() == kOdd, "culprit: " + status.message());
    require(seconds > 0.4 && seconds < 1.5, "told after " + std::to_string(seconds) + " s");
    nap(1000);  // this rank stays until the late one has come
  };
  run(scenario, body, {.deadline = std::chrono::milliseconds(500), .name = {}});
}

TEST_P(Disagreement, DeadlineOfOneCall) {
  const Scenario scenario = plain_scenario(kRanks, small_config(), 2, 49);
  run(scenario, [&](Group, Seat& seat) {
    Random random(1);
    if (seat.rank() == kOdd) nap(800);
    if (seat.rank() == kOdd) return;
    DispatchCall call(scenario, scenario.rounds[1], seat.rank(), random);
    call.args().deadline = std::chrono::milliseconds(200);
    Received none;
    const Status status = seat.exchange().dispatch(call.args(), none);
    require_status(status, Code::kTimeout, {"rank 2", "counts", "0.2 s"}, "a call's own deadline");
  });
}

// Making an exchange with `config` throws, and with the small configuration it works after.
void require_not_made(const Group& group, const ExchangeConfig& config, Code code,
                      const std::string& text) {
  const std::int64_t began = internal::now_ns();
  try {
    Exchange exchange(group, config);
    throw Failure("the exchange was made");
  } catch (const Error& error) {
    require(error.code() == code && error.what() == text, error.what());
    require(error.culprit() == kOdd, "culprit " + std::to_string(error.culprit()));
  }
  require(internal::now_ns() - began < 10'000'000'000, "told after a deadline");
  require(group.usable(), "the group is usable");
  const Scenario scenario = plain_scenario(kRanks, small_config(), 1, 50);
  Seat seat(group, scenario);
  require_works(seat, 0);
}

// Only what differs is named.
TEST_P(Disagreement, ExchangesOfDifferentSettings) {
  const auto body = [](Group group) {
    ExchangeConfig config = small_config();
    if (group.rank() == kOdd) config.hidden = 50;
    if (group.rank() == kOdd) config.layout = Layout::kRankMajor;
    require_not_made(group, config, Code::kMismatch,
                     "ranks 0 and 2 make different exchanges: hidden is 48 and 50, layout is "
                     "expert_major and rank_major, max_output_row_bytes is 192 and 200");
  };
  run_ranks(GetParam(), kRanks, body);
}

// What one rank finds illegal, from its configuration alone or from the ranks, is told to all.
TEST_P(Disagreement, ConfigurationThatOneRankRefuses) {
  const auto body = [](Group group) {
    const bool odd = group.rank() == kOdd;
    const Code code = odd ? Code::kInvalidArgument : Code::kPeerRejected;
    const auto told = [odd](const std::string& why) {
      return odd ? why : "rank 2 refused to make this exchange: " + why;
    };
    ExchangeConfig illegal = small_config(), unfit = small_config();
    if (odd) illegal.top_k = 33;
    if (odd) unfit.tp_size = 3;
    require_not_made(group, illegal, code, told("top_k is 33, need 1 to 32"));
    require_not_made(group, unfit, code, told("4 ranks are not a multiple of tp_size 3"));
  };
  run_ranks(GetParam(), kRanks, body);
}

// The others never call: what this rank had to say is in its error.
TEST_P(Disagreement, RefusedCallThatNobodyElseMakes) {
  const Scenario scenario = plain_scenario(kRanks, small_config(), 1, 51);
  const auto body = [&](Group, Seat& seat) {
    if (seat.rank() != kOdd) return nap(400);
    Random random(1);
    DispatchCall call(scenario, scenario.rounds[0], seat.rank(), random);
    call.args().deadline = std::chrono::milliseconds(100);
    call.args().tokens.hidden = 47;
    Received none;
    require_status(seat.exchange().dispatch(call.args(), none), Code::kTimeout,
                   {"waiting for counts", "this rank had refused: ", "47"}, "a refused call");
  };
  run(scenario, body);
}

TEST_P(Disagreement, RefusalThatNobodyHears) {
  const auto body = [](Group group) {
    ExchangeConfig illegal = small_config();
    illegal.top_k = 33;
    if (group.rank() != kOdd) return nap(900);
    try {
      Exchange exchange(group, illegal);
      throw Failure("the exchange was made");
    } catch (const Error& error) {
      require_status({error.code(), error.what()}, Code::kTimeout,
                     {"this rank had refused: top_k is 33, need 1 to 32"}, "a refusal");
    }
  };
  run_ranks(GetParam(), kRanks, body, "", {.deadline = std::chrono::milliseconds(200)});
}

// A front that has no configuration says so in the constructor's place.
TEST_P(Disagreement, FrontOfOneRankRefusesToMakeAnExchange) {
  const auto body = [](Group group) {
    try {
      if (group.rank() == kOdd)
        Exchange::refuse(group, {Code::kInvalidArgument, "no setting \"hiden\"", kOdd});
      Exchange exchange(group, small_config());
      throw Failure("the exchange was made");
    } catch (const Error& error) {
      const bool odd = group.rank() == kOdd;
      require(error.code() == (odd ? Code::kInvalidArgument : Code::kPeerRejected) &&
                  contains(error.what(), "no setting \"hiden\"") && error.culprit() == kOdd,
              error.what());
    }
    const Scenario scenario = plain_scenario(kRanks, small_config(), 1, 50);
    Seat seat(group, scenario);
    require_works(seat, 0);
  };
  run_ranks(GetParam(), kRanks, body);
}

INSTANTIATE_TEST_SUITE_P(Threads, Disagreement, testing::Values(Mode::kThreads));
INSTANTIATE_TEST_SUITE_P(Processes, Disagreement, testing::Values(Mode::kProcesses));

}  // namespace
}  // namespace ferry::test

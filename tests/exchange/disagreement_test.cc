// Ranks whose calls differ: other shapes, another operation, a skipped call, other settings. The
// errors on all ranks name the rank, and the group stays usable, unless a rank made no call.
#include <gtest/gtest.h>

#include "base/clock.h"
#include "seat.h"
#include "victim.h"

namespace ferry::test {
namespace {

constexpr int kRanks = 4;
constexpr int kOdd = 2;  // the rank that does otherwise

class Disagreement : public SeatTest {};

ExchangeConfig small_config() {
  return {.max_tokens = 10, .hidden = 48, .num_experts = 9, .top_k = 2};
}

void require_mismatch(const Status& status, const std::vector<std::string>& parts) {
  require_status(status, Code::kMismatch, parts, "disagreement");
  require_status(status, Code::kMismatch, {"rank 2"}, "disagreement");
  require(status.culprit() == kOdd,
          "culprit " + std::to_string(status.culprit()) + ": " + status.message());
  require(status.group_usable(), "the group is usable");
}

TEST_P(Disagreement, CombineOfAnotherHidden) {
  const Scenario scenario = plain_scenario(kRanks, small_config(), 2, 41);
  run(scenario, [&](Group, Seat& seat) {
    const Received received = seat.dispatch(0);
    CombineCall call = seat.combine_call(0, received.handle);
    if (seat.rank() == kOdd) call.args().expert_rows.hidden = 40;
    if (seat.rank() == kOdd) call.args().expert_rows.pitch_bytes = 96;
    require_mismatch(seat.exchange().combine(call.args()), {"40", "48"});
    seat.play(1);
  });
}

TEST_P(Disagreement, CombineOfAnotherType) {
  const Scenario scenario = plain_scenario(kRanks, small_config(), 2, 42);
  run(scenario, [&](Group, Seat& seat) {
    const Received received = seat.dispatch(0);
    CombineCall call = seat.combine_call(0, received.handle);
    if (seat.rank() == kOdd) call.args().expert_rows.dtype = DataType::kFp16;
    require_mismatch(seat.exchange().combine(call.args()), {"fp16", "bf16"});
    seat.play(1);
  });
}

TEST_P(Disagreement, CombineWhereOthersDispatch) {
  const Scenario scenario = plain_scenario(kRanks, small_config(), 3, 43);
  run(scenario, [&](Group, Seat& seat) {
    const Received received = seat.dispatch(0);
    Received none;
    DispatchCall dispatch = seat.dispatch_call(1);
    CombineCall combine = seat.combine_call(0, received.handle);
    const Status status = seat.rank() == kOdd ? seat.exchange().combine(combine.args())
                                              : seat.exchange().dispatch(dispatch.args(), none);
    require_mismatch(status, {"dispatch", "combine"});
    seat.play(2);
  });
}

// Rank 2 thinks that a dispatch has happened already: it is one call ahead.
TEST_P(Disagreement, SkippedDispatchIsNoticedAtTheNextCall) {
  const Scenario scenario = plain_scenario(kRanks, small_config(), 3, 44);
  run(scenario, [&](Group, Seat& seat) {
    const Handle handle = seat.dispatch(0).handle;
    if (seat.rank() == kOdd) {
      CombineCall combine = seat.combine_call(0, handle);
      require_mismatch(seat.exchange().combine(combine.args()), {"dispatch", "combine"});
    } else {
      Received none;
      DispatchCall dispatch = seat.dispatch_call(1);
      require_mismatch(seat.exchange().dispatch(dispatch.args(), none), {"dispatch", "combine"});
    }
    seat.play(2);
  });
}

TEST_P(Disagreement, HandlesOfDifferentDispatches) {
  const Scenario scenario = plain_scenario(kRanks, small_config(), 3, 45);
  run(scenario, [&](Group, Seat& seat) {
    const Handle handles[] = {seat.dispatch(0).handle, seat.dispatch(1).handle};
    const int round = seat.rank() == kOdd ? 1 : 0;
    CombineCall call = seat.combine_call(round, handles[round]);
    call.args().row_weights = nullptr;
    call.args().out_topk_weights = nullptr;
    require_mismatch(seat.exchange().combine(call.args()), {"handle"});
    seat.play(2);
  });
}

TEST_P(Disagreement, CachedDispatchWhereOthersCount) {
  const Scenario scenario = plain_scenario(kRanks, small_config(), 2, 46);
  run(scenario, [&](Group, Seat& seat) {
    const Handle handle = seat.dispatch(0).handle;
    DispatchCall call = seat.dispatch_call(1);
    if (seat.rank() == kOdd) call.args().topk_ids = {};
    if (seat.rank() == kOdd) call.args().cached = handle;
    Received none;
    require_mismatch(seat.exchange().dispatch(call.args(), none), {"cached"});
    seat.play(1);
  });
}

TEST_P(Disagreement, OneRankGivesNoWeights) {
  const Scenario scenario = plain_scenario(kRanks, small_config(), 2, 47);
  run(scenario, [&](Group, Seat& seat) {
    DispatchCall call = seat.dispatch_call(0);
    if (seat.rank() == kOdd) call.args().topk_weights = nullptr;
    Received none;
    require_mismatch(seat.exchange().dispatch(call.args(), none), {"weights"});
    seat.play(1);
  });
}

// A rank without tokens agrees with calls with and without weights, so comparing with that rank
// alone would miss the mismatch.
TEST_P(Disagreement, OneRankGivesNoWeightsAndAnotherHasNoTokens) {
  const Scenario scenario = plain_scenario(kRanks, small_config(), 2, 49);
  run(scenario, [&](Group, Seat& seat) {
    DispatchCall call = seat.dispatch_call(0);
    if (seat.rank() == 0) call.args().tokens.num_rows = 0;
    if (seat.rank() == 0 || seat.rank() == kOdd) call.args().topk_weights = nullptr;
    Received none;
    require_mismatch(seat.exchange().dispatch(call.args(), none), {"weights"});
    seat.play(1);
  });
}

TEST_P(Disagreement, ACallThatNeverComesIsNamedAtTheDeadline) {
  const Scenario scenario = plain_scenario(kRanks, small_config(), 2, 48);
  const SharedBoard board;
  const auto body = [&](Group group, Seat& seat) {
    seat.play(0);
    DispatchCall call = seat.dispatch_call(1);
    Received none;
    const std::int64_t began = std::chrono::steady_clock::now().time_since_epoch().count();
    if (seat.rank() == kOdd) board.await_told(kRanks - 1);
    const Status status = seat.exchange().dispatch(call.args(), none);
    board.tell();
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
    board.await_told(kRanks);  // this rank stays until the late one has come
  };
  run(scenario, body, {.deadline = std::chrono::milliseconds(500)});
}

TEST_P(Disagreement, DeadlineOfOneCall) {
  const Scenario scenario = plain_scenario(kRanks, small_config(), 2, 49);
  const SharedBoard board;
  run(scenario, [&](Group, Seat& seat) {
    if (seat.rank() == kOdd) return board.await_told(kRanks - 1);
    DispatchCall call = seat.dispatch_call(1);
    call.args().deadline = std::chrono::milliseconds(200);
    Received none;
    const Status status = seat.exchange().dispatch(call.args(), none);
    board.tell();
    require_status(status, Code::kTimeout, {"rank 2", "counts", "0.2 s"}, "a call's own deadline");
  });
}

// Making an exchange with `config` fails, and afterwards one with the small configuration can be
// made.
void require_not_made(const Group& group, const ExchangeConfig& config, Code code,
                      const std::string& text) {
  const std::int64_t began = internal::now_ns();
  const Status status = error_of([&] { Exchange exchange(group, config); });
  require(status.code() == code && status.message() == text, status.message());
  require(status.culprit() == kOdd, "culprit " + std::to_string(status.culprit()));
  require(internal::now_ns() - began < 10'000'000'000, "told after a deadline");
  require(group.usable(), "the group is usable");
  const Scenario scenario = plain_scenario(kRanks, small_config(), 1, 50);
  Seat(group, scenario).play(0);
}

// The message names the settings that differ, and no others.
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

// All ranks are told what one rank finds illegal, from its configuration alone or with the number
// of ranks.
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

// The others never call, so nobody hears the refusal: this rank's own error repeats it.
TEST_P(Disagreement, RefusedCallThatNobodyElseMakes) {
  const Scenario scenario = plain_scenario(kRanks, small_config(), 1, 51);
  const SharedBoard board;
  const auto body = [&](Group, Seat& seat) {
    if (seat.rank() != kOdd) return board.await_told(1);
    DispatchCall call = seat.dispatch_call(0);
    call.args().deadline = std::chrono::milliseconds(100);
    call.args().tokens.hidden = 47;
    Received none;
    const Status status = seat.exchange().dispatch(call.args(), none);
    board.tell();
    require_status(status, Code::kTimeout, {"waiting for counts", "this rank had refused: ", "47"},
                   "a refused call");
  };
  run(scenario, body);
}

TEST_P(Disagreement, RefusalThatNobodyHears) {
  const SharedBoard board;
  const auto body = [&](Group group) {
    ExchangeConfig illegal = small_config();
    illegal.top_k = 33;
    if (group.rank() != kOdd) return board.await_told(1);
    const Status status = error_of([&] { Exchange exchange(group, illegal); });
    board.tell();
    require_status(status, Code::kTimeout, {"this rank had refused: top_k is 33, need 1 to 32"},
                   "a refusal");
  };
  run_ranks(GetParam(), kRanks, body, "", {.deadline = std::chrono::seconds(1)});
}

// A front that cannot make a configuration calls refuse() in place of the constructor.
TEST_P(Disagreement, FrontOfOneRankRefusesToMakeAnExchange) {
  const auto body = [](Group group) {
    const bool odd = group.rank() == kOdd;
    const Status status = error_of([&] {
      if (odd) Exchange::refuse(group, {Code::kInvalidArgument, "no setting \"hiden\"", kOdd});
      Exchange exchange(group, small_config());
    });
    require_status(status, odd ? Code::kInvalidArgument : Code::kPeerRejected,
                   {"no setting \"hiden\""}, "making an exchange");
    require(status.culprit() == kOdd, status.message());
    const Scenario scenario = plain_scenario(kRanks, small_config(), 1, 50);
    Seat(group, scenario).play(0);
  };
  run_ranks(GetParam(), kRanks, body);
}

// The digest of a rank is 10 plus its number.
Digests digests_of(int rank, std::vector<std::uint64_t>& all) {
  all.clear();
  return {10U + rank, &all};
}

void require_digests(const std::vector<std::uint64_t>& all) {
  require(all == std::vector<std::uint64_t>{10, 11, 12, 13}, "the digests of all ranks");
}

TEST_P(Disagreement, DigestsOfAllRanksComeWithACall) {
  const Scenario scenario = plain_scenario(kRanks, small_config(), 2, 51);
  run(scenario, [&](Group, Seat& seat) {
    std::vector<std::uint64_t> all;
    DispatchCall dispatch = seat.dispatch_call(0);
    dispatch.args().digests = digests_of(seat.rank(), all);
    Received received;
    require_ok(seat.exchange().dispatch(dispatch.args(), received), "dispatch");
    require_digests(all);
    CombineCall combine = seat.combine_call(0, received.handle);
    combine.args().digests = digests_of(seat.rank(), all);
    require_ok(seat.exchange().combine(combine.args()), "combine");
    require_digests(all);
    seat.play(1);
  });
}

TEST_P(Disagreement, AllRanksSkipAnExchange) {
  const Scenario scenario = plain_scenario(kRanks, small_config(), 2, 52);
  run(scenario, [&](Group, Seat& seat) {
    std::vector<std::uint64_t> all;
    for (const int round : {0, 1}) {
      seat.play(round);
      require_ok(seat.exchange().skip("another", digests_of(seat.rank(), all)), "skip");
      require_digests(all);
    }
  });
}

// Rank 2 skips where the others dispatch, and skips again where they combine.
TEST_P(Disagreement, OneRankSkipsAnExchange) {
  const Scenario scenario = plain_scenario(kRanks, small_config(), 2, 53);
  run(scenario, [&](Group, Seat& seat) {
    const bool odd = seat.rank() == kOdd;
    const auto check = [&](const Status& status, const char* calls,
                           const std::vector<std::uint64_t>& all) {
      require_status(status, odd ? Code::kMismatch : Code::kPeerRejected,
                     {"rank 2 skips", calls, "a wider one"}, "skip");
      require(status.culprit() == kOdd && status.group_usable(), status.message());
      require_digests(all);
    };
    std::vector<std::uint64_t> all;
    const Digests digests = digests_of(seat.rank(), all);
    const Received received = seat.dispatch(0);
    DispatchCall dispatch = seat.dispatch_call(1);
    dispatch.args().digests = digests;
    Received none;
    check(odd ? seat.exchange().skip("a wider one", digests)
              : seat.exchange().dispatch(dispatch.args(), none),
          "rank 0 calls dispatch", all);
    CombineCall combine = seat.combine_call(0, received.handle);
    combine.args().digests = digests_of(seat.rank(), all);
    check(odd ? seat.exchange().skip("a wider one", digests)
              : seat.exchange().combine(combine.args()),
          "rank 0 calls combine", all);
    seat.play(1);
  });
}

// A refusal takes precedence over skips. The rank that refuses gives no digest, which reads as 0.
TEST_P(Disagreement, OneRankRefusesWhereOthersSkip) {
  const Scenario scenario = plain_scenario(kRanks, small_config(), 2, 54);
  run(scenario, [&](Group, Seat& seat) {
    seat.play(0);
    std::vector<std::uint64_t> all;
    const bool odd = seat.rank() == kOdd;
    const Status why(Code::kInvalidArgument, "a wrong tensor", kOdd);
    const Status status = odd ? seat.exchange().refuse_combine(why)
                              : seat.exchange().skip("a wider one", digests_of(seat.rank(), all));
    require_status(status, odd ? Code::kInvalidArgument : Code::kPeerRejected, {"a wrong tensor"},
                   "refusal");
    require(odd || all == std::vector<std::uint64_t>{10, 11, 0, 13}, "the digests");
    seat.play(1);
  });
}

INSTANTIATE_TEST_SUITE_P(Threads, Disagreement, testing::Values(Mode::kThreads));
INSTANTIATE_TEST_SUITE_P(Processes, Disagreement, testing::Values(Mode::kProcesses));

}  // namespace
}  // namespace ferry::test

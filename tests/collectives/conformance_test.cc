// Every call of Collectives equals the oracle bit for bit, over ranks as threads and as processes,
// types, sizes, and windows that take them in one round and in many.
#include <gtest/gtest.h>

#include <algorithm>

#include "collectives/calls.h"
#include "exchange/frame.h"

namespace ferry::test {
namespace {

struct Place {
  Mode mode;
  int ranks;
  const char* topology;
};

void PrintTo(const Place& place, std::ostream* stream) {
  *stream << mode_name(place.mode) << " " << place.ranks << " " << place.topology;
}

constexpr std::int64_t kWindows[] = {std::int64_t{2} << 20, 4096};  // one round, and many
constexpr std::int64_t kSizes[] = {0, 1, 13, 700};
constexpr std::int64_t kSharedBytes = std::int64_t{64} << 20;
constexpr std::int64_t kLargeSize = kSanitized ? 15'000 : 100'000;

class CollectivesConformance : public testing::TestWithParam<Place> {
 protected:
  // For each window, with its bytes.
  void on_ranks(const std::function<void(Collectives&, std::int64_t)>& body) const {
    const Place& place = GetParam();
    const auto with_windows = [&](const Group& group) {
      for (const std::int64_t window_bytes : kWindows) {
        Collectives collectives(group,
                                {.window_bytes = window_bytes, .shared_bytes = kSharedBytes});
        body(collectives, window_bytes);
      }
    };
    run_ranks(place.mode, place.ranks, with_windows, "",
              {.deadline = std::chrono::seconds(60), .topology = place.topology});
  }
};

TEST_P(CollectivesConformance, DataOfEveryTypeArrive) {
  on_ranks([](Collectives& collectives, std::int64_t) {
    for (const DataType dtype : kEveryType)
      for (const std::int64_t count : kSizes) make_moves(collectives, {1, count, dtype});
  });
}

TEST_P(CollectivesConformance, ReductionsOfEveryTypeEqualTheOracle) {
  on_ranks([](Collectives& collectives, std::int64_t) {
    for (const DataType dtype : kEveryType) {
      for (int op = 0; op <= static_cast<int>(ReduceOp::kBxor); ++op)
        for (const std::int64_t count : {1, 700})
          make_reductions(collectives, {2, count, dtype}, static_cast<ReduceOp>(op));
    }
  });
}

TEST_P(CollectivesConformance, LargeCalls) {
  on_ranks([](Collectives& collectives, std::int64_t window_bytes) {
    // Enough for many rounds in each window.
    const std::int64_t count = std::min(kLargeSize, 4 * window_bytes);
    make_moves(collectives, {3, count, DataType::kBf16});
    make_reductions(collectives, {4, count, DataType::kBf16}, ReduceOp::kAvg);
    make_reductions(collectives, {4, count, DataType::kFp32}, ReduceOp::kSum);
    make_messages(collectives, {5, count, DataType::kFp32});
  });
}

TEST_P(CollectivesConformance, MessagesArriveByRankAndTag) {
  on_ranks([](Collectives& collectives, std::int64_t) {
    for (const std::int64_t count : kSizes)
      make_messages(collectives, {6, count, DataType::kInt16});
  });
}

// A small call after a large one and the other way round: halves of the window change hands.
TEST_P(CollectivesConformance, CallsOfManySizesInTurn) {
  on_ranks([](Collectives& collectives, std::int64_t) {
    std::uint64_t seed = 7;
    for (int turn = 0; turn < 3; ++turn) {
      for (const std::int64_t count : {1, 5000, 3, 900, 0, 9000}) {
        make_moves(collectives, {++seed, count, DataType::kInt32});
        make_reductions(collectives, {++seed, count, DataType::kFp16}, ReduceOp::kSum);
      }
    }
  });
}

TEST_P(CollectivesConformance, DataInMemoryOfTheCollectives) {
  on_ranks([](Collectives& collectives, std::int64_t window_bytes) {
    const std::int64_t large = std::min(kLargeSize, 4 * window_bytes);
    std::uint64_t seed = 100;
    for (const unsigned ranks : {0xffU, 0x55U}) {
      for (const std::int64_t count : {std::int64_t{700}, std::int64_t{9000}, large})
        make_calls_in_place(collectives, {++seed, count, DataType::kFp32}, ranks);
    }
  });
}

std::vector<Place> places(Mode mode) {
  std::vector<Place> places;
  for (const int ranks : mode == Mode::kThreads ? std::vector{1, 2, 3, 4, 7} : std::vector{2, 7})
    places.push_back({mode, ranks, ""});
  return places;
}

INSTANTIATE_TEST_SUITE_P(Threads, CollectivesConformance,
                         testing::ValuesIn(places(Mode::kThreads)));
INSTANTIATE_TEST_SUITE_P(Processes, CollectivesConformance,
                         testing::ValuesIn(places(Mode::kProcesses)));
#ifdef FERRY_TESTS_BETWEEN_NODES
INSTANTIATE_TEST_SUITE_P(NodesOfThreads, CollectivesConformance,
                         testing::Values(Place{Mode::kThreads, 2, "host:2,rank:1"},
                                         Place{Mode::kThreads, 5, "host:2,rank:3+2"},
                                         Place{Mode::kThreads, 6, "host:3,rank:2"}));
INSTANTIATE_TEST_SUITE_P(NodesOfProcesses, CollectivesConformance,
                         testing::Values(Place{Mode::kProcesses, 4, "host:2,rank:2"}));
#endif

}  // namespace
}  // namespace ferry::test

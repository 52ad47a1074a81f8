// Every call of Collectives equals the oracle bit for bit, over ranks as threads and as processes,
// types, sizes, and windows that take them in one round and in many.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <string>
#include <thread>
#include <vector>

#include "collectives/caller.h"
#include "collectives/state.h"
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
  // For each window, with its bytes. `cache_bytes`: that the node has, as the calls believe.
  void on_ranks(const std::function<void(Collectives&, std::int64_t)>& body,
                std::uint64_t cache_bytes = std::uint64_t{32} << 20) const {
    const Place& place = GetParam();
    const auto with_windows = [&](const Group& group) {
      for (const std::int64_t window_bytes : kWindows) {
        Collectives collectives = internal::CollectivesState::with_caches(
            group, {.window_bytes = window_bytes, .shared_bytes = kSharedBytes}, cache_bytes);
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

// Few bytes lie beside the flags: 96 of a rank, of which 40 are in the line of the flag. A rank
// writes those of its next call while others read those of the last one.
TEST_P(CollectivesConformance, FewBytesOfManyCallsInARow) {
  on_ranks([](Collectives& collectives, std::int64_t) {
    std::uint64_t seed = 1000;
    for (int turn = 0; turn < 20; ++turn) {
      if (turn % collectives.size() == collectives.rank())
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      for (const std::int64_t count : {1, 10, 11, 24, 25}) {
        make_moves(collectives, {++seed, count, DataType::kFp32});
        make_reductions(collectives, {++seed, count, DataType::kFp32}, ReduceOp::kSum);
      }
    }
  });
}

// Without caches all data are read in place, and written past the caches.
TEST_P(CollectivesConformance, DataInMemoryOfTheCollectives) {
  const auto body = [](Collectives& collectives, std::int64_t window_bytes) {
    const std::int64_t large = std::min(kLargeSize, 4 * window_bytes);
    std::uint64_t seed = 100;
    for (const unsigned ranks : {0xffU, 0x55U}) {
      for (const std::int64_t count : {std::int64_t{3}, std::int64_t{700}, large})
        make_calls_in_place(collectives, {++seed, count, DataType::kFp32}, ranks);
    }
  };
  on_ranks(body, /*cache_bytes=*/0);
}

// Each rank has a share of a quarter of the caches. Data that one rank reads may take this share,
// data that all ranks read may take those of all.
TEST_P(CollectivesConformance, OnlyDataThatDoNotFitTheCachesAreReadInPlace) {
  constexpr std::int64_t kShare = 700;
  const int ranks = GetParam().ranks;
  const auto body = [ranks](Collectives& collectives, std::int64_t) {
    const int rank = collectives.rank(), root = ranks - 1;
    const auto memory = collectives.allocate(2 * ranks * kShare);
    std::vector<std::byte> out(2 * ranks * ranks * kShare);
    const auto expect = [&](const Status& status, bool in_place) {
      require_ok(status, "call");
      const std::string call = collectives.latest_calls(rank).back();
      require(call.ends_with(", read in place") == in_place, call);
    };
    for (const std::int64_t more : {0, 1}) {
      const std::vector<std::int64_t> parts(ranks, ranks * kShare + more);
      expect(collectives.all_gather_v(memory.get(), parts[0], out.data(), parts, DataType::kInt8),
             more > 0);
      expect(collectives.broadcast(memory.get(), parts[0], DataType::kInt8, root),
             more > 0 && rank == root);
      std::vector<std::int64_t> blocks(ranks, 0);
      blocks[root] = kShare + more;
      const std::vector<std::int64_t> received(ranks, rank == root ? blocks[root] : 0);
      expect(collectives.reduce_scatter_v(memory.get(), blocks, out.data(), DataType::kInt8,
                                          ReduceOp::kSum),
             more > 0);
      expect(collectives.all_to_all_v(memory.get(), blocks, out.data(), received, DataType::kInt8),
             more > 0);
    }
  };
  on_ranks(body, 4 * kShare * static_cast<std::uint64_t>(ranks));
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

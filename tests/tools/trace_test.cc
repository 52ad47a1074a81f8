// FERRY_TRACE and `ferry trace diff`: four ranks record two runs that differ in one planted place,
// and the difference is named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "exchange/trace/trace_file.h"
#include "ferry/exchange.h"
#include "tools/bench/router_trace.h"
#include "tools/trace/difference.h"
#include "tools/trace/recorded_ids.h"
#include "tools/trace/run_files.h"

namespace ferry::tools {
namespace {

using internal::TraceFile;
using internal::TraceKind;
using testing::HasSubstr;
using testing::StartsWith;

constexpr int kRanks = 4, kTokens = 8, kTopK = 4, kHidden = 32, kExperts = 8, kLayers = 2;

// The arguments of one dispatch and combine of a rank, which a test changes.
struct Step {
  int rank = 0, layer = 0, round = 0;
  std::vector<std::int32_t> ids;
  std::vector<float> weights, tokens;
  std::function<void(Received&)> on_the_way = {}, outputs = {};
};
using Change = std::function<void(Step&)>;

// Values whose products and sums are rounded, so that another order of a sum has other bits.
Step make_step(int rank, int layer, int round) {
  Step step;
  step.rank = rank, step.layer = layer, step.round = round;
  for (int token = 0; token < kTokens; ++token) {
    for (int k = 0; k < kTopK; ++k) {
      step.ids.push_back((token + 2 * k + rank) % kExperts);
      step.weights.push_back(1 / static_cast<float>(3 + k + token % 3));
    }
    for (int h = 0; h < kHidden; ++h)
      step.tokens.push_back(static_cast<float>(1 + (h * 7 + token * 13 + rank * 5) % 97) / 61);
  }
  return step;
}

struct Program {
  ExchangeConfig config = {.max_tokens = kTokens,
                           .hidden = kHidden,
                           .num_experts = kExperts,
                           .top_k = kTopK,
                           .dtype = DataType::kFp32};
  std::string topology = {};
  Change change = [](Step&) {};
};

void play(Exchange& exchange, Step& step) {
  const DispatchArgs args{.tokens = {step.tokens.data(), kTokens, kHidden, DataType::kFp32, 0},
                          .topk_ids = {step.ids.data(), kTokens, kTopK, IndexType::kInt32},
                          .topk_weights = step.weights.data()};
  Operation operation;
  Received received;
  ASSERT_TRUE(exchange.dispatch_send(args, operation).ok());
  if (step.on_the_way) {
    Received memory;
    while (!exchange.poll(operation)) {
    }
    ASSERT_TRUE(exchange.dispatch_memory(operation, memory).ok());
    step.on_the_way(memory);
  }
  ASSERT_TRUE(exchange.dispatch_recv(operation, received).ok());
  if (step.outputs) step.outputs(received);
  std::vector<float> out(kTokens * kHidden);
  const Status status = exchange.combine({.handle = received.handle,
                                          .expert_rows = received.rows(),
                                          .topk_weights = step.weights.data(),
                                          .out = out.data(),
                                          .out_dtype = DataType::kFp32});
  ASSERT_TRUE(status.ok()) << status.message();
}

class Trace : public testing::Test {
 protected:
  Trace() : folder_(testing::TempDir() + "trace_" + std::to_string(getpid())) {
    std::filesystem::create_directory(folder_);
  }
  ~Trace() override { std::filesystem::remove_all(folder_); }

  // Runs three rounds of two layers on four ranks that are threads, and returns the run's name.
  std::string record(const Program& run, const std::string& from = "") {
    static int runs = 0;  // this process keeps a file open until it ends, so names are used once
    const std::string name = folder_ + "/run" + std::to_string(runs++);
    setenv("FERRY_TRACE", name.c_str(), 1);
    setenv("FERRY_TRACE_FROM", from.c_str(), 1);
    run_threads(kRanks,
                [&](Group group) {
                  std::vector<Exchange> layers;
                  for (int layer = 0; layer < kLayers; ++layer)
                    layers.emplace_back(group, run.config);
                  for (int round = 0; round < 3; ++round) {
                    for (int layer = 0; layer < kLayers; ++layer) {
                      Step step = make_step(group.rank(), layer, round);
                      run.change(step);
                      play(layers[layer], step);
                    }
                  }
                },
                {.topology = run.topology});
    unsetenv("FERRY_TRACE");
    unsetenv("FERRY_TRACE_FROM");
    return name;
  }
  static std::string diff(const std::string& a, const std::string& b) {
    return text_of(compare_runs(files_of_run(a), files_of_run(b)));
  }
  // The difference between a run and the same run with `change` in round 1 of layer 1 on rank 2.
  std::string difference_of(const Change& change) {
    Program changed;
    changed.change = [&](Step& step) {
      if (step.rank == 2 && step.layer == 1 && step.round == 1) change(step);
    };
    return diff(record({}), record(changed));
  }

  const std::string folder_;
};

TEST_F(Trace, EqualRunsAreEqual) {
  // Of each layer the settings, and four halves in each of three rounds.
  EXPECT_EQ(diff(record({}), record({})), "equal: 104 records of 4 ranks\n");
}

TEST_F(Trace, ARankThatOneRunLacksIsNamed) {
  std::map<int, std::string> a = files_of_run(record({})), b = a;
  b.erase(2);
  const RunDifference difference = compare_runs(a, b);
  EXPECT_TRUE(difference.lacks_ranks);
  EXPECT_THAT(text_of(difference), HasSubstr("ranks only in A: 2"));
  EXPECT_THAT(text_of(difference), HasSubstr("of 3 ranks, those that both runs have"));
  EXPECT_THROW(compare_runs(a, {}), std::invalid_argument);
}

TEST_F(Trace, OneWeightOfOneTokenIsNamed) {
  const std::string text = difference_of([](Step& step) { step.weights[5 * kTopK + 1] = 0.5f; });
  EXPECT_THAT(text, StartsWith("first difference: dispatch 3 of exchange 1, rank 2: weights of "
                               "token 5, k 1: 0.16666667 in A, 0.5 in B (1 of 32 differ)\n"
                               "everything that was recorded before it is equal\n"));
}

TEST_F(Trace, OneIdIsNamed) {
  const std::string text = difference_of([](Step& step) { step.ids[3 * kTopK] = 6; });
  EXPECT_THAT(text, StartsWith("first difference: dispatch 3 of exchange 1, rank 2: ids of token "
                               "3, k 0: 5 in A, 6 in B (1 of 32 differ)\n"));
}

TEST_F(Trace, OneChangedRowIsNamedAtItsSource) {
  const std::string text = difference_of([](Step& step) { step.tokens[4 * kHidden + 31] += 1; });
  EXPECT_THAT(text, StartsWith("first difference: dispatch 3 of exchange 1, rank 2: rows sent of "
                               "token 4 (1 of 8 differ)\n"));
}

TEST_F(Trace, ARowThatChangesOnItsWayIsNamedAtItsReceiver) {
  const std::string text = difference_of([](Step& step) {
    step.on_the_way = [](Received& received) { static_cast<float*>(received.data)[kHidden] += 1; };
  });
  EXPECT_THAT(text, StartsWith("first difference: dispatch 3 of exchange 1, rank 2: rows received "
                               "of row 1, from rank 0, token 2, k 1 (1 of 32 differ)\n"));
}

TEST_F(Trace, AnOutputOfAnExpertIsNamedByItsToken) {
  const std::string text = difference_of([](Step& step) {
    step.outputs = [](Received& received) { static_cast<float*>(received.data)[kHidden] += 1; };
  });
  EXPECT_THAT(text, StartsWith("first difference: combine 4 of exchange 1, rank 2: rows sent of "
                               "the output for rank 0, token 2, k 1 (1 of 32 differ)\n"));
  EXPECT_THAT(text, HasSubstr("  combine 4 of exchange 1, rank 0: results of token 2 (1 of 8"));
}

#ifdef FERRY_HAS_UCX
// Where ranks are on two nodes, the rows of a token are summed on each node first, so results alone
// differ.
TEST_F(Trace, ResultsThatDifferByThePlacesOfTheRanksAreNamed) {
  Program here, there;
  there.topology = "host:2,rank:2";
  const std::string text = diff(record(here), record(there));
  EXPECT_THAT(text, HasSubstr("settings: exchange 0: topology=host:1,rank:4 in A, "
                              "topology=host:2,rank:2 in B\n"));
  EXPECT_THAT(text, HasSubstr("first difference: combine 2 of exchange 0, rank 0: results of "));
  EXPECT_THAT(text, HasSubstr("everything that was recorded before it is equal\n"));

  here.config.node_sums = there.config.node_sums = NodeSums::kExact;
  EXPECT_THAT(diff(record(here), record(there)), HasSubstr("equal: 104 records of 4 ranks\n"));
}
#endif

TEST_F(Trace, GapsAndEntriesThatAreNotSentAreNotCompared) {
  for (const Layout layout : {Layout::kExpertMajor, Layout::kPadded}) {
    Program run;
    run.config.layout = layout;
    run.config.expert_alignment = 8;
    float garbage = 0;
    run.change = [&](Step& step) {
      std::fill_n(step.ids.begin(), kTopK + 1, -1);
      std::fill_n(step.weights.begin(), kTopK + 1, garbage);
      std::fill_n(step.tokens.begin(), kHidden, garbage);
    };
    const std::string a = record(run);
    garbage = 7;
    EXPECT_EQ(diff(a, record(run)), "equal: 104 records of 4 ranks\n");
  }
}

TEST_F(Trace, DetailsBeginWhereTheUserSays) {
  Program changed;
  changed.change = [](Step& step) { step.weights[1] += step.rank == 1 && step.round == 1; };
  const std::string where = "first difference: dispatch 3 of exchange 0, rank 1: weights";
  EXPECT_THAT(diff(record({}, "11"), record(changed, "11")),
              StartsWith(where + " (no detail of both was recorded; the record is number 10)"));
  EXPECT_THAT(diff(record({}, "10"), record(changed, "10")),
              StartsWith(where + " of token 0, k 1"));
}

TEST_F(Trace, ACallThatOnlyOneRunMadeIsNamed) {
  const std::string a = record({}), b = record({});
  const std::string file = files_of_run(b).at(3);
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 4);
  EXPECT_EQ(diff(a, b),
            "first difference: combine 6 of exchange 1, rank 3: its receive half was recorded only "
            "in A\n");
}

TEST_F(Trace, AFileHasAtMostItsLimit) {
  const std::string name = folder_ + "/limited";
  TraceFile file(name, 0, 0);
  const std::vector<std::byte> detail(std::size_t{64} << 20);
  int detailed = 0;
  for (int i = 0; i < 20; ++i) {
    const bool wants = file.wants_detail();
    detailed += wants;
    file.append({.kind = TraceKind::kSettings}, {detail.data(), wants ? detail.size() : 0});
  }
  EXPECT_EQ(detailed, 4);
  EXPECT_EQ(std::filesystem::file_size(name),
            16 + 20 * sizeof(internal::TraceRecord) + 4 * detail.size());
}

TEST_F(Trace, AFileThatCannotBeWrittenIsRefusedOnAllRanks) {
  setenv("FERRY_TRACE", (folder_ + "/absent/%r").c_str(), 1);
  run_threads(2, [](Group group) {
    try {
      const Exchange exchange(group, Program().config);
      FAIL() << "made";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("FERRY_TRACE: cannot write"));
    }
  });
  unsetenv("FERRY_TRACE");
}

TEST_F(Trace, IdsOfARunAreARouterTrace) {
  const RecordedIds recorded = recorded_ids(files_of_run(record({})), kLayers);
  const std::string file = folder_ + "/ids.npy";
  bench::write_router_trace(file, recorded.ids, kLayers, recorded.top_k);
  std::vector<int> expected;  // of a layer: three rounds of each rank
  for (int rank = 0; rank < kRanks; ++rank) {
    for (int round = 0; round < 3; ++round) {
      const Step step = make_step(rank, 1, round);
      expected.insert(expected.end(), step.ids.begin(), step.ids.end());
    }
  }
  EXPECT_EQ(bench::router_ids(file, 1, kTopK, kExperts), expected);
  EXPECT_THROW(recorded_ids(files_of_run(record({})), 4), std::invalid_argument);  // 6 dispatches
}

TEST_F(Trace, WhatIsNoTraceIsRefused) {
  const std::string name = folder_ + "/text";
  std::ofstream(name + ".0") << "this is no trace of anything";
  EXPECT_THROW(diff(name, name), std::invalid_argument);
  EXPECT_THROW(diff(folder_ + "/nothing", name), std::invalid_argument);
}

}  // namespace
}  // namespace ferry::tools

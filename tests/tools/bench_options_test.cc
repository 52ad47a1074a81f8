// Options of `ferry bench`: what is refused, and that the message names it.
#include "tools/bench/options.h"

#include <gtest/gtest.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

namespace ferry::bench {
namespace {

Options parse(std::vector<std::string> arguments) {
  CLI::App app;
  Options options;
  add_options(app, options);
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants a vector
  app.parse(arguments);
  finish_options(options);
  return options;
}

std::string error_of(const std::vector<std::string>& arguments) {
  try {
    parse(arguments);
  } catch (const CLI::ParseError& error) {
    return error.what();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

TEST(BenchOptions, DefaultsAreADecodeBatch) {
  const Options options = parse({});
  EXPECT_EQ(options.ranks, 8);
  EXPECT_EQ(options.shape.max_tokens, 128);
  EXPECT_EQ(options.row_bytes(), 14336u);
  EXPECT_TRUE(options.sweep_tokens.empty());
}

TEST(BenchOptions, EveryOptionIsRead) {
  const Options options = parse(
      {"--ranks", "3",        "--mode",   "threads", "--workers", "2",         "--tokens-per-rank",
       "1,0,7",   "--hidden", "33",       "--top-k", "2",         "--experts", "10",
       "--dtype", "fp32",     "--layout", "padded",  "--routing", "zipf:1.5",  "--iterations",
       "4",       "--warmup", "0",        "--seed",  "9",         "--pin",     "--check",
       "--trace", "t.json",   "--json"});
  EXPECT_EQ(options.mode, Mode::kThreads);
  EXPECT_EQ(options.shape.workers, 2);
  EXPECT_EQ(options.tokens_per_rank, (std::vector<std::int64_t>{1, 0, 7}));
  EXPECT_EQ(options.shape.dtype, DataType::kFp32);
  EXPECT_EQ(options.shape.layout, Layout::kPadded);
  EXPECT_EQ(options.routing.exponent, 1.5);
  EXPECT_EQ(options.iterations, 4);
  EXPECT_EQ(options.warmup, 0);
  EXPECT_EQ(options.seed, 9u);
  EXPECT_TRUE(options.pin && options.check && options.json);
  EXPECT_EQ(options.trace, "t.json");
  EXPECT_EQ(parse({"--sweep", "tokens=1,20"}).sweep_tokens, (std::vector<std::int64_t>{1, 20}));
}

TEST(BenchOptions, WhatIsRefusedIsNamed) {
  const struct {
    std::vector<std::string> arguments;
    std::string named;
  } cases[] = {
      {{"--ranks", "0"}, "--ranks"},
      {{"--mode", "fibres"}, "'fibres' is none of environment | processes | threads"},
      {{"--dtype", "int8"}, "'int8' is none of bf16 | fp16 | fp32"},
      {{"--layout", "flat"}, "'flat'"},
      {{"--hidden", "0"}, "--hidden"},
      {{"--tokens", "-1"}, "--tokens"},
      {{"--top-k", "33"}, "--top-k"},
      {{"--top-k", "9", "--experts", "8"},
       "--top-k 9 needs that many distinct experts, but --experts is 8"},
      {{"--tokens-per-rank", "1,2"}, "--tokens-per-rank has 2 numbers, but --ranks is 8"},
      {{"--ranks", "1", "--tokens-per-rank", "1", "--sweep", "tokens=1"}, "give one of them"},
      {{"--iterations", "0"}, "--iterations"},
      {{"--routing", "even"}, "'even'"},
      {{"--algorithm", "ring"}, "'ring' is none of allgather | auto | fullmesh | hierarchical"},
      {{"--node-sums", "bf16"}, "'bf16' is none of exact | fp32 | row"},
      {{"--topology", "host:2,rank:3"}, "--topology host:2,rank:3 has 6 ranks, but --ranks is 8"},
      {{"--topology", "host:2"}, "--topology:"},
      {{"--mode", "environment", "--trace", "t.json"}, "not with --mode environment"},
      {{"--sweep", "hidden=1"}, "'hidden=1' is not of the form"},
      {{"--sweep", "tokens=1,,2"}, "'' is not a number of tokens"},
      {{"--sweep", "tokens=1,2", "--trace", "t.json"},
       "--trace shows one shape, but --sweep has 2"},
      {{"--colour"}, "--colour"},
  };
  for (const auto& one : cases) {
    EXPECT_NE(error_of(one.arguments).find(one.named), std::string::npos)
        << error_of(one.arguments);
  }
}

}  // namespace
}  // namespace ferry::bench

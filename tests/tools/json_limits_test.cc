// JSON from outside: texts that are nested or large are refused before they are parsed.
#include "tools/json_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <stdexcept>
#include <string>

#include "ferry/plan.h"
#include "tools/plan/expect.h"
#include "tools/plan/machine_json.h"
#include "tools/plan/routing.h"
#include "tools/top/sample.h"

namespace ferry::tools {
namespace {

using testing::HasSubstr;

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "accepted";
}

std::string nested(int levels) { return std::string(levels, '[') + std::string(levels, ']'); }

TEST(JsonLimits, LevelsAreCountedOutsideOfStrings) {
  EXPECT_NO_THROW(check_json("a text", nested(kMostJsonLevels)));
  EXPECT_NO_THROW(check_json("a text", "[\"" + std::string(1000, '[') + "\\\"[[\"]"));
  EXPECT_NO_THROW(check_json("a text", std::string(1000, ']')));
  EXPECT_EQ(refusal([] { check_json("a text", nested(65)); }),
            "a text is nested 65 levels deep, at most 64");
  EXPECT_EQ(refusal([] { check_json("a text", "12345", 4); }), "a text has 5 bytes, at most 4");
}

TEST(JsonLimits, EveryReaderHasThem) {
  const std::string deep = nested(100'000), file = testing::TempDir() + "deep.json";
  std::ofstream(file) << deep;
  const auto is_refused = HasSubstr("is nested 100000 levels deep, at most 64");
  EXPECT_THAT(refusal([&] { machine_from_json(deep); }), is_refused);
  EXPECT_THAT(refusal([&] { bench_object("{" + deep); }),
              HasSubstr("is nested 100001 levels deep, at most 64"));
  EXPECT_THAT(refusal([&] {
                Workload workload;
                set_routing(file, 1, workload);
              }),
              is_refused);
  EXPECT_THAT(refusal([&] {
                Sample sample;
                add_received(sample, deep);
              }),
              is_refused);
}

TEST(JsonLimits, FilesAreReadUpToALimit) {
  const std::string file = testing::TempDir() + "large.json";
  std::ofstream(file) << std::string(kMostJsonBytes + 1, '[');
  EXPECT_THAT(refusal([&] { read_file(file); }), HasSubstr("has more than 16777216 bytes"));
  EXPECT_THAT(refusal([] { read_file("/dev/zero"); }), HasSubstr("has more than 16777216 bytes"));
}

}  // namespace
}  // namespace ferry::tools

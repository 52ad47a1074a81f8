// Variables of ferry: a malformed one is refused with its name, its value and the limit.
#include "base/environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <set>

#include "ferry/status.h"

namespace ferry::internal {
namespace {

std::string refusal(const std::function<void()>& read) {
  try {
    read();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    return error.what();
  }
  return "accepted";
}

TEST(Environment, AnEmptyVariableIsNotSet) {
  unsetenv("FERRY_LOG");
  EXPECT_EQ(environment("FERRY_LOG"), std::nullopt);
  setenv("FERRY_LOG", "", 1);
  EXPECT_EQ(environment("FERRY_LOG"), std::nullopt);
  EXPECT_EQ(log_level_in_environment(), LogLevel::kNone);
  setenv("FERRY_LOG", "debug", 1);
  EXPECT_EQ(environment("FERRY_LOG"), "debug");
  EXPECT_EQ(log_level_in_environment(), LogLevel::kDebug);
  unsetenv("FERRY_LOG");
}

TEST(Environment, AValueThatIsNoneOfThoseAllowedIsNamedWithThem) {
  setenv("FERRY_LOG", "loud", 1);
  setenv("FERRY_PROGRESS", "threads", 1);
  EXPECT_EQ(refusal([] { log_level_in_environment(); }),
            "FERRY_LOG=\"loud\" is none of warn, info, debug");
  EXPECT_EQ(refusal([] { progress_thread_in_environment(); }),
            "FERRY_PROGRESS=\"threads\" is none of inline, thread");
  setenv("FERRY_PROGRESS", "thread", 1);
  EXPECT_TRUE(progress_thread_in_environment());
  unsetenv("FERRY_LOG");
  unsetenv("FERRY_PROGRESS");
}

TEST(Environment, ANumberOutsideOfItsRangeIsNamedWithTheRange) {
  EXPECT_EQ(whole_number("A", "7", 1, 7), 7);
  for (const char* text : {"8", "0", "", "7x", " 7", "-1", "99999999999"}) {
    EXPECT_EQ(refusal([&] { whole_number("A", text, 1, 7); }),
              std::string("A=\"") + text + "\" is not a whole number from 1 to 7");
  }
}

TEST(Environment, ATraceHasAFileForEachRank) {
  unsetenv("FERRY_TRACE");
  EXPECT_TRUE(trace_in_environment().file.empty());
  setenv("FERRY_TRACE", "run", 1);
  setenv("FERRY_TRACE_FROM", "7", 1);
  EXPECT_EQ(trace_in_environment().name_of(3), "run.3");
  EXPECT_EQ(trace_in_environment().from, 7);
  EXPECT_EQ(trace_place("a/rank_%r.trace").name_of(12), "a/rank_12.trace");
  EXPECT_EQ(refusal([] { trace_place("a/%r/b"); }),
            "FERRY_TRACE=\"a/%r/b\": %r must be in the name of the file, not in that of its "
            "directory");
  unsetenv("FERRY_TRACE");
  unsetenv("FERRY_TRACE_FROM");
}

TEST(Environment, MetricsHaveAFileOrAPort) {
  unsetenv("FERRY_METRICS");
  EXPECT_EQ(metrics_in_environment().text, "");
  setenv("FERRY_METRICS", "file:a/b-%p.prom", 1);
  EXPECT_EQ(metrics_in_environment().file, "a/b-" + std::to_string(getpid()) + ".prom");
  EXPECT_EQ(metrics_in_environment().port, 0);
  setenv("FERRY_METRICS", "port:65535", 1);
  EXPECT_EQ(metrics_in_environment().port, 65535);
  setenv("FERRY_METRICS", "port:65536", 1);
  EXPECT_EQ(refusal([] { metrics_in_environment(); }),
            "FERRY_METRICS=\"65536\" is not a whole number from 1 to 65535");
  for (const char* text : {"file:", "port", "9400"}) {
    setenv("FERRY_METRICS", text, 1);
    EXPECT_EQ(
        refusal([] { metrics_in_environment(); }),
        std::string("FERRY_METRICS=\"") + text + "\" is none of file:PATH, port:N and ADDRESS:N");
  }
  unsetenv("FERRY_METRICS");
}

TEST(Environment, TheTableNamesEachVariableOnce) {
  std::set<std::string> names;
  for (const EnvironmentVariable& variable : environment_variables()) {
    EXPECT_TRUE(std::string(variable.name).starts_with("FERRY_"));
    EXPECT_TRUE(names.insert(variable.name).second) << variable.name;
  }
  EXPECT_TRUE(names.contains("FERRY_SECRET"));
}

}  // namespace
}  // namespace ferry::internal

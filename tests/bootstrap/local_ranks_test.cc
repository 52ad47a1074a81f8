// Ranks of a launcher that end before they join: real processes with numbers in their environment.
#include "bootstrap/local_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <functional>

#include "bootstrap/forked.h"

namespace ferry::internal {
namespace {

const LocalLaunch kLaunch{.variable = "FERRY_TEST_RANK", .first = 4, .count = 4, .at_once = true};

// A child as rank `rank`; its number is in the environment that it starts with.
pid_t start(int rank, const std::vector<std::string>& command) {
  const pid_t child = fork();
  if (child != 0) return child;
  setenv(kLaunch.variable.c_str(), std::to_string(rank).c_str(), 1);
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
  _exit(127);
}

// Rank 5 looks which of ranks 4 to 7 have ended. Exit code 42: it found the right ones; else 1.
TEST(LocalRanks, DISABLED_Observer) {
  LocalRanks local_ranks(kLaunch, 5);
  const auto seen = [&](const std::vector<int>& ranks, int expected) {
    const Deadline deadline = Deadline::after(std::chrono::seconds(5));
    std::optional<int> ended;
    while (!(ended = local_ranks.ended(ranks)) && !deadline.passed()) usleep(10'000);
    return ended == expected;
  };
  const bool none = !local_ranks.ended({6});
  const bool later = seen({6}, 6);       // ran for half a second
  const bool earlier = seen({4, 7}, 4);  // had ended before the first look
  const bool others = !local_ranks.ended({5, 7}) && !local_ranks.ended({0, 3, 8});
  _exit(none && later && earlier && others ? 42 : 1);
}

TEST(LocalRanks, ThatEndedAreKnownAndOthersAreNot) {
  Forked launcher([]() -> std::string {
    waitpid(start(4, {"true"}), nullptr, 0);
    const pid_t observer =
        start(5, {"/proc/self/exe", "--gtest_filter=LocalRanks.DISABLED_Observer",
                  "--gtest_also_run_disabled_tests"});
    const pid_t brief = start(6, {"sh", "-c", "sleep 0.5"}), lasting = start(7, {"sleep", "60"});
    waitpid(brief, nullptr, 0);
    int status = 0;
    waitpid(observer, &status, 0);
    kill(lasting, SIGKILL);
    waitpid(lasting, nullptr, 0);
    return std::to_string(WEXITSTATUS(status));
  });
  EXPECT_EQ(launcher.result(), "42");
}

// Exit code 42: rank 7 was found to have ended within five seconds; 43: it was not.
TEST(LocalRanks, DISABLED_ObserverOfTheLast) {
  LocalRanks local_ranks(kLaunch, 5);
  const Deadline deadline = Deadline::after(std::chrono::seconds(5));
  while (!local_ranks.ended({7}) && !deadline.passed()) usleep(10'000);
  _exit(deadline.passed() ? 43 : 42);
}

// The exit code of the observer; `start_last` is called when the other ranks run.
std::string seen_of_the_last(const std::function<pid_t()>& start_last) {
  Forked launcher([&]() -> std::string {
    const pid_t first = start(4, {"sleep", "60"});
    const pid_t observer =
        start(5, {"/proc/self/exe", "--gtest_filter=LocalRanks.DISABLED_ObserverOfTheLast",
                  "--gtest_also_run_disabled_tests"});
    const pid_t third = start(6, {"sleep", "60"});
    const pid_t last = start_last();
    int status = 0;
    waitpid(observer, &status, 0);
    for (const pid_t rank : {first, third, last}) kill(rank, SIGKILL);
    return std::to_string(WEXITSTATUS(status));
  });
  return launcher.result();
}

TEST(LocalRanks, LastOneThatEndedIsKnownOnceItsLauncherSleeps) {
  EXPECT_EQ(seen_of_the_last([] {
              const pid_t last = start(7, {"true"});
              waitpid(last, nullptr, 0);
              return last;
            }),
            "42");
}

// The launcher has not started its last rank: it may sleep between two ranks, or wait for another
// program.
TEST(LocalRanks, LastOneOfALauncherThatIsNotDoneIsAwaited) {
  EXPECT_EQ(seen_of_the_last([] {
              const pid_t pause = fork();
              if (pause == 0) {
                execlp("sleep", "sleep", "3", nullptr);
                _exit(127);
              }
              waitpid(pause, nullptr, 0);
              return start(7, {"sleep", "60"});
            }),
            "43");
}

TEST(LocalRanks, NothingIsKnownWithoutALauncher) {
  LocalRanks unnamed({}, 0), not_started_so(kLaunch, 5);
  EXPECT_FALSE(unnamed.ended({0, 1}));
  EXPECT_FALSE(not_started_so.ended({4, 6}));
}

}  // namespace
}  // namespace ferry::internal

// Ranks that forked a child, as data loaders do, and are killed: the child keeps no socket open, so
// the others learn of the death as they would without it.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <thread>

#include "bootstrap/forked.h"
#include "bootstrap/tcp_endpoint.h"

namespace ferry::internal {
namespace {

using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

constexpr seconds kLong{15};  // a death that is found at the deadline is no death but a timeout

// Forks a child that stays when this process dies. The child keeps the process group of the rank,
// and closes the pipe for the rank's result.
void fork_child_that_stays() {
  if (fork() != 0) return;
  for (int fd = 0; fd < 1024; ++fd) {
    std::error_code none;
    const auto target = std::filesystem::read_symlink(fmt::format("/proc/self/fd/{}", fd), none);
    if (target.string().starts_with("pipe:")) close(fd);
  }
  alarm(60);
  for (;;) pause();
}

// A thread that waits until the body of the rank has opened sockets and sent its first bytes, then
// forks a child and kills the process.
std::thread forks_and_dies() {
  return std::thread([before = open_descriptors()] {
    while (open_descriptors() <= before) usleep(10'000);
    usleep(500'000);
    fork_child_that_stays();
    kill(getpid(), SIGKILL);
  });
}

// A rank with children, all of which end with the test.
struct Family {
  explicit Family(const std::function<std::string()>& body)
      : rank([&] {
          setpgid(0, 0);
          return body();
        }),
        group(rank.pid()) {}
  Family(const Family&) = delete;
  Family& operator=(const Family&) = delete;
  ~Family() { kill(-group, SIGKILL); }

  Forked rank;
  pid_t group;
};

// Over a Unix socket, or over TCP.
class ForkedChildren : public testing::TestWithParam<bool> {
 protected:
  std::unique_ptr<Rendezvous> join(int rank, int size) {
    return GetParam() ? tcp_rendezvous(tcp_, rank, one_node(size), soon(kLong))
                      : process_rendezvous(local_, rank, one_node(size), soon(kLong));
  }
  const TcpEndpoint tcp_ = endpoint_at(free_port());
  const std::string local_ = address("forked-children");
};

TEST_P(ForkedChildren, OfARankKilledInACollectiveDoNotHideItsDeath) {
  for (const int victim : {0, 2}) {
    const auto body = [&](int rank) -> std::string {
      const auto rendezvous = join(rank, 3);
      if (rank == victim) fork_child_that_stays();
      rendezvous->all_gather("", soon(kLong));
      if (rank == victim) raise(SIGKILL);
      rendezvous->all_gather("", soon(kLong));
      return "all came";
    };
    Family killed([&] { return body(victim); });
    Forked first([&] { return body(victim == 0 ? 1 : 0); }),
        second([&] { return body(victim == 0 ? 2 : 1); });
    const auto named = AllOf(StartsWith("peer_lost: "), HasSubstr(fmt::format("rank {}", victim)));
    EXPECT_THAT(first.result(), named);
    EXPECT_THAT(second.result(), named);
  }
}

TEST_P(ForkedChildren, OfARankKilledWhileOthersAreAwaitedDoNotHideItsDeath) {
  Forked coordinator([&] { return join(0, 3) ? "joined" : ""; });
  Family killed([&] {
    std::thread end = forks_and_dies();
    join(1, 3);
    end.join();
    return "";
  });
  EXPECT_THAT(coordinator.result(),
              AllOf(StartsWith("peer_lost: rank 1 (pid "), HasSubstr("rank 2 had not come")));
}

TEST_P(ForkedChildren, OfRankZeroDoNotHoldTheEndpoint) {
  Family killed([&] {
    std::thread end = forks_and_dies();
    join(0, 2);
    end.join();
    return "";
  });
  killed.rank.result();
  Forked first([&] { return join(0, 2) ? "joined" : ""; }),
      second([&] { return join(1, 2) ? "joined" : ""; });
  EXPECT_EQ(first.result(), "joined");
  EXPECT_EQ(second.result(), "joined");
}

INSTANTIATE_TEST_SUITE_P(Kinds, ForkedChildren, testing::Bool(),
                         [](const auto& one) { return one.param ? "Tcp" : "Local"; });

}  // namespace
}  // namespace ferry::internal

// The places that ranks of several hosts send, and the errors when a received place differs.
#include "bootstrap/places.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bootstrap/agree.h"
#include "ferry/status.h"

namespace ferry::internal {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Hello of_host(const std::string& boot_id) {
  Hello hello;
  hello.boot_id = boot_id;
  return hello;
}

// Four ranks of two hosts.
std::vector<std::string> places() {
  std::vector<std::string> all;
  for (const char* host : {"a", "b", "a", "b"})
    all.push_back(own_place(of_host(host), /*lowest=*/false));
  return all;
}
const std::vector<int> kOneNode(4, 0);

std::string refused(const std::vector<std::string>& places, int rank, const std::string& mine) {
  try {
    host_meeting(places, rank, mine, kOneNode);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kMismatch);
    return error.what();
  }
  return "accepted";
}

TEST(Places, RanksOfOneHostMeetWhereRankZeroSays) {
  const auto all = places();
  const HostMeeting a = host_meeting(all, 2, all[2], kOneNode);
  const HostMeeting b = host_meeting(all, 1, all[1], std::vector{0, 0, 1, 1});
  EXPECT_THAT(a.ranks, ElementsAre(0, 2));
  EXPECT_THAT(b.ranks, ElementsAre(1, 3));
  EXPECT_EQ(a.address, all[0].substr(0, 32) + "-0");
  EXPECT_EQ(b.address, all[0].substr(0, 32) + "-1");
  EXPECT_THAT(a.nodes, ElementsAre(0, 1, 0, 1));
  EXPECT_THAT(b.nodes, ElementsAre(0, 1, 2, 3));
}

// A rank that received another place of itself found no rank on its host, not even itself, and
// crashed.
TEST(Places, ThatARankDidNotSayIsRefused) {
  const auto sent = places();
  for (std::size_t at = 0; at < sent[1].size(); ++at) {
    auto all = sent;
    all[1][at] = static_cast<char>(all[1][at] ^ 1);
    EXPECT_THAT(refused(all, 1, sent[1]), HasSubstr("rank 1 sent its place, and received another"));
  }
  EXPECT_THAT(refused({}, 1, sent[1]), HasSubstr("rank 1 sent its place"));
  EXPECT_THAT(refused({sent[0], sent[1], sent[2]}, 1, sent[1]), HasSubstr("rank 1 sent its place"));
}

// Ranks 1 and 3 are absent: each is of the node that the topology gives it.
TEST(Places, AbsentRanksHaveTheirNodes) {
  const std::vector<std::string> two = {own_place(of_host("a"), true),
                                        own_place(of_host("a"), false)};
  const auto nodes = [&](std::vector<int> split) {
    return host_meeting(two, 2, two[1], {std::move(split), {0, 2}}).nodes;
  };
  EXPECT_THAT(nodes({0, 0, 0, 0}), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(nodes({0, 0, 1, 1}), ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(nodes({0, 1, 0, 2}), ElementsAre(0, 1, 0, 2));
  const auto other_host = two[0].substr(0, two[0].size() - 1) + "b";
  try {
    host_meeting({two[0], other_host}, 0, two[0], {kOneNode, {0, 2}});
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    EXPECT_EQ(error.culprit(), 1);
    EXPECT_THAT(error.what(), HasSubstr("on the host of rank 0 or on that of rank 2"));
  }
}

TEST(Places, ThatAreNoneAreRefused) {
  const auto sent = places();
  const std::string upper = "X" + sent[0].substr(1);
  for (const std::string& none : {std::string(), sent[0].substr(0, 64), upper, "\n" + sent[0]}) {
    auto all = sent;
    all[0] = none;
    EXPECT_THAT(refused(all, 1, sent[1]), HasSubstr("rank 0 sent a place of")) << none;
  }
}

TEST(Places, ProcessIdsAreNumbersOfProcesses) {
  EXPECT_EQ(pid_in("1", 0), 1);
  EXPECT_EQ(pid_in("4194304", 0), 4194304);
  for (const char* none : {"", "0", "-1", "x", "1x", " 1", "4294967297", "99999999999999999999"})
    EXPECT_THROW(pid_in(none, 0), Error) << none;
}

}  // namespace
}  // namespace ferry::internal

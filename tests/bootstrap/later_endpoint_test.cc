// Where the members of a later view meet: the port of the lowest one, and the text that says it.
#include "bootstrap/later_endpoint.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include "bootstrap/tcp_endpoint.h"
#include "ferry/status.h"

namespace ferry::internal {
namespace {

using testing::HasSubstr;

constexpr int kLowest = 3;

// What rank `rank` sees when the lowest member sends `text`; empty: the text that this rank itself
// sends.
Endpoint endpoint_of(int rank, const std::string& text = "") {
  const MeetingPlace place{"view 2", [&](const std::string& mine) {
                             EXPECT_EQ(mine.empty(), rank != kLowest);
                             EXPECT_LE(mine.size(), MeetingPlace::kMostBytes);
                             return text.empty() ? mine : text;
                           }};
  return later_endpoint(endpoint_at(4711), kLowest, rank, "", place);
}

Error error_with(int rank, const std::string& text) {
  try {
    endpoint_of(rank, text);
  } catch (const Error& error) {
    EXPECT_EQ(error.culprit(), kLowest);
    return error;
  }
  return Error(Code::kOk, "no error");
}

class LaterEndpoint : public testing::Test {
 protected:
  void TearDown() override { unsetenv("UCX_TCP_PORT_RANGE"); }
  static void set_ports(const std::string& range) {
    setenv("UCX_TCP_PORT_RANGE", range.c_str(), 1);
  }
};

TEST_F(LaterEndpoint, TheLowestMemberListensBeforeItSaysWhere) {
  const Endpoint endpoint = endpoint_of(kLowest);
  EXPECT_EQ(endpoint.tcp.group, "view 2");
  EXPECT_EQ(endpoint.tcp.secret, endpoint_at(4711).secret);
  EXPECT_EQ(endpoint.tcp.address.hosts.front(), "127.0.0.1");
  EXPECT_TRUE(tcp_connect(endpoint.tcp.address, soon()).socket);
}

TEST_F(LaterEndpoint, TheOthersConnectThere) {
  const Endpoint endpoint = endpoint_of(0, "40123 10.0.0.1,fd00::1,127.0.0.1");
  EXPECT_EQ(endpoint.name, "tcp://10.0.0.1,[fd00::1],127.0.0.1:40123");
  EXPECT_FALSE(endpoint.tcp.listener);
}

TEST_F(LaterEndpoint, PortsAreThoseOfUcx) {
  const int port = free_port();
  set_ports(fmt::format("{0}-{0}", port));
  const Endpoint held = endpoint_of(kLowest);
  EXPECT_EQ(held.tcp.address.port, port);
  const Error full = error_with(kLowest, "");
  EXPECT_EQ(full.code(), Code::kSystem);
  EXPECT_THAT(full.what(), HasSubstr(fmt::format("rank 3 cannot listen for the others: no port of "
                                                 "UCX_TCP_PORT_RANGE={0}-{0} is free",
                                                 port)));
}

TEST_F(LaterEndpoint, RangesThatUcxDoesNotTakeEitherMeanAnyPort) {
  for (const char* const range : {"0", "9-8", "4000-70000", "4000", "a-b", "4000-4001-4002"}) {
    set_ports(range);
    EXPECT_GT(endpoint_of(kLowest).tcp.address.port, 4002) << range;
  }
}

TEST_F(LaterEndpoint, TextsThatAreNoAddressAreRefused) {
  for (const char* const text : {" ", "x", "40123", "40123 ", "0 10.0.0.1", "65536 10.0.0.1",
                                 "-1 10.0.0.1", "12x 10.0.0.1", "99999999999 10.0.0.1"}) {
    const Error error = error_with(0, text);
    EXPECT_EQ(error.code(), Code::kMismatch) << text;
    EXPECT_THAT(error.what(), HasSubstr(fmt::format("listens at \"{}\"", text)));
  }
  const Error reason = error_with(0, "!no descriptor");
  EXPECT_EQ(reason.code(), Code::kSystem);
  EXPECT_THAT(reason.what(), HasSubstr("rank 3 cannot listen for the others: no descriptor"));
}

}  // namespace
}  // namespace ferry::internal

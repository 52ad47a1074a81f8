// Measures links: pairs of ranks of two nodes first send small messages in turn, then large
// messages in one direction and in the other; see findings.h. All other ranks wait meanwhile for
// the result of the pair.
#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <vector>

#include "base/clock.h"
#include "bootstrap/hello.h"
#include "ferry/group.h"
#include "group/state.h"
#include "tools/doctor/findings.h"

namespace ferry::tools {
namespace {

using internal::MessageHead;

constexpr int kWarmUp = 100, kTurns = 1000;
constexpr std::uint64_t kBulkBytes = std::uint64_t{64} << 20;

struct LinkSpeed {
  int from = 0, to = 0;  // the ranks that send and receive
  double latency_us = 0;
  double there_bytes_per_s = 0, back_bytes_per_s = 0;
};

// One rank's part in all tests.
class LinkEnd {
 public:
  explicit LinkEnd(internal::GroupState& state)
      : state_(state),
        channel_{.read = [this](const internal::InMessage& message) { read(message); },
                 .go_on = [] { return false; },
                 .awaited = [] { return internal::Channel::Awaited{}; }} {
    state.begin_channels();
    number_ = state.open_channel(&channel_);
  }
  ~LinkEnd() { state_.close_channel(number_); }

  // Both ranks of a test call these at the same time. The latency is half the time of a message and
  // its reply.
  double latency_us(int peer, bool first);
  // One rank sends kBulkBytes to the other. Returns the rate on the rank that sends, and 0 on the
  // other.
  double bytes_per_s(int peer, bool sends);

 private:
  enum : std::uint32_t { kSmall, kBulk };

  void read(const internal::InMessage& message);
  void send_small(int peer);
  void receive_small();
  void send_bulk(int peer);
  template <typename Condition>
  void wait(const Condition& condition);

  internal::GroupState& state_;
  internal::Channel channel_;
  std::uint32_t number_ = 0;
  // Counts of received messages and bytes. They change only while the group's lock is held.
  std::atomic<std::uint64_t> small_{0}, bulk_bytes_{0};
  std::uint64_t small_seen_ = 0, bulk_seen_ = 0;
};

void LinkEnd::read(const internal::InMessage& message) {
  // The release pairs with the acquire in wait(). Only the count itself is published.
  if (message.head.kind == kSmall) small_.fetch_add(1, std::memory_order_release);
  if (message.head.kind == kBulk)
    bulk_bytes_.fetch_add(message.body.size(), std::memory_order_release);
}

template <typename Condition>
void LinkEnd::wait(const Condition& condition) {
  const internal::Deadline deadline = state_.deadline();
  while (!condition()) {
    if (!state_.progress()) sched_yield();
    require_ok(state_.verdict());
    if (state_.aborted()) throw Error(Code::kPeerLost, "a rank failed during the test of a link");
    if (deadline.passed()) throw Error(Code::kTimeout, "a message of the link test did not come");
  }
}

void LinkEnd::send_small(int peer) {
  const MessageHead head{.channel = number_, .kind = kSmall, .number = 0};
  state_.messages().send_now(peer, std::as_bytes(std::span(&head, 1)));
}

void LinkEnd::receive_small() {
  ++small_seen_;
  wait([this] { return small_.load(std::memory_order_acquire) >= small_seen_; });
}

double LinkEnd::latency_us(int peer, bool first) {
  std::int64_t begin_ns = 0;
  for (int turn = 0; turn < kWarmUp + kTurns; ++turn) {
    if (turn == kWarmUp) begin_ns = internal::now_ns();
    if (first) send_small(peer);
    receive_small();
    if (!first) send_small(peer);
  }
  return static_cast<double>(internal::now_ns() - begin_ns) * 1e-3 / (2.0 * kTurns);
}

void LinkEnd::send_bulk(int peer) {
  const MessageHead head{.channel = number_, .kind = kBulk, .number = 0};
  for (std::uint64_t remaining = kBulkBytes; remaining > 0;) {
    auto buffer = state_.messages().send_buffer(peer);
    wait([&] {
      return buffer.has_value() || (buffer = state_.messages().send_buffer(peer)).has_value();
    });
    const std::uint64_t bytes = std::min<std::uint64_t>(
        remaining, internal::MessageChannel::kSendBufferBytes - sizeof head);
    std::memcpy(buffer->data(), &head, sizeof head);
    // Writes the bytes, as a dispatch writes rows.
    std::memset(buffer->data() + sizeof head, 0, bytes);
    state_.messages().send(std::move(*buffer), sizeof head + bytes);
    remaining -= bytes;
  }
}

double LinkEnd::bytes_per_s(int peer, bool sends) {
  const std::int64_t begin_ns = internal::now_ns();
  if (sends) {
    send_bulk(peer);
    receive_small();
    return static_cast<double>(kBulkBytes) * 1e9 /
           static_cast<double>(internal::now_ns() - begin_ns);
  }
  bulk_seen_ += kBulkBytes;
  wait([this] { return bulk_bytes_.load(std::memory_order_acquire) >= bulk_seen_; });
  send_small(peer);
  return 0;
}

// Tests the link between the first rank of node 0 and its mate in `node`. Collective. Every rank
// gets the result.
LinkSpeed test_link(Group& group, LinkEnd& end, int node) {
  const Topology& topology = group.topology();
  const int from = topology.node_ranks(0)[0];
  LinkSpeed speed{.from = from, .to = topology.mate(from, node)};
  require_ok(group.barrier());
  if (group.rank() == speed.from) {
    speed.latency_us = end.latency_us(speed.to, true);
    speed.there_bytes_per_s = end.bytes_per_s(speed.to, true);
    end.bytes_per_s(speed.to, false);
  } else if (group.rank() == speed.to) {
    end.latency_us(speed.from, false);
    end.bytes_per_s(speed.from, false);
    speed.back_bytes_per_s = end.bytes_per_s(speed.from, true);
  }
  std::vector<LinkSpeed> all(static_cast<std::size_t>(group.size()));
  require_ok(group.all_gather(&speed, sizeof speed, all.data()));
  speed = all[static_cast<std::size_t>(speed.from)];
  speed.back_bytes_per_s = all[static_cast<std::size_t>(speed.to)].back_bytes_per_s;
  return speed;
}

// Gathers a short text from each rank.
std::vector<std::string> gather(Group& group, const std::string& text) {
  using Text = std::array<char, 128>;
  Text mine = {};
  text.copy(mine.data(), mine.size() - 1);
  std::vector<Text> all(static_cast<std::size_t>(group.size()));
  require_ok(group.all_gather(&mine, sizeof mine, all.data()));
  std::vector<std::string> texts;
  for (const Text& each : all) texts.emplace_back(each.data(), strnlen(each.data(), each.size()));
  return texts;
}

// Adds a warning for each rank to which hosts outside the job can connect. `exposed` has the reason
// for each rank, or an empty text.
void add_warnings(Report& report, const std::vector<std::string>& exposed) {
  Report::Json ranks = Report::Json::array();
  for (std::size_t rank = 0; rank < exposed.size(); ++rank) {
    if (exposed[rank].empty()) continue;
    report.add(
        fmt::format("  WARNING: whoever reaches the host of rank {} can connect to UCX's "
                    "ports there: {}\n",
                    rank, exposed[rank]));
    ranks.push_back(rank);
  }
  report.add("", {{"exposed_ranks", ranks}});
}

Report report_of(const std::vector<LinkSpeed>& speeds, const std::vector<std::string>& hosts,
                 const std::string& transport) {
  Report report;
  Report::Json links = Report::Json::array();
  report.add(fmt::format("links between nodes, over {}\n", transport), {{"transport", transport}});
  for (const LinkSpeed& speed : speeds) {
    const std::string& from = hosts[static_cast<std::size_t>(speed.from)];
    const std::string& to = hosts[static_cast<std::size_t>(speed.to)];
    report.add(
        fmt::format("  rank {} on {} and rank {} on {}: {:.1f} us, {:.3f} GB/s there, "
                    "{:.3f} GB/s back\n",
                    speed.from, from, speed.to, to, speed.latency_us,
                    speed.there_bytes_per_s * 1e-9, speed.back_bytes_per_s * 1e-9));
    links.push_back({{"ranks", {speed.from, speed.to}},
                     {"hosts", {from, to}},
                     {"latency_us", speed.latency_us},
                     {"there_bytes_per_s", speed.there_bytes_per_s},
                     {"back_bytes_per_s", speed.back_bytes_per_s}});
  }
  report.add("", {{"links", links}});
  return report;
}

void test_all(Group group, bool json) {
  internal::GroupState& state = *group.state();
  if (state.one_node()) {
    throw Error(Code::kInvalidArgument,
                fmt::format("--link: all {} ranks are on one node, so there is no link to test",
                            group.size()));
  }
  LinkEnd end(state);
  std::vector<LinkSpeed> speeds;
  for (int node = 1; node < state.topology().num_nodes(); ++node)
    speeds.push_back(test_link(group, end, node));
  const std::vector<std::string> hosts = gather(group, internal::host_name());
  const std::vector<std::string> exposed = gather(group, state.messages().exposed());
  if (group.rank() == 0) {
    Report report = report_of(speeds, hosts, state.messages().describe());
    add_warnings(report, exposed);
    std::cout << report.render(json) << std::flush;
  }
  require_ok(group.barrier());
}

}  // namespace

void test_links(const LinkTestOptions& options) {
  const auto run = [&](Group group) { test_all(std::move(group), options.json); };
  GroupOptions group_options;
  group_options.deadline = std::chrono::nanoseconds(std::llround(options.deadline_s * 1e9));
  if (options.threads) {
    group_options.topology = "host:2,rank:1";
    run_threads(2, run, group_options);
  } else {
    run(Group::from_environment(group_options));
  }
}

}  // namespace ferry::tools

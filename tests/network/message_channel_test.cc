// MessageChannel over transports in threads, under chaos: every message once, whole and in order;
// bounded memory; strangers; lost peers; a thread that reads while others send.
#include "network/message_channel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <mutex>
#include <set>
#include <thread>

#include "base/clock.h"
#include "network/chaos_transport.h"
#include "network/local_transport.h"
#include "network/test_messages.h"

namespace ferry::test {
namespace {

using internal::Deadline;
using internal::MessageChannel;
using internal::Transport;

constexpr std::uint64_t kJob = 77;
constexpr std::uint64_t kSeed = 20'240'607;
#ifdef __SANITIZE_THREAD__
constexpr std::uint64_t kMessages = 12'000;  // ten times slower
#else
constexpr std::uint64_t kMessages = 100'000;
#endif

Deadline soon() { return Deadline::after(std::chrono::seconds(60)); }

// Two message channels on one network, as ranks 0 and 1.
struct Pair {
  Pair() {
    for (int rank = 0; rank < 2; ++rank)
      channels[rank] = std::make_unique<MessageChannel>(network.transport(), rank, 2, kJob);
    for (int rank = 0; rank < 2; ++rank)
      channels[rank]->connect({{1 - rank, channels[1 - rank]->address()}});
  }
  bool progress(int rank) { return readers[rank].progress(*channels[rank]); }
  // `count` small messages from rank 0 to rank 1.
  void send_small(std::uint64_t count) {
    for (std::uint64_t i = 0; i < count; ++i)
      channels[0]->send_now(1, test_message(kSeed, {0, 1}, sent++));
  }

  LocalNetwork network;
  std::array<MessageReader, 2> readers{MessageReader(kSeed, 0), MessageReader(kSeed, 1)};
  std::array<std::unique_ptr<MessageChannel>, 2> channels;
  std::uint64_t sent = 0;
};

// ---- small messages share a packet

TEST(MessageChannel, WhatIsSentSoonSharesAPacketAndIsNotOvertaken) {
  Pair pair;
  MessageChannel& messages = *pair.channels[0];
  const auto next = [&] { return test_message(kSeed, {0, 1}, pair.sent++); };
  const auto queued = [&] { return messages.traffic()[1].queued; };
  messages.send_soon(1, next());
  EXPECT_EQ(queued(), 0u);
  EXPECT_FALSE(messages.all_sent());
  messages.send_now(1, next());
  EXPECT_EQ(queued(), 1u);
  messages.send_soon(1, next());
  const std::vector<std::byte> in_buffer = next();
  ASSERT_LE(in_buffer.size(), MessageChannel::kSendBufferBytes);
  std::optional<MessageChannel::SendBuffer> buffer = messages.send_buffer(1);
  std::ranges::copy(in_buffer, buffer->data());
  messages.send(std::move(*buffer), in_buffer.size());
  EXPECT_EQ(queued(), 3u);
  messages.send_soon(1, next());
  messages.send_bundled();
  EXPECT_EQ(queued(), 4u);
  messages.send_soon(1, next());
  pair.progress(0);
  EXPECT_EQ(queued(), 5u);
  const auto all_come = [&] { return pair.readers[1].total() == 6 && messages.all_sent(); };
  for (const Deadline deadline = soon(); !all_come() && !deadline.passed();)
    for (const int rank : {0, 1}) pair.progress(rank);
  EXPECT_EQ(pair.readers[1].total(), 6u);
  EXPECT_EQ(pair.readers[1].wrong(), 0u);
  EXPECT_TRUE(messages.all_sent());
}

// LocalNetwork copies the second message at once, and the first when it is read.
TEST(MessageChannel, AMessageIsSentAfterThoseBeforeIt) {
  Pair pair;
  MessageChannel& messages = *pair.channels[0];
  const auto sent = [&] { return messages.traffic()[1].sent; };
  const std::vector<std::byte> large(std::size_t{200} << 10), small(8);
  messages.send_now(1, large);
  messages.send_now(1, small);
  EXPECT_EQ(sent(), 0u) << "the first one is still in memory of its sender";
  pair.progress(1);
  pair.progress(0);
  EXPECT_EQ(sent(), 2u);
}

// What is sent before the process that took the place of a peer is connected is dropped, and takes
// no number: the next message comes.
TEST(MessageChannel, NothingGoesToAPeerThatIsNotConnectedAgain) {
  Pair pair;
  MessageChannel& messages = *pair.channels[0];
  MessageChannel other(pair.network.transport(), 1, 2, kJob + 1);
  other.replace(0, kJob);
  other.connect({{0, messages.address()}});
  messages.replace(1, kJob + 1);
  messages.send_now(1, std::vector<std::byte>(8));
  EXPECT_TRUE(messages.all_sent());
  messages.connect({{1, other.address()}});
  pair.send_small(1);
  for (const Deadline deadline = soon(); pair.readers[1].total() == 0 && !deadline.passed();) {
    pair.progress(0);
    pair.readers[1].progress(other);
  }
  EXPECT_EQ(pair.readers[1].total(), 1u);
  EXPECT_EQ(pair.readers[1].wrong(), 0u);
}

// ---- every message once, whole and in order

struct Chaos {
  bool chaos;
  bool own_thread;
};

class MessageChannelUnderChaos : public testing::TestWithParam<Chaos> {
 protected:
  static constexpr int kRanks = 3;

  std::unique_ptr<Transport> transport(int rank) {
    std::unique_ptr<Transport> transport = network_.transport();
    if (!GetParam().chaos) return transport;
    return std::make_unique<ChaosTransport>(std::move(transport),
                                            kSeed + static_cast<std::uint64_t>(rank));
  }

  void progress_or_sleep(int rank) {
    const std::lock_guard held(reading_[rank]);
    if (!readers_[rank].progress(*channels_[rank])) channels_[rank]->sleep(500);
  }
  bool has_read(int rank, std::uint64_t total) {
    const std::lock_guard held(reading_[rank]);
    return readers_[rank].total() == total && channels_[rank]->all_sent();
  }

  // One rank: sends `count` messages to each peer while it receives those of the peers.
  void play(int rank, std::uint64_t count) {
    MessageChannel& messages = *channels_[rank];
    const auto pause = [&] {
      if (GetParam().own_thread) return std::this_thread::yield();
      progress_or_sleep(rank);
    };
    std::jthread own;
    if (GetParam().own_thread) {
      own = std::jthread([this, rank](const std::stop_token& ending) {
        while (!ending.stop_requested()) progress_or_sleep(rank);
      });
    }
    for (std::uint64_t number = 0; number < count; ++number) {
      for (int peer = 0; peer < kRanks; ++peer) {
        if (peer != rank)
          send_message(messages, peer, test_message(kSeed, {rank, peer}, number), pause);
      }
      if (!GetParam().own_thread) readers_[rank].progress(messages);
    }
    const auto done = [&] { return has_read(rank, (kRanks - 1) * count); };
    for (const Deadline deadline = soon(); !done() && !deadline.passed();) pause();
    EXPECT_TRUE(done()) << "rank " << rank << " read " << readers_[rank].total();
  }

  LocalNetwork network_;
  std::array<MessageReader, kRanks> readers_{MessageReader(kSeed, 0), MessageReader(kSeed, 1),
                                             MessageReader(kSeed, 2)};
  std::array<std::mutex, kRanks> reading_;
  std::array<std::unique_ptr<MessageChannel>, kRanks> channels_;
};

TEST_P(MessageChannelUnderChaos, MessagesComeOnceWholeAndInOrder) {
  for (int rank = 0; rank < kRanks; ++rank) {
    channels_[rank] = std::make_unique<MessageChannel>(transport(rank), rank, kRanks, kJob);
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    for (int peer = 0; peer < kRanks; ++peer) {
      if (peer != rank) channels_[rank]->connect({{peer, channels_[peer]->address()}});
    }
  }
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank)
    threads.emplace_back([this, rank] { play(rank, kMessages / (kRanks * (kRanks - 1))); });
  for (std::thread& thread : threads) thread.join();
  for (int rank = 0; rank < kRanks; ++rank) {
    const MessageChannel::Counters counters = channels_[rank]->counters();
    EXPECT_EQ(readers_[rank].wrong(), 0u);
    EXPECT_EQ(counters.strangers, 0u);
    EXPECT_EQ(counters.reordered > 0, GetParam().chaos);
    EXPECT_EQ(counters.duplicates > 0, GetParam().chaos);
    EXPECT_THAT(readers_[rank].lost(), testing::IsEmpty());
  }
}

INSTANTIATE_TEST_SUITE_P(MessageChannel, MessageChannelUnderChaos,
                         testing::Values(Chaos{false, false}, Chaos{false, true},
                                         Chaos{true, false}, Chaos{true, true}),
                         [](const auto& info) {
                           return std::string(info.param.chaos ? "Bad" : "Fair") +
                                  (info.param.own_thread ? "OwnThread" : "Inline");
                         });

// ---- memory

TEST(MessageChannel, BuffersAreBoundedAndReusedWhenThePeerDoesNotRead) {
  Pair pair;
  MessageChannel& messages = *pair.channels[0];
  std::set<std::byte*> seen;
  for (int i = 0; i < MessageChannel::kUnsent; ++i) {
    EXPECT_EQ(messages.room(1), MessageChannel::kUnsent - i);
    auto buffer = messages.send_buffer(1);
    ASSERT_TRUE(buffer);
    EXPECT_EQ(buffer->peer(), 1);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer->data()) % 64, 0u);
    seen.insert(buffer->data());
    messages.send(std::move(*buffer), MessageChannel::kSendBufferBytes);
  }
  for (int i = 0; i < 1000; ++i) {
    pair.progress(0);
    EXPECT_FALSE(messages.send_buffer(1));
    EXPECT_EQ(messages.room(1), 0);
  }
  EXPECT_FALSE(messages.all_sent());
  for (int i = 0; i < 100; ++i) {
    std::optional<MessageChannel::SendBuffer> buffer;
    while (!(buffer = messages.send_buffer(1))) {
      pair.progress(1);
      pair.progress(0);
    }
    seen.insert(buffer->data());
    messages.send(std::move(*buffer), 1000);
  }
  EXPECT_EQ(seen.size(), static_cast<std::size_t>(MessageChannel::kUnsent));
}

TEST(MessageChannel, ABufferThatIsNotSentGoesBack) {
  Pair pair;
  for (int i = 0; i < 10 * MessageChannel::kUnsent; ++i)
    EXPECT_TRUE(pair.channels[0]->send_buffer(1));
  EXPECT_TRUE(pair.channels[0]->all_sent());
  EXPECT_EQ(pair.channels[0]->room(1), MessageChannel::kUnsent);
}

// ---- strangers and gaps

// The packets of a MessageChannel that sends `count` small messages as rank 0 of 2.
std::vector<KeptPacket> tapped(std::uint64_t job, int count) {
  LocalNetwork network;
  std::vector<KeptPacket> come;
  Transport::Events events;
  const std::unique_ptr<Transport> transport = network.transport();
  MessageChannel messages(network.transport(), 0, 2, job);
  messages.connect({{1, transport->address()}});
  for (int i = 0; i < count; ++i) messages.send_now(1, std::vector<std::byte>(8));
  while (transport->progress([&](const Transport::Packet& packet) { come.emplace_back(packet); },
                             events)) {
  }
  return come;
}

// A MessageChannel of rank 1 of 2, and a bare transport to it.
struct Target {
  Target() : transport(network.transport()), messages(network.transport(), 1, 2, kJob) {
    transport->connect({{1, messages.address()}});
  }
  void send(std::span<const std::byte> head, std::span<const std::byte> body) {
    transport->send(1, head, body, nullptr);
    reader.progress(messages);
  }
  void send(const KeptPacket& packet) { send(packet.head, packet.body); }

  LocalNetwork network;
  MessageReader reader{kSeed, 1};
  std::unique_ptr<Transport> transport;
  MessageChannel messages;
};

TEST(MessageChannel, PacketsOfStrangersAreDropped) {
  Target target;
  target.send(std::vector<std::byte>(7), std::vector<std::byte>());
  target.send(std::vector<std::byte>(64, std::byte{0xff}), std::vector<std::byte>(100));
  for (const KeptPacket& packet : tapped(kJob + 1, 3)) target.send(packet);
  const KeptPacket cut = tapped(kJob, 1)[0];
  target.send(cut.head, std::span(cut.body).first(cut.body.size() - 1));
  EXPECT_EQ(target.messages.counters().strangers, 6u);
  EXPECT_EQ(target.reader.total(), 0u);
  for (const KeptPacket& packet : tapped(kJob, 5)) target.send(packet);
  EXPECT_EQ(target.reader.total(), 5u);
}

TEST(MessageChannel, AGapThatDoesNotCloseLosesThePeer) {
  Target target;
  const auto packets = tapped(kJob, 5000);
  for (std::size_t i = 0; i < packets.size(); ++i) {
    if (i != 2) target.send(packets[i]);
  }
  EXPECT_EQ(target.reader.total(), 2u);
  ASSERT_EQ(target.reader.lost().size(), 1u);
  EXPECT_EQ(target.reader.lost()[0].first, 0);
  EXPECT_THAT(target.reader.lost()[0].second,
              testing::HasSubstr("packet 2 of rank 0 has not come"));
  EXPECT_GT(target.messages.counters().unread, 0u);
}

// ---- ends

TEST(MessageChannel, LastMessagesArriveAndThenThePeerIsLostOnce) {
  Pair pair;
  pair.send_small(500);
  pair.channels[0].reset();
  for (int i = 0; i < 200; ++i) pair.progress(1);
  EXPECT_EQ(pair.readers[1].total(), 500u);
  EXPECT_EQ(pair.readers[1].wrong(), 0u);
  EXPECT_EQ(pair.readers[1].lost().size(), 1u);
}

TEST(MessageChannel, WhatIsSentToALostPeerIsSwallowed) {
  Pair pair;
  pair.channels[1].reset();
  while (pair.readers[0].lost().empty()) pair.progress(0);
  pair.send_small(100);
  for (int i = 0; i < 100; ++i) {
    auto buffer = pair.channels[0]->send_buffer(1);
    ASSERT_TRUE(buffer);
    pair.channels[0]->send(std::move(*buffer), MessageChannel::kSendBufferBytes);
  }
  EXPECT_TRUE(pair.channels[0]->all_sent());
}

TEST(MessageChannel, TheDestructorIsBoundedWhenNobodyReads) {
  Pair pair;
  for (int i = 0; i < MessageChannel::kUnsent; ++i)
    pair.channels[0]->send(std::move(*pair.channels[0]->send_buffer(1)),
                           MessageChannel::kSendBufferBytes);
  const std::int64_t began = internal::now_ns();
  pair.channels[0].reset();
  EXPECT_LT(internal::now_ns() - began, 5'000'000'000);
}

TEST(MessageChannel, ASleepEndsWhenAMessageComesAndWhenItIsWoken) {
  Pair pair;
  for (const bool message : {true, false}) {
    std::thread sleeper([&] {
      for (const Deadline deadline = soon(); !deadline.passed();) {
        if (pair.progress(1)) return;
        pair.channels[1]->sleep(60'000'000);
        if (!message) return;
      }
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // it sleeps by now
    const std::int64_t began = internal::now_ns();
    message ? pair.send_small(1) : pair.channels[1]->wake();
    sleeper.join();
    EXPECT_LT(internal::now_ns() - began, 30'000'000'000);
  }
  EXPECT_EQ(pair.readers[1].total(), 1u);
}

}  // namespace
}  // namespace ferry::test

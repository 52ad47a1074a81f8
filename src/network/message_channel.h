// MessageChannel: messages between this rank and ranks of other nodes; each arrives once, and those
// of one sender in the order they were sent. It runs over a Transport, which guarantees neither.
// Memory is bounded: at most kUnsent send buffers to a peer are under way (copies of send_now() do
// not count). Any thread may call it, except receive().
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "network/transport.h"

namespace ferry::internal {

class MessageChannel {
  struct Outgoing;

 public:
  static constexpr std::size_t kSendBufferBytes = std::size_t{256} << 10;  // of one message
  static constexpr int kUnsent = 4;

  // Reads a message where it lies, at any address, inside receive(). It must not call the channel.
  using MessageReader = std::function<void(int from, std::span<const std::byte> message)>;
  // From this peer no more messages come, and messages to it are dropped. Reported once per peer.
  using Loss = Transport::Loss;

  // A message being written: kSendBufferBytes at data(), aligned to 64. A buffer that is destroyed
  // unsent goes back to its channel, which it must not outlive.
  class SendBuffer {
   public:
    SendBuffer(SendBuffer&& other) noexcept;
    SendBuffer& operator=(SendBuffer&& other) noexcept;
    ~SendBuffer();
    std::byte* data() const noexcept;
    int peer() const noexcept;

   private:
    friend class MessageChannel;
    SendBuffer(MessageChannel* messages, Outgoing* message) noexcept
        : messages_(messages), message_(message) {}
    MessageChannel* messages_;
    Outgoing* message_;  // null once sent
  };

  struct Counters {
    std::uint64_t duplicates = 0;  // dropped: the packet had come before
    std::uint64_t strangers = 0;   // dropped: a packet of another job, or not of ferry
    std::uint64_t reordered = 0;   // kept until the packets before it came
    std::uint64_t unread = 0;      // dropped: from peers that are lost
  };

  // `job` is equal on the ranks of the group and on no others: packets with another job are
  // dropped.
  MessageChannel(std::unique_ptr<Transport> transport, int rank, int size, std::uint64_t job);
  // Drops messages that come now. Messages that are not sent yet are sent for up to 100 ms.
  ~MessageChannel();
  MessageChannel(const MessageChannel&) = delete;
  MessageChannel& operator=(const MessageChannel&) = delete;

  // As Transport's, all before any message.
  std::string address() const;
  void let_in(const std::vector<std::string>& addresses);
  void connect(const std::map<int, std::string>& addresses);  // by peer
  std::map<int, std::string> unconnected() const;

  // Nullopt while kUnsent messages to `peer` are under way: the caller calls receive() and tries
  // again.
  std::optional<SendBuffer> send_buffer(int peer);
  // The number of send buffers to `peer` that are free now.
  int room(int peer) const;
  // Sends the first `bytes` of a buffer.
  void send(SendBuffer buffer, std::size_t bytes);
  // Copies head and body and sends them at once, whatever is under way. For flags and other small
  // messages; any size is valid.
  void send_now(int peer, std::span<const std::byte> head, std::span<const std::byte> body = {});
  // The same for a small message that another one follows at once: both are sent in one packet, in
  // the next receive() or send_bundled() at the latest.
  void send_soon(int peer, std::span<const std::byte> head, std::span<const std::byte> body = {});

  void send_bundled();

  // Sends and receives what is possible now, and reads the messages that have come. `lost` becomes
  // the peers that were lost since the last call. True when there was something to do. One thread
  // at a time.
  bool receive(const MessageReader& read, std::vector<Loss>& lost);
  // True when all messages have departed from this rank: their memory is free.
  bool all_sent() const;
  // [ranks] The messages to each rank so far, and how many of them have departed from this rank.
  struct Traffic {
    std::uint64_t sent = 0, departed = 0;
  };
  std::vector<Traffic> traffic() const;
  // Sleeps until there is something to do, at most `wait_us`.
  void sleep(int wait_us);
  void wake();
  Counters counters() const;
  std::string describe() const;
  std::string exposed() const;

 private:
  struct Self {
    int rank;
    std::uint64_t job;
  };
  struct Head;
  struct Early;  // a packet that came before its turn
  struct Peer;

  Outgoing* new_message(int peer);
  void add_to_bundle(int peer, std::span<const std::byte> head, std::span<const std::byte> body);
  void send_bundle(int peer);
  void send_bundles();
  void send_the_rest();
  void send_packets(Outgoing* message, std::size_t bytes);
  void packet_departed(Outgoing* message);
  void give_back(Outgoing* message);
  void put_back(Outgoing* message);
  bool is_ours(const Head& head, std::size_t body_bytes) const;
  void arrive(const Transport::Packet& packet, const MessageReader& read);
  void lose(int peer, const std::string& why);
  void hold(int from, const Head& head, std::span<const std::byte> body);
  void take(int from, const Head& head, std::span<const std::byte> body, const MessageReader& read);
  void hand_over(int from, bool is_bundle, std::span<const std::byte> message,
                 const MessageReader& read);

  mutable std::mutex mutex_;  // of all that follows
  std::unique_ptr<Transport> transport_;
  const Self self_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::vector<std::unique_ptr<Outgoing>> messages_;  // all that there are
  std::vector<Outgoing*> spare_;                     // free messages for bundles
  std::vector<int> bundled_;                         // peers with a bundle that is not sent
  Transport::Events events_;                         // of the last receive()
  std::vector<Loss> lost_;                           // found by it
  std::size_t under_way_ = 0;                        // messages
  int asleep_ = 0;                                   // threads inside sleep()
  Counters counters_;
};

}  // namespace ferry::internal

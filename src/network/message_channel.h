// MessageChannel: messages between this rank and ranks of other nodes; each arrives once, and those
// of one sender in the order they were sent. Over a Transport, which promises neither. Memory is
// bounded: at most kUnsent send buffers to a peer are under way (what send_now copies is not
// counted). Any thread may call it, except receive().
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
  // Nothing more comes from this peer, and what goes to it is dropped: once per peer.
  using Loss = Transport::Loss;

  // A message being written: kSendBufferBytes at data(), aligned to 64. One that is destroyed
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
    std::uint64_t duplicates = 0;  // dropped: had come already
    std::uint64_t strangers = 0;   // dropped: of another job, or no packet of ferry
    std::uint64_t reordered = 0;   // kept until those before it came
    std::uint64_t unread = 0;      // dropped: from peers that are lost
  };

  // `job` is equal on all ranks of the group and on no others: packets of others are dropped.
  MessageChannel(std::unique_ptr<Transport> transport, int rank, int size, std::uint64_t job);
  // What comes now is dropped. What is still to be sent has 100 ms to leave.
  ~MessageChannel();
  MessageChannel(const MessageChannel&) = delete;
  MessageChannel& operator=(const MessageChannel&) = delete;

  // What a peer must know to connect(), and Transport::let_in(). All before any message.
  std::string address() const;
  void let_in(const std::vector<std::string>& addresses);
  void connect(const std::map<int, std::string>& addresses);  // by peer
  std::map<int, std::string> unconnected() const;

  // Nullopt while kUnsent messages to `peer` are under way (progress() and ask again).
  std::optional<SendBuffer> send_buffer(int peer);
  // How many send buffers to `peer` there are now.
  int room(int peer) const;
  // Sends the first `bytes` of a buffer.
  void send(SendBuffer buffer, std::size_t bytes);
  // Sends head and body, copied, at once whatever is under way: for flags and other small
  // messages; of any size.
  void send_now(int peer, std::span<const std::byte> head, std::span<const std::byte> body = {});
  // The same for a small message that another one follows at once: both leave in one packet. It
  // leaves in the next receive() or send_bundled() at the latest.
  void send_soon(int peer, std::span<const std::byte> head, std::span<const std::byte> body = {});

  void send_bundled();

  // Moves what can move now, and reads the messages that have come; `lost` becomes the peers that
  // are lost since the last call. True when something moved. One thread at a time.
  bool receive(const MessageReader& read, std::vector<Loss>& lost);
  // True when everything sent has left this rank.
  bool all_sent() const;
  // [ranks] Messages sent to each so far, and how many of them have left this rank.
  struct Traffic {
    std::uint64_t sent = 0, departed = 0;
  };
  std::vector<Traffic> traffic() const;
  // Sleeps until something can move, at most `wait_us`.
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
  std::vector<Outgoing*> spare_;                     // those for bundles that are free
  std::vector<int> bundled_;                         // peers whose bundle has not left
  Transport::Events events_;                         // of the last receive()
  std::vector<Loss> lost_;                           // found by it
  std::size_t under_way_ = 0;                        // messages
  int asleep_ = 0;                                   // threads inside sleep()
  Counters counters_;
};

}  // namespace ferry::internal

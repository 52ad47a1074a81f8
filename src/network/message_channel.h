// MessageChannel: messages between this rank and ranks of other nodes. Each message arrives once,
// and messages of one sender arrive in the order in which they were sent. The channel runs over a
// Transport, which guarantees neither. Its memory is bounded: at most kUnsent send buffers to a
// peer are under way (copies of send_now() do not count). Any thread may call it, except for
// receive().
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
  static constexpr std::size_t kSendBufferBytes = std::size_t{256} << 10;  // for one message
  static constexpr int kUnsent = 4;

  // Reads a message in place, at any address, inside receive(). It must not call the channel.
  using MessageReader = std::function<void(int from, std::span<const std::byte> message)>;
  // The loss of a peer. No more messages from this peer arrive, and messages to it are dropped.
  // Each loss is reported once.
  using Loss = Transport::Loss;

  // A message that is being written: kSendBufferBytes at data(), aligned to 64. A buffer that is
  // destroyed before it is sent returns to its channel, and the channel must outlive it.
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
    Outgoing* message_;  // null after it is sent
  };

  struct Counters {
    std::uint64_t duplicates = 0;  // dropped packets that had arrived before
    std::uint64_t strangers = 0;   // dropped packets of another job, or not of ferry
    std::uint64_t reordered = 0;   // packets that were kept until earlier ones arrived
    std::uint64_t unread = 0;      // dropped packets of lost peers
  };

  // `job` identifies the group: it is equal on the ranks that join it together, and on no others.
  // Packets with another job are dropped.
  MessageChannel(std::unique_ptr<Transport> transport, int rank, int size, std::uint64_t job);
  // Sends unsent messages for up to 100 ms. Messages that arrive meanwhile are dropped.
  ~MessageChannel();
  MessageChannel(const MessageChannel&) = delete;
  MessageChannel& operator=(const MessageChannel&) = delete;

  // These call the transport. A peer must be connected before a message is sent to it.
  std::string address() const;
  void let_in(const std::vector<std::string>& addresses);
  void connect(const std::map<int, std::string>& addresses);  // by peer
  std::map<int, std::string> unconnected() const {
    const std::lock_guard held(mutex_);
    return transport_->unconnected();
  }
  std::vector<int> silent(std::chrono::milliseconds time) const {
    const std::lock_guard held(mutex_);
    return transport_->silent(time);
  }

  // Returns nullopt if kUnsent messages to `peer` are under way. The caller then calls receive()
  // and tries again.
  std::optional<SendBuffer> send_buffer(int peer);
  // The number of send buffers to `peer` that are free now.
  int room(int peer) const;
  // Sends the first `bytes` of a buffer.
  void send(SendBuffer buffer, std::size_t bytes);
  // Copies head and body and sends them at once, even if kUnsent messages are under way. Meant for
  // flags and other small messages, but any size is valid.
  void send_now(int peer, std::span<const std::byte> head, std::span<const std::byte> body = {});
  // Copies a small message that another one follows at once. Both are sent in one packet, in the
  // next receive() or send_bundled() at the latest.
  void send_soon(int peer, std::span<const std::byte> head, std::span<const std::byte> body = {});

  void send_bundled();

  // Sends and receives without waiting, and reads the messages that this call received whole. Sets
  // `lost` to the peers that were lost since the last call. Returns true if there was something to
  // do; then there may be more. Only one thread at a time may call this.
  bool receive(const MessageReader& read, std::vector<Loss>& lost);
  // From now on all_sent() ignores the messages to this peer.
  void disregard(int peer);
  // From now on the peer is another process, whose packets have this `job`. Packets of the process
  // before it are dropped. The new process must be connected.
  void replace(int peer, std::uint64_t job);
  std::uint64_t job() const noexcept { return self_.job; }
  // Returns true if all messages, except those to disregarded peers, have been sent, so that their
  // memory is free.
  bool all_sent() const;
  // [ranks]: how many messages to each rank were queued, and how many of them, counted from the
  // oldest without a gap, have left the memory of this rank.
  struct Traffic {
    std::uint64_t queued = 0, sent = 0;
  };
  std::vector<Traffic> traffic() const;
  // Sleeps until there is something to do, but at most `wait_us`.
  void sleep(int wait_us);
  void wake() {
    const std::lock_guard held(mutex_);
    transport_->wake();
  }
  Counters counters() const;
  std::string describe() const {
    const std::lock_guard held(mutex_);
    return transport_->describe();
  }
  std::string exposed() const {
    const std::lock_guard held(mutex_);
    return transport_->exposed();
  }

 private:
  struct Self {
    int rank;
    std::uint64_t job;
  };
  struct Head;
  struct Early;  // a packet that arrived before its predecessor
  struct Peer;

  Outgoing* new_message(int peer);
  void add_to_bundle(int peer, std::span<const std::byte> head, std::span<const std::byte> body);
  void send_bundle(int peer);
  void send_bundles();
  void send_the_rest();
  void send_packets(Outgoing* message, std::size_t bytes);
  void packet_sent(Outgoing* message);
  void give_back(Outgoing* message);
  void put_back(Outgoing* message);
  bool is_ours(const Head& head, std::size_t body_bytes) const;
  void arrive(const Transport::Packet& packet, const MessageReader& read);
  void lose(int peer, const std::string& why);
  void hold(int from, const Head& head, std::span<const std::byte> body);
  void take(int from, const Head& head, std::span<const std::byte> body, const MessageReader& read);
  void hand_over(int from, bool is_bundle, std::span<const std::byte> message,
                 const MessageReader& read);

  mutable std::mutex mutex_;  // protects all members below
  std::unique_ptr<Transport> transport_;
  const Self self_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::vector<std::unique_ptr<Outgoing>> messages_;  // all messages, free or in use
  std::vector<Outgoing*> spare_;                     // free messages for bundles
  std::vector<int> bundled_;                         // peers with a bundle that is not sent yet
  Transport::Events events_;                         // the events of the last receive()
  std::vector<Loss> lost_;                           // the losses that the last receive() found
  std::size_t under_way_ = 0;                        // number of messages
  bool disregards_ = false;                          // whether some peer is disregarded
  int asleep_ = 0;                                   // number of threads inside sleep()
  Counters counters_;
};

}  // namespace ferry::internal

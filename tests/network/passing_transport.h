// PassingTransport: a Transport that forwards every call to another. Tests derive from it and
// override calls.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "network/transport.h"

namespace ferry::test {

// A packet that a transport keeps.
struct KeptPacket {
  explicit KeptPacket(const internal::Transport::Packet& packet)
      : head(packet.head.begin(), packet.head.end()),
        body(packet.body.begin(), packet.body.end()) {}
  internal::Transport::Packet view() const { return {head, body}; }

  std::vector<std::byte> head, body;
};

class PassingTransport : public internal::Transport {
 public:
  explicit PassingTransport(std::unique_ptr<internal::Transport> transport)
      : transport_(std::move(transport)) {}

  std::string address() const override { return transport_->address(); }
  void let_in(const std::vector<std::string>& addresses) override { transport_->let_in(addresses); }
  void connect(const std::map<int, std::string>& addresses) override {
    transport_->connect(addresses);
  }
  void disconnect(int peer) override { transport_->disconnect(peer); }
  std::map<int, std::string> unconnected() const override { return transport_->unconnected(); }
  std::vector<int> silent(std::chrono::milliseconds time) const override {
    return transport_->silent(time);
  }
  std::size_t max_body_bytes() override { return transport_->max_body_bytes(); }
  bool send(int peer, std::span<const std::byte> head, std::span<const std::byte> body,
            void* ticket) override {
    return transport_->send(peer, head, body, ticket);
  }
  bool progress(const PacketReader& read, Events& events) override {
    return transport_->progress(read, events);
  }
  bool arm() override { return transport_->arm(); }
  void sleep(int wait_us) override { transport_->sleep(wait_us); }
  void wake() override { transport_->wake(); }
  std::string describe() const override { return transport_->describe(); }

 protected:
  // The rank that sent a packet: the field of MessageChannel::Head.
  static int sender(std::span<const std::byte> head) {
    internal::ByteReader reader(head);
    reader.take(20);
    return static_cast<int>(reader.get<std::uint32_t>());
  }

 private:
  const std::unique_ptr<internal::Transport> transport_;
};

}  // namespace ferry::test

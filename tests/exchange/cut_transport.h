// CutTransport: a Transport over UCX whose links to some peers are cut. Nothing passes there any
// more, in either direction, and the links are reported as lost.
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "network/passing_transport.h"

namespace ferry::test {

class CutTransport : public PassingTransport {
 public:
  CutTransport() : PassingTransport(internal::ucx_transport()) {}

  void connect(const std::map<int, std::string>& addresses) final {
    for (const auto& [peer, address] : addresses) peers_.insert(peer);
    PassingTransport::connect(addresses);
  }
  bool send(int peer, std::span<const std::byte> head, std::span<const std::byte> body,
            void* ticket) final {
    rank_ = sender(head);
    if (is_cut(peer)) return true;
    const bool sent = PassingTransport::send(peer, head, body, ticket);
    after_send(body);
    return sent;
  }
  bool progress(const PacketReader& read, Events& events) final {
    const bool moved = PassingTransport::progress(
        [&](const Packet& packet) {
          if (is_cut(sender(packet.head))) return;
          before_read(packet.body);
          read(packet);
        },
        events);
    const std::size_t lost = std::erase_if(peers_, [&](int peer) {
      if (!is_cut(peer)) return false;
      events.lost.push_back({peer, "the cable is cut"});
      return true;
    });
    return moved || lost > 0;
  }

 protected:
  // The rank of this transport, known from what it has sent; -1: it has sent nothing yet.
  int rank() const { return rank_; }
  virtual bool is_cut(int peer) const = 0;
  // The body may be a bundle of messages.
  virtual void after_send(std::span<const std::byte> /*body*/) {}
  virtual void before_read(std::span<const std::byte> /*body*/) {}

 private:
  int rank_ = -1;
  std::set<int> peers_;
};

}  // namespace ferry::test

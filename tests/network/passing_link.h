// PassingLink: a Link that passes everything on to another. Tests derive from it and change what
// they are about.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "network/link.h"

namespace ferry::test {

// A packet that a link keeps.
struct KeptPacket {
  explicit KeptPacket(const internal::Link::Packet& packet)
      : head(packet.head.begin(), packet.head.end()),
        body(packet.body.begin(), packet.body.end()) {}
  internal::Link::Packet view() const { return {head, body}; }

  std::vector<std::byte> head, body;
};

class PassingLink : public internal::Link {
 public:
  explicit PassingLink(std::unique_ptr<internal::Link> link) : link_(std::move(link)) {}

  std::string address() const override { return link_->address(); }
  void let_in(const std::vector<std::string>& addresses) override { link_->let_in(addresses); }
  void connect(const std::map<int, std::string>& addresses) override { link_->connect(addresses); }
  std::map<int, std::string> unanswered() const override { return link_->unanswered(); }
  std::size_t max_body_bytes() override { return link_->max_body_bytes(); }
  bool send(int peer, std::span<const std::byte> head, std::span<const std::byte> body,
            void* ticket) override {
    return link_->send(peer, head, body, ticket);
  }
  bool progress(const PacketReader& read, Events& events) override {
    return link_->progress(read, events);
  }
  bool arm() override { return link_->arm(); }
  void sleep(int wait_us) override { link_->sleep(wait_us); }
  void wake() override { link_->wake(); }
  std::string describe() const override { return link_->describe(); }

 private:
  const std::unique_ptr<internal::Link> link_;
};

}  // namespace ferry::test

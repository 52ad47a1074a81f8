// ChaosLink: any Link with bad weather, drawn from a seed. Packets come late, in another order and
// twice; the ends of sends are told late; bodies are cut at random. Nothing is lost.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "transport/link.h"

namespace ferry::test {

class ChaosLink final : public internal::Link {
 public:
  ChaosLink(std::unique_ptr<internal::Link> link, std::uint64_t seed)
      : link_(std::move(link)), random_(seed) {}

  std::string address() const override { return link_->address(); }
  void connect(int peer, const std::string& address) override { link_->connect(peer, address); }
  std::size_t max_body_bytes() override {
    const std::size_t most = link_->max_body_bytes();
    const std::uint64_t kind = below(16);
    if (kind == 0) return std::min<std::size_t>(most, 1 + below(100));
    return kind < 8 ? std::min<std::size_t>(most, 1 + below(20'000)) : most;
  }
  bool send(int peer, std::span<const std::byte> head, std::span<const std::byte> body,
            void* ticket) override {
    return link_->send(peer, head, body, ticket);
  }

  bool progress(Events& events) override {
    const bool room = held_.packets.size() < kMostHeld;
    const bool moved = room && link_->progress(held_);
    if (below(4) == 0) return moved;  // a lull
    for (std::uint64_t n = below(16); n > 0 && !held_.packets.empty(); --n) release_packet(events);
    for (std::uint64_t n = below(4); n > 0 && !held_.tickets.empty(); --n)
      events.sent(take_any(held_.tickets));
    if (held_.packets.empty() && held_.tickets.empty()) {
      for (const auto& [peer, why] : std::exchange(held_.losses, {})) events.lost(peer, why);
    }
    return moved;
  }
  bool arm() override {
    return held_.packets.empty() && held_.tickets.empty() && held_.losses.empty() && link_->arm();
  }
  void sleep(int wait_us) override { link_->sleep(wait_us); }
  void wake() override { link_->wake(); }
  std::string describe() const override { return link_->describe() + " in bad weather"; }

 private:
  struct Packet {
    std::vector<std::byte> head, body;
  };
  static constexpr std::size_t kMostHeld = 64;

  // What the link told, before it is told on.
  struct Held : Events {
    void arrived(std::span<const std::byte> head, std::span<const std::byte> body) override {
      packets.push_back({{head.begin(), head.end()}, {body.begin(), body.end()}});
    }
    void sent(void* ticket) override { tickets.push_back(ticket); }
    void lost(int peer, const std::string& why) override { losses.emplace_back(peer, why); }

    std::vector<Packet> packets;
    std::vector<void*> tickets;
    std::vector<std::pair<int, std::string>> losses;
  };

  std::uint64_t below(std::uint64_t limit) { return random_() % limit; }

  template <typename Element>
  Element take_any(std::vector<Element>& elements) {
    std::swap(elements[below(elements.size())], elements.back());
    Element taken = std::move(elements.back());
    elements.pop_back();
    return taken;
  }
  void release_packet(Events& events) {
    const Packet packet = take_any(held_.packets);
    if (below(16) == 0) held_.packets.push_back(packet);  // comes again
    events.arrived(packet.head, packet.body);
  }

  std::unique_ptr<internal::Link> link_;
  std::mt19937_64 random_;
  Held held_;
};

}  // namespace ferry::test

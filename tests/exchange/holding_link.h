// HoldingLink: a link that keeps some rows back for a while, so that flags may overtake them.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "exchange/internode/forwarder.h"
#include "network/passing_link.h"
#include "seat.h"

namespace ferry::test {

// Rows of operation 1 that lie somewhere.
struct HeldRows {
  std::uint16_t origin;
  std::uint32_t channel = 1;  // 2: those that took the second way
  // Release by the rank that lets them go, acquire in HoldingLink.
  std::atomic<bool> held{true};
};

// UCX, where such rows are kept when they have come.
class HoldingLink final : public PassingLink {
 public:
  explicit HoldingLink(const HeldRows& rows) : PassingLink(internal::ucx_link()), rows_(rows) {}

  bool progress(Events& events) override {
    Sieve sieve(*this, events);
    const bool moved = PassingLink::progress(sieve);
    if (kept_.empty() || holds()) return moved;
    for (const auto& [head, body] : std::exchange(kept_, {})) events.arrived(head, body);
    return true;
  }

 private:
  using Bytes = std::vector<std::byte>;

  struct Sieve final : Events {
    Sieve(HoldingLink& link, Events& events) : link(link), events(events) {}
    void arrived(std::span<const std::byte> head, std::span<const std::byte> body) override {
      if (link.holds() && link.concerned(body)) {
        link.kept_.emplace_back(Bytes(head.begin(), head.end()), Bytes(body.begin(), body.end()));
      } else {
        events.arrived(head, body);
      }
    }
    void sent(void* ticket) override { events.sent(ticket); }
    void lost(int peer, const std::string& why) override { events.lost(peer, why); }

    HoldingLink& link;
    Events& events;
  };

  bool holds() const { return rows_.held.load(std::memory_order_acquire); }
  // A packet is a message, or a bundle of some (MessageChannel).
  bool concerned(std::span<const std::byte> packet) const {
    if (are_rows(packet)) return true;
    internal::ByteReader bundle(packet);
    while (bundle.ok() && bundle.left() > 0)
      if (are_rows(bundle.take(bundle.get<std::uint64_t>()))) return true;
    return false;
  }
  bool are_rows(std::span<const std::byte> message) const {
    internal::ByteReader reader(message);
    const auto head = reader.get<internal::MessageHead>();
    return reader.ok() && head.channel == rows_.channel &&
           head.kind == internal::Forwarder::kRows && head.number == 1 &&
           head.origin == rows_.origin;
  }

  const HeldRows& rows_;
  std::vector<std::pair<Bytes, Bytes>> kept_;
};

inline void run_while_held(const Nodes& nodes, HeldRows& rows, const Body& body) {
  const FrameLinks links([&rows] { return std::make_unique<HoldingLink>(rows); });
  run_ranks(Mode::kThreads, static_cast<int>(nodes.of_rank.size()), body, nodes.topology,
            {.topology = nodes.topology});
}

}  // namespace ferry::test

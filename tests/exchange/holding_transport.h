// HoldingTransport: a transport that delays some messages, so that flags may overtake them.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "exchange/internode/message_layout.h"
#include "group/state.h"
#include "network/passing_transport.h"
#include "seat.h"

namespace ferry::test {

constexpr int kHeldMs = 200;  // long enough for flags to overtake

// The messages of one rank, kind and operation that cross the outermost level, and whether they are
// held back.
struct HeldMessages {
  std::uint16_t source;
  std::uint32_t channel = 1;  // 2: those that took the second way
  std::uint8_t kind = internal::kRows;
  std::uint64_t number = 1;
  // Release by the rank that lets them go, acquire in HoldingTransport.
  std::atomic<bool> held{true};
};

// A transport over UCX that keeps such messages when they have come, until they are let go.
class HoldingTransport final : public PassingTransport {
 public:
  explicit HoldingTransport(const HeldMessages& messages)
      : PassingTransport(internal::ucx_transport()), messages_(messages) {}

  bool progress(const PacketReader& read, Events& events) override {
    const auto keep_or_read = [&](const Packet& packet) {
      if (holds() && concerned(packet.body)) {
        kept_.emplace_back(packet);
      } else {
        read(packet);
      }
    };
    const bool moved = PassingTransport::progress(keep_or_read, events);
    if (kept_.empty() || holds()) return moved;
    for (const KeptPacket& packet : std::exchange(kept_, {})) read(packet.view());
    return true;
  }

 private:
  bool holds() const { return messages_.held.load(std::memory_order_acquire); }
  // A packet is a message, or a bundle of some (MessageChannel).
  bool concerned(std::span<const std::byte> packet) const {
    if (is_held(packet)) return true;
    internal::ByteReader bundle(packet);
    while (bundle.ok() && bundle.remaining() > 0)
      if (is_held(bundle.take(bundle.get<std::uint64_t>()))) return true;
    return false;
  }
  bool is_held(std::span<const std::byte> message) const {
    internal::ByteReader reader(message);
    const auto head = reader.get<internal::MessageHead>();
    return reader.ok() && head.channel == messages_.channel && head.kind == messages_.kind &&
           head.level == 0 && head.number == messages_.number && head.source == messages_.source;
  }

  const HeldMessages& messages_;
  std::vector<KeptPacket> kept_;
};

inline void run_while_held(const Nodes& nodes, HeldMessages& messages, const Body& body) {
  const FrameTransports transports(
      [&messages] { return std::make_unique<HoldingTransport>(messages); });
  run_ranks(Mode::kThreads, static_cast<int>(nodes.of_rank.size()), body, nodes.topology,
            {.topology = nodes.topology});
}

}  // namespace ferry::test

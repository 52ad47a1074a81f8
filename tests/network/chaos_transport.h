// ChaosTransport: any Transport with network chaos, drawn from a seed. Packets come late, in
// another order and twice; at times a peer is unreachable for a while, and others receive their
// packets first; the ends of sends are reported late; bodies are cut at random. No packet is lost.
// Tests run MessageChannel and whole groups over it.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "network/passing_transport.h"

namespace ferry::test {

// Counts of the chaos on all transports that share them, for a test to check that there was some.
struct ChaosCounts {
  // Relaxed throughout: numbers, read when the transports are gone.
  std::atomic<std::uint64_t> repeated{0}, shuffled{0}, sent_late{0};
};

class ChaosTransport final : public PassingTransport {
 public:
  ChaosTransport(std::unique_ptr<internal::Transport> transport, std::uint64_t seed,
                 ChaosCounts* report = nullptr)
      : PassingTransport(std::move(transport)), random_(seed), report_(report) {}

  std::size_t max_body_bytes() override {
    const std::size_t most = PassingTransport::max_body_bytes();
    const std::uint64_t kind = below(16);
    if (kind == 0) return std::min<std::size_t>(most, 1 + below(100));
    return kind < 8 ? std::min<std::size_t>(most, 1 + below(20'000)) : most;
  }
  bool send(int peer, std::span<const std::byte> head, std::span<const std::byte> body,
            void* ticket) override {
    if (below(64) == 0) outage_[peer] = internal::now_ns() + nanoseconds_below(kLongestOutageNs);
    if (outage_[peer] <= internal::now_ns())
      return PassingTransport::send(peer, head, body, ticket);
    late_.push_back({peer, head, body, ticket});
    note(&ChaosCounts::sent_late);
    return false;
  }

  bool progress(const PacketReader& read, Events& events) override {
    send_late();
    const auto hold = [this](const Packet& packet) { packets_.emplace_back(packet); };
    const bool room = packets_.size() < kMostHeld;
    const bool moved = room && PassingTransport::progress(hold, held_);
    if (below(4) == 0) return moved;  // no packet this time
    for (std::uint64_t n = below(16); n > 0 && !packets_.empty(); --n) release_packet(read);
    for (std::uint64_t n = below(4); n > 0 && !held_.sent.empty(); --n)
      events.sent.push_back(take_any(held_.sent));
    if (packets_.empty() && held_.sent.empty()) {
      for (const Loss& loss : std::exchange(held_.lost, {})) events.lost.push_back(loss);
    }
    return moved;
  }
  bool arm() override {
    return late_.empty() && packets_.empty() && held_.sent.empty() && held_.lost.empty() &&
           PassingTransport::arm();
  }
  std::string describe() const override { return PassingTransport::describe() + " under chaos"; }

 private:
  // A send to a peer that is unreachable; its memory must not change until the ticket is reported.
  struct Late {
    int peer;
    std::span<const std::byte> head, body;
    void* ticket;
  };
  static constexpr std::size_t kMostHeld = 64;
  static constexpr std::uint64_t kLongestOutageNs = 300'000;

  std::uint64_t below(std::uint64_t limit) { return random_() % limit; }
  std::int64_t nanoseconds_below(std::uint64_t limit) {
    return static_cast<std::int64_t>(below(limit));
  }
  void note(std::atomic<std::uint64_t> ChaosCounts::*what) {
    if (report_ != nullptr) (report_->*what).fetch_add(1, std::memory_order_relaxed);
  }

  void send_late() {
    const std::int64_t now = internal::now_ns();
    std::erase_if(late_, [&](const Late& late) {
      if (outage_[late.peer] > now) return false;
      if (PassingTransport::send(late.peer, late.head, late.body, late.ticket))
        held_.sent.push_back(late.ticket);
      return true;
    });
  }

  template <typename Element>
  Element take_any(std::vector<Element>& elements) {
    std::swap(elements[below(elements.size())], elements.back());
    Element taken = std::move(elements.back());
    elements.pop_back();
    return taken;
  }
  void release_packet(const PacketReader& read) {
    if (packets_.size() > 1) note(&ChaosCounts::shuffled);
    const KeptPacket packet = take_any(packets_);
    if (below(16) == 0) {
      packets_.push_back(packet);  // comes again
      note(&ChaosCounts::repeated);
    }
    read(packet.view());
  }

  std::mt19937_64 random_;
  ChaosCounts* report_;
  std::map<int, std::int64_t> outage_;  // peer: until when, in now_ns()
  std::vector<Late> late_;
  std::vector<KeptPacket> packets_;  // have come and are not read
  Events held_;                      // other events, not reported yet
};

}  // namespace ferry::test

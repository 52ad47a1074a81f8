// LocalNetwork: a Transport between threads of one process, for tests. Small packets are copied at
// once; the memory of large ones belongs to the transport until the receiver has taken them, as
// with a network card. The peers of a transport that is destroyed lose it once they have read its
// packets.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "network/transport.h"

namespace ferry::test {

class LocalNetwork {
 public:
  // Safe from any thread. Transports share the state of the network and may outlive it.
  std::unique_ptr<internal::Transport> transport() const;

 private:
  struct OnWay {
    int from;
    std::vector<std::byte> head;
    std::vector<std::byte> copy;
    std::span<const std::byte> theirs;  // not copied yet: lies in the sender's memory
    void* ticket;
  };
  // The packets and events that one transport has not taken yet.
  struct Box {
    std::deque<OnWay> packets;
    std::vector<void*> sent;
    std::vector<int> gone;
    bool open = true;
    bool changed = false;
    std::condition_variable bell;

    bool empty() const { return packets.empty() && sent.empty() && gone.empty(); }
    void ring() {
      changed = true;
      bell.notify_all();
    }
  };
  struct State {
    std::mutex mutex;
    std::deque<Box> boxes;  // they do not move
  };
  class LocalTransport;

  std::shared_ptr<State> state_ = std::make_shared<State>();
};

class LocalNetwork::LocalTransport final : public internal::Transport {
 public:
  explicit LocalTransport(std::shared_ptr<State> state) : state_(std::move(state)) {
    const std::lock_guard held(state_->mutex);
    id_ = static_cast<int>(state_->boxes.size());
    box_ = &state_->boxes.emplace_back();
  }
  ~LocalTransport() override {
    const std::lock_guard held(state_->mutex);
    box_->open = false;
    take_packets(box_->packets.size());
    for (Box& box : state_->boxes) {
      for (OnWay& packet : box.packets) {
        if (packet.from == id_) copy(packet);
      }
      box.gone.push_back(id_);
      box.ring();
    }
  }

  std::string address() const override { return std::to_string(id_); }
  void let_in(const std::vector<std::string>&) override {}
  void connect(const std::map<int, std::string>& addresses) override {
    for (const auto& [peer, address] : addresses) {
      ids_[peer] = std::stoi(address);
      peers_[ids_[peer]] = peer;
    }
  }
  std::size_t max_body_bytes() override { return std::size_t{1} << 18; }

  bool send(int peer, std::span<const std::byte> head, std::span<const std::byte> body,
            void* ticket) override {
    const std::lock_guard held(state_->mutex);
    Box& to = state_->boxes[static_cast<std::size_t>(ids_.at(peer))];
    if (!to.open) return true;
    to.packets.push_back({id_, {head.begin(), head.end()}, {}, body, ticket});
    const bool at_once = body.size() <= kCopied;
    if (at_once) copy(to.packets.back());
    to.ring();
    return at_once;
  }

  bool progress(const PacketReader& read, Events& events) override {
    std::deque<OnWay> packets;
    std::vector<void*> sent;
    std::vector<int> gone;
    {
      const std::lock_guard held(state_->mutex);
      packets = take_packets(kPacketsPerProgress);
      sent = std::exchange(box_->sent, {});
      if (box_->packets.empty()) gone = std::exchange(box_->gone, {});
    }
    for (const OnWay& packet : packets) read({packet.head, packet.copy});
    events.sent.insert(events.sent.end(), sent.begin(), sent.end());
    for (const int id : gone) {
      if (peers_.contains(id)) events.lost.push_back({peers_[id], "its transport is gone"});
    }
    return !packets.empty() || !sent.empty() || !gone.empty();
  }

  bool arm() override {
    const std::lock_guard held(state_->mutex);
    box_->changed = !box_->empty();
    return !box_->changed;
  }
  void sleep(int wait_us) override {
    std::unique_lock held(state_->mutex);
    // ThreadSanitizer of g++ 12 does not support waits on the steady clock.
    const auto until = std::chrono::system_clock::now() + std::chrono::microseconds(wait_us);
    box_->bell.wait_until(held, until, [this] { return box_->changed; });
  }
  void wake() override {
    const std::lock_guard held(state_->mutex);
    box_->ring();
  }
  std::string describe() const override { return "threads"; }

 private:
  static constexpr std::size_t kCopied = 256;
  static constexpr std::size_t kPacketsPerProgress = 32;

  // With the network's lock.
  std::deque<OnWay> take_packets(std::size_t most) {
    std::deque<OnWay> taken;
    for (; !box_->packets.empty() && taken.size() < most; box_->packets.pop_front()) {
      OnWay& packet = taken.emplace_back(std::move(box_->packets.front()));
      if (packet.theirs.data() == nullptr) continue;
      copy(packet);
      Box& sender = state_->boxes[static_cast<std::size_t>(packet.from)];
      sender.sent.push_back(packet.ticket);
      sender.ring();
    }
    return taken;
  }
  static void copy(OnWay& packet) {
    if (packet.theirs.data() == nullptr) return;
    packet.copy.assign(packet.theirs.begin(), packet.theirs.end());
    packet.theirs = {};
  }

  std::shared_ptr<State> state_;
  int id_ = 0;
  Box* box_ = nullptr;
  std::map<int, int> ids_;    // of peers
  std::map<int, int> peers_;  // of ids
};

inline std::unique_ptr<internal::Transport> LocalNetwork::transport() const {
  return std::make_unique<LocalTransport>(state_);
}

}  // namespace ferry::test

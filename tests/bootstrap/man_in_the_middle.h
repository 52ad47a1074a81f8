// A proxy between one rank and the port where ranks meet, which changes the bytes at one place of
// the stream.
#pragma once

#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <array>
#include <list>
#include <string>
#include <utility>

#include "bootstrap/meeting.h"
#include "bootstrap/tcp_endpoint.h"

namespace ferry::internal {

enum class Direction { kToCoordinator, kToMember };

// The change of the bytes of one direction of each connection, from the byte `at` on.
struct Tamper {
  enum class Kind { kNothing, kFlip, kDrop, kRepeat, kSwap, kInsert, kCut, kReplace };
  Kind kind = Kind::kNothing;
  Direction direction = Direction::kToMember;
  std::size_t at = 0;
  std::size_t bytes = 1;           // dropped, repeated or inserted; swapped with as many
  std::string text = {}, by = {};  // kReplace: each `text` becomes `by`, of equal length
};

// One direction of one connection.
class Tampered {
 public:
  explicit Tampered(const Tamper& tamper) : tamper_(tamper) {}

  bool cut() const { return cut_; }

  // The bytes to forward when these bytes have come. Bytes to be changed are held until all of them
  // have come.
  std::string pass(const std::string& came) {
    using Kind = Tamper::Kind;
    held_ += came;
    if (tamper_.kind == Kind::kReplace) replace();
    if (tamper_.kind == Kind::kNothing || tamper_.kind == Kind::kReplace || done_) return all();
    const bool all_there = tamper_.kind == Kind::kDrop || tamper_.kind == Kind::kRepeat;
    const std::size_t needed = tamper_.kind == Kind::kSwap ? 2 * tamper_.bytes
                               : all_there                 ? tamper_.bytes
                                                           : 1;
    if (seen_ + held_.size() < tamper_.at + needed) return before();
    change(tamper_.at - seen_);
    done_ = true;
    return all();
  }

 private:
  std::string all() {
    seen_ += held_.size();
    return std::exchange(held_, {});
  }
  std::string before() {
    if (seen_ + held_.size() <= tamper_.at) return all();
    const std::string out = held_.substr(0, tamper_.at - seen_);
    held_.erase(0, out.size());
    seen_ += out.size();
    return out;
  }
  void change(std::size_t at) {
    const std::string piece = held_.substr(at, tamper_.bytes);
    switch (tamper_.kind) {
      case Tamper::Kind::kFlip: held_[at] = static_cast<char>(held_[at] ^ 1); break;
      case Tamper::Kind::kDrop: held_.erase(at, tamper_.bytes); break;
      case Tamper::Kind::kRepeat: held_.insert(at, piece); break;
      case Tamper::Kind::kSwap:
        held_.erase(at, tamper_.bytes).insert(at + tamper_.bytes, piece);
        break;
      case Tamper::Kind::kInsert: held_.insert(at, tamper_.bytes, '\0'); break;
      case Tamper::Kind::kCut:
        held_.erase(at);
        cut_ = true;
        break;
      default: break;
    }
  }
  void replace() {
    for (std::size_t at; (at = held_.find(tamper_.text)) != std::string::npos;)
      held_.replace(at, tamper_.text.size(), tamper_.by);
  }

  const Tamper tamper_;
  std::string held_;
  std::size_t seen_ = 0;  // bytes that came and are not held
  bool done_ = false, cut_ = false;
};

// The bytes in each direction of the connection that carried the most. Written by the proxy, read
// when the ranks have ended.
using Traffic = std::array<std::size_t, 2>;

inline Traffic& shared_traffic() {
  void* memory =
      mmap(nullptr, sizeof(Traffic), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return *new (memory) Traffic{};
}

class Proxy {
 public:
  Proxy(const Descriptor& listener, int port, const Tamper& tamper, Traffic& traffic)
      : listener_(listener), port_(port), tamper_(tamper), traffic_(traffic) {}

  // Runs until the process is killed.
  [[noreturn]] void run() {
    while (true) {
      std::vector<pollfd> polled{{listener_.fd(), POLLIN, 0}};
      for (const Pair& pair : pairs_)
        for (const Descriptor& end : pair.ends) polled.push_back({end.fd(), POLLIN, 0});
      poll(polled.data(), polled.size(), -1);
      for (Pair& pair : pairs_)
        for (const int from : {0, 1}) pair.open = pair.open && pump(pair, from);
      std::erase_if(pairs_, [](const Pair& pair) { return !pair.open; });
      if (Descriptor member = accept_from(listener_)) add(std::move(member));
    }
  }

 private:
  struct Pair {
    std::array<Descriptor, 2> ends;  // the member's, the coordinator's
    std::array<Tampered, 2> streams;
    std::array<std::size_t, 2> bytes{};
    bool open = true;
  };

  void add(Descriptor member) {
    Attempt attempt = tcp_connect({{"127.0.0.1"}, port_}, soon());
    if (!attempt.socket) return;
    const auto stream = [&](Direction direction) {
      return Tampered(tamper_.direction == direction ? tamper_ : Tamper{});
    };
    pairs_.push_back({{std::move(member), std::move(attempt.socket)},
                      {stream(Direction::kToCoordinator), stream(Direction::kToMember)}});
  }

  // False when the connection has ended.
  bool pump(Pair& pair, int from) {
    std::string bytes(1 << 16, '\0');
    const ssize_t got = recv(pair.ends[from].fd(), bytes.data(), bytes.size(), 0);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) return false;
    bytes.resize(static_cast<std::size_t>(got));
    pair.bytes[from] += bytes.size();
    if (pair.bytes[from] > traffic_[from]) traffic_[from] = pair.bytes[from];
    for (std::string unsent = pair.streams[from].pass(bytes); !unsent.empty();) {
      const ssize_t sent =
          send(pair.ends[1 - from].fd(), unsent.data(), unsent.size(), MSG_NOSIGNAL);
      if (sent < 0 && errno != EAGAIN) return false;
      unsent.erase(0, static_cast<std::size_t>(std::max<ssize_t>(sent, 0)));
    }
    return !pair.streams[from].cut();
  }

  const Descriptor& listener_;
  const int port_;
  const Tamper tamper_;
  Traffic& traffic_;
  std::list<Pair> pairs_;
};

}  // namespace ferry::internal

// Letters: messages whose size and bytes follow from a seed, the sender, the receiver and a number,
// and a reader that checks that each comes once, whole and in order. For the tests of
// MessageChannel.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "network/message_channel.h"

namespace ferry::test {

struct Route {
  int from, to;
};

// Mostly small; some fill buffers, few are larger.
inline std::vector<std::byte> test_message(std::uint64_t seed, Route route, std::uint64_t number) {
  std::mt19937_64 random(seed + 1'000'003 * number +
                         static_cast<std::uint64_t>(64 * route.from + route.to));
  const std::uint64_t kind = random() % 1000;
  const std::size_t most = kind < 900 ? 200 : kind < 990 ? 5'000 : kind < 999 ? 262'144 : 700'000;
  std::vector<std::byte> bytes(random() % (most + 1));
  const std::uint64_t first = random();
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(first + 31 * i + (i >> 8));
  return bytes;
}

class MessageReader {
 public:
  MessageReader(std::uint64_t seed, int rank) : seed_(seed), rank_(rank) {}

  // Reads the messages that have come. True when there was something to do.
  bool progress(internal::MessageChannel& messages) {
    std::vector<internal::MessageChannel::Loss> losses;
    const bool moved =
        messages.receive([this](int from, auto message) { read(from, message); }, losses);
    for (const auto& [peer, why] : losses) lost_.emplace_back(peer, why);
    return moved;
  }

  int rank() const { return rank_; }
  std::uint64_t total() const { return total_; }
  std::uint64_t wrong() const { return wrong_; }
  const std::vector<std::pair<int, std::string>>& lost() const { return lost_; }

 private:
  void read(int from, std::span<const std::byte> message) {
    const std::vector<std::byte> expected = test_message(seed_, {from, rank_}, read_[from]++);
    if (!std::equal(message.begin(), message.end(), expected.begin(), expected.end())) ++wrong_;
    ++total_;
  }

  std::uint64_t seed_;
  int rank_;
  std::map<int, std::uint64_t> read_;
  std::uint64_t total_ = 0;
  std::uint64_t wrong_ = 0;
  std::vector<std::pair<int, std::string>> lost_;
};

// Sends the letter in a buffer if it fits, else by send_now(), and the smallest by send_soon().
// Calls `pause` while there is no free buffer.
inline void send_message(internal::MessageChannel& messages, int to,
                         const std::vector<std::byte>& bytes, const std::function<void()>& pause) {
  using internal::MessageChannel;
  const std::span all(bytes);
  if (bytes.size() < 100 || bytes.size() > MessageChannel::kSendBufferBytes) {
    const std::span head = all.first(bytes.size() / 2), body = all.subspan(head.size());
    bytes.size() < 50 ? messages.send_soon(to, head, body) : messages.send_now(to, head, body);
    return;
  }
  std::optional<MessageChannel::SendBuffer> buffer;
  while (!(buffer = messages.send_buffer(to))) pause();
  std::memcpy(buffer->data(), bytes.data(), bytes.size());
  messages.send(std::move(*buffer), bytes.size());
}

}  // namespace ferry::test

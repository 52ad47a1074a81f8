#include "exchange/internode/row_relay.h"

#include "exchange/internode/row_splitter.h"

namespace ferry::internal {

void RowRelay::keep(const MessageHead& head, std::span<const std::byte> body) {
  const std::vector<ForwardingTable::Mate>& mates = links_.everybody().mates;
  if (mates.empty() || mates.back().level <= head.level) return;  // no mate is further in
  waiting_[head.source].push_back({head, {body.begin(), body.end()}});
}

bool RowRelay::go_on() {
  const bool passed = pass_waiting();
  return give_room() || passed;
}

bool RowRelay::pass_waiting() {
  bool moved = false;
  for (auto& [source, messages] : waiting_) {
    while (!messages.empty()) {
      Waiting& next = messages.front();
      const std::size_t passed = pass(next.head, std::span(next.body).subspan(next.at));
      moved = moved || passed > 0;
      next.at += passed;
      if (next.at < next.body.size()) break;
      messages.pop_front();
    }
  }
  std::erase_if(waiting_, [](const auto& of_rank) { return of_rank.second.empty(); });
  return moved;
}

// Returns how many bytes of the body are done with: sent, or dropped because they are not valid.
std::size_t RowRelay::pass(const MessageHead& head, std::span<const std::byte> body) {
  if (head.kind == kRows) return pass_rows(head, body);
  for (const ForwardingTable::Mate& mate : links_.everybody().mates) {
    MessageHead on = head;
    on.level = static_cast<std::uint8_t>(mate.level);
    if (mate.level > head.level) links_.send(mate.rank, on, body);
  }
  return body.size();
}

std::size_t RowRelay::pass_rows(const MessageHead& head, std::span<const std::byte> body) {
  RowSplitter splitter(links_, {&links_.everybody()}, head.level, head.number, head.source);
  RowSplitter::Sending sending;
  std::size_t at = 0;
  while (at < body.size()) {
    RowUnit unit;
    const std::size_t bytes = read_row_unit(links_.layout(), body.subspan(at), unit);
    if (bytes > 0 && splitter.send(unit, sending) >= 0) break;  // no room
    at = bytes > 0 ? at + bytes : body.size();  // no valid unit: the rest is dropped
  }
  splitter.flush();
  return at;
}

// Release: give_room() raises `room_` after it was read here.
std::uint64_t RowRelay::want_room(int peer, std::uint32_t messages) {
  const std::uint64_t room = room_[peer].load(std::memory_order_relaxed) + 1;
  wanted_.store({peer, messages}, std::memory_order_release);
  return room;
}

bool RowRelay::give_room() {
  const auto [peer, messages] = wanted_.load(std::memory_order_acquire);  // partner: want_room()
  if (messages == 0 || links_.messages().room(peer) < static_cast<int>(messages)) return false;
  wanted_.store({0, 0}, std::memory_order_relaxed);
  room_[peer].fetch_add(1, std::memory_order_seq_cst);  // as raise() (group/wait.h)
  return true;
}

}  // namespace ferry::internal

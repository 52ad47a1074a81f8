// What a client says to nodes further in, on its way through this rank: its words and the rows that
// go there, in the order they came, as there is room. Questions are asked anew (asked_sums.cc).
#include <algorithm>
#include <cstring>

#include "exchange/internode/forwarder.h"

namespace ferry::internal {

std::span<const ForwardingTable::Mate> Forwarder::further_in(int level) const noexcept {
  const std::span<const ForwardingTable::Mate> mates = forwarding_.mates;
  const auto inside = [level](const ForwardingTable::Mate& mate) { return mate.level > level; };
  return mates.subspan(std::find_if(mates.begin(), mates.end(), inside) - mates.begin());
}

void Forwarder::pass_on(const MessageHead& head, std::span<const std::byte> body) {
  if (further_in(head.level).empty()) return;
  const auto waiting = passing_.find(head.origin);
  const std::size_t at = waiting == passing_.end() ? pass(head, body) : 0;
  if (at < body.size()) passing_[head.origin].push_back({head, {body.begin(), body.end()}, at});
}

// True when something moved.
bool Forwarder::pass_waiting() {
  bool moved = false;
  for (auto& [client, messages] : passing_) {
    while (!messages.empty()) {
      Passing& next = messages.front();
      const std::size_t passed = pass(next.head, std::span(next.body).subspan(next.at));
      moved = moved || passed > 0;
      next.at += passed;
      if (next.at < next.body.size()) break;
      messages.pop_front();
    }
  }
  std::erase_if(passing_, [](const auto& of_client) { return of_client.second.empty(); });
  return moved;
}

// How much of the body has gone.
std::size_t Forwarder::pass(const MessageHead& head, std::span<const std::byte> body) {
  if (head.kind == kRows) return pass_rows(head, body);
  for (const ForwardingTable::Mate& mate : further_in(head.level)) {
    MessageHead on = head;
    on.level = static_cast<std::uint8_t>(mate.level);
    send(mate.rank, on, body);
  }
  return body.size();
}

std::size_t Forwarder::pass_rows(const MessageHead& head, std::span<const std::byte> body) {
  std::vector<Onward> onward;
  for (const ForwardingTable::Mate& mate : further_in(head.level))
    onward.push_back({MessageStream(messages(), mate.rank,
                                    this->head(kRows, head.number, mate.level, head.origin))});
  std::size_t at = 0;
  while (at < body.size()) {
    const std::size_t passed = pass_unit(body.subspan(at), onward);
    if (passed == 0) break;
    at += passed;
  }
  for (Onward& to : onward) {
    to.stream.flush();
    count_all(to.stream.peer(), to.stream.bytes());
  }
  return at;
}

// Bytes of the unit; 0: there is no room for it now. Each mate gets the row with its own part of
// the destinations.
std::size_t Forwarder::pass_unit(std::span<const std::byte> unit, std::span<Onward> onward) {
  UnitHead head;
  const std::size_t bytes = whole_unit(unit, layout_, head);
  if (bytes == 0) return unit.size();  // no unit: what is left is dropped
  const std::byte* rows = unit.data() + sizeof head;
  const int first = static_cast<int>(forwarding_.mates.size() - onward.size());
  const Subtrees subtrees({&forwarding_}, 0, head.num_rows, [&](std::int64_t i) {
    UnitRow to;
    std::memcpy(&to, rows + i * unit_row_bytes(layout_), sizeof to);
    return to.rank >= 0 && to.rank < view_.num_ranks() ? to.rank : -1;
  });
  for (Onward& to : onward) {
    to.rows = {};
    to.wanted = (head.flags & UnitHead::kEverywhere) != 0;
  }
  for (int i = 0; i < subtrees.count(); ++i) {
    if (subtrees[i].next_hop < first) continue;
    onward[subtrees[i].next_hop - first].rows = subtrees[i].items;
    onward[subtrees[i].next_hop - first].wanted = true;
  }
  for (Onward& to : onward) {
    if (to.wanted && !to.stream.open(unit_size(static_cast<int>(to.rows.size()), layout_)))
      return 0;
  }
  for (Onward& to : onward) {
    if (to.wanted) put_unit(unit, head, to);
  }
  return bytes;
}

void Forwarder::put_unit(std::span<const std::byte> unit, UnitHead head, Onward& to) {
  const std::byte* rows = unit.data() + sizeof head;
  const std::byte* row = unit.data() + unit_row_at(head.num_rows, layout_);
  head.num_rows = static_cast<std::int32_t>(to.rows.size());
  std::byte* out = to.stream.append(unit_size(head.num_rows, layout_));
  std::memcpy(out, &head, sizeof head);
  std::byte* at = out + sizeof head;
  for (const std::int64_t item : to.rows) {
    std::memcpy(at, rows + item * unit_row_bytes(layout_), unit_row_bytes(layout_));
    at += unit_row_bytes(layout_);
  }
  const std::size_t row_bytes = layout_.row_bytes() + layout_.scale_bytes();
  std::memcpy(out + unit_row_at(head.num_rows, layout_), row, row_bytes);
  count_rows(to.stream.peer(), row_bytes);
}

}  // namespace ferry::internal

#include "exchange/internode/sum_server.h"

#include <algorithm>

#include "group/wait.h"

namespace ferry::internal {

// A rank's request is queued after its earlier ones. It is dropped unless its combine is later than
// that of the last request.
void SumServer::take(int from, const MessageHead& head, const SumRequestMessage& ask) {
  const ForwardingTable& table = links_.everybody();
  const int level = table.mates[table.next_hop[head.source]].level;
  std::list<SumRequest>& requests = requests_[{level, head.source}];
  const std::uint64_t last =
      requests.empty() ? served_[head.source].load(std::memory_order_relaxed)  // written here
                       : requests.back().number();
  if (head.number <= last) return;
  SumRequest& request = requests.emplace_back(*this, from, head, ask.format);
  request.read(ask.units);
  to_pass_on_.push_back(&request);
}

void SumServer::take(int from, const MessageHead& head, const SumReply& reply) {
  const bool whole =
      head.number == kDeparted || inbox_.take(head.number, head.source, from, reply.bytes);
  if (!whole || head.source != links_.rank()) return;
  inbox_.raise_summed(from, head.number);
  links_.group().ring();
}

void SumServer::end(int source) { raise(served_[source], kDeparted); }

// Relaxed: this thread waits for these flags.
void SumServer::begin_view(std::uint64_t last) {
  for (auto& served : served_) served.store(last, std::memory_order_relaxed);
  inbox_.begin_view(last);
}

bool SumServer::serve() {
  bool moved = false;
  for (SumRequest* const request : std::exchange(to_pass_on_, {})) request->pass_on();
  for (auto& [from, requests] : requests_) {
    const auto [level, source] = from;
    while (!requests.empty() && requests.front().serve()) {
      raise(served_[source], requests.front().number());
      requests.pop_front();
      moved = true;
    }
  }
  return moved;
}

std::vector<int> SumServer::awaited() const {
  std::vector<int> mates;
  for (const auto& [from, requests] : requests_) {
    if (!requests.empty()) requests.front().add_awaited(mates);
  }
  return mates;
}

RowFormat SumServer::row_format(const SumFormat& format) const noexcept {
  return {.wire = &wire_format(config_.combine_wire),
          .type = format.row_type,
          .hidden = format.hidden,
          .partials = format.partials,
          .weighted = format.weighted};
}

ReplyLayout SumServer::reply_layout(const RowFormat& format, int scalars) const noexcept {
  return {.row_bytes =
              exact() ? format.wire_bytes() : format.hidden * element_bytes(sum_type(format.type)),
          .exact = exact(),
          .scalars = scalars};
}

const IncomingSums* SumServer::ask(const ForwardingTable::Mate& mate, const Ask& ask,
                                   std::span<const std::byte> body) {
  const IncomingSums* sums =
      ask.bytes > 0 ? &inbox_.expect(ask.number, ask.source, mate.rank, ask.bytes) : nullptr;
  links_.send(mate.rank, links_.head(kSumRequest, ask.number, mate.level, ask.source), body);
  return sums;
}

}  // namespace ferry::internal

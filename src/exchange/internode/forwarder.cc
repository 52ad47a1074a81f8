#include "exchange/internode/forwarder.h"

#include <algorithm>
#include <cstring>

namespace ferry::internal {

namespace {

// The words of a rank, as they travel.
struct Words {
  std::uint64_t progress, read_through;
  std::int32_t growth;  // Code, of the dispatch `number`
  std::int32_t num_counts;
};

template <typename T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

// The words of a rank whose mate has just changed come by two ways: the later ones hold.
void raise_to(std::atomic<std::uint64_t>& flag, std::uint64_t value) noexcept {
  std::uint64_t seen = flag.load(std::memory_order_relaxed);
  // As raise() (group/wait.h).
  while (seen < value && !flag.compare_exchange_weak(seen, value, std::memory_order_seq_cst)) {
  }
}

bool has_counts(const Terms& terms) {
  return terms.kind == OperationKind::kDispatch ? !terms.cached : terms.route == 0;
}

}  // namespace

Forwarder::Forwarder(GroupState& group, const WindowView& view, const ExchangeConfig& config,
                     Algorithm algorithm)
    : group_(&group),
      config_(config),
      layout_(*view.layout),
      view_{view.segment, &layout_, view.positions},
      combine_wire_(&wire_format(config.combine_wire)),
      forwarding_(group.topology(), group.rank(), std::vector<bool>(group.size(), true),
                  algorithm == Algorithm::kFullmesh),
      table_(forwarding_),
      rank_(group.rank()),
      summed_(group.size()),
      served_(group.size()),
      room_(group.size()),
      crossed_(group.size()) {
  group.reach(forwarding_);
  channel_ = group.open_channel(this);
}

Forwarder::~Forwarder() { group_->close_channel(channel_); }

void Forwarder::send(int peer, const MessageHead& head, std::span<const std::byte> body) {
  messages().send_now(peer, bytes_of(head), body);
  count_all(peer, sizeof head + body.size());
}

void Forwarder::tell(std::uint64_t number) {
  const auto lock = messages().lock();
  const ControlFlags& mine = view_.control(rank_);
  const Record& record = view_.record(rank_, number);
  const bool first = told_ < number && record.number == number;
  const std::size_t counts =
      first && has_counts(record.terms) ? view_.layout->count_row_bytes() : 0;
  const Words words{
      .progress = mine.progress.load(std::memory_order_relaxed),
      .read_through = mine.read_through.load(std::memory_order_relaxed),
      .growth = static_cast<std::int32_t>(
          record.terms.kind == OperationKind::kDispatch ? record.posted.growth : Code::kOk),
      .num_counts = static_cast<std::int32_t>(counts / sizeof(std::int32_t))};
  std::vector<std::byte> body(sizeof words + (first ? sizeof record + counts : 0));
  std::memcpy(body.data(), &words, sizeof words);
  if (first) {
    std::memcpy(body.data() + sizeof words, &record, sizeof record);
    std::memcpy(body.data() + sizeof words + sizeof record, view_.count_row(rank_, number), counts);
    told_ = number;
  }
  for (const ForwardingTable::Mate& mate : table_.mates)
    send(mate.rank, head(first ? kRecord : kFlags, number, mate.level, rank_), body);
}

ForwardingTable Forwarder::tell_read(const std::vector<bool>& taking_part, bool all) {
  ForwardingTable next = forwarding_;
  if (!all) next = ForwardingTable(group_->topology(), rank_, taking_part, /*flat=*/true);
  group_->reach(next);
  // Relaxed: my own flag.
  send_flags(next, 0, view_.control(rank_).read_through.load(std::memory_order_relaxed));
  return next;
}

void Forwarder::tell_left() {
  send_flags(table_, kLeft, kLeft);
  messages().progress();
}

void Forwarder::send_flags(const ForwardingTable& table, std::uint64_t progress,
                           std::uint64_t read_through) {
  const auto lock = messages().lock();
  const Words words{
      .progress = progress, .read_through = read_through, .growth = 0, .num_counts = 0};
  for (const ForwardingTable::Mate& mate : table.mates)
    send(mate.rank, head(kFlags, 0, mate.level, rank_), bytes_of(words));
}

void Forwarder::read(int from, const MessageHead& head, std::span<const std::byte> body) {
  const bool known = head.origin < view_.num_ranks() &&
                     head.level <= group_->topology().find_level(Topology::kHost) &&
                     !view_.here(from);
  if (!known) return;
  if (head.kind == kSums) return read_sums(from, head, body);
  if (view_.here(head.origin)) return;
  if (head.kind == kAsk) return read_ask(from, head, body);
  pass_on(head, body);
  switch (head.kind) {
    case kRecord: return read_record(head.origin, head.number, body);
    case kFlags: return read_flags(head.origin, head.number, body);
    case kRows: return store_rows(head.number, body);
    default: return;
  }
}

void Forwarder::read_record(int origin, std::uint64_t number, std::span<const std::byte> body) {
  Words words;
  const std::size_t heads = sizeof words + sizeof(Record);
  if (body.size() < heads) return;
  std::memcpy(&words, body.data(), sizeof words);
  const std::size_t counts = body.size() - heads;
  if (counts > view_.layout->count_row_bytes()) return;
  std::memcpy(static_cast<void*>(&view_.record(origin, number)), body.data() + sizeof words,
              sizeof(Record));
  std::memcpy(view_.count_row(origin, number), body.data() + heads, counts);
  read_flags(origin, 0, body.first(sizeof words));
}

void Forwarder::read_flags(int origin, std::uint64_t number, std::span<const std::byte> body) {
  Words words;
  if (body.size() != sizeof words) return;
  std::memcpy(&words, body.data(), sizeof words);
  if (words.progress == progress_of(number, Stage::kGrown))
    view_.record(origin, number).posted.growth = static_cast<Code>(words.growth);
  raise_to(view_.control(origin).read_through, words.read_through);
  raise_to(view_.control(origin).progress, words.progress);
  if (words.progress == kLeft) {  // it asks for nothing more, and sums nothing more
    raise(served_[origin], kLeft);
    raise(summed_[origin], kLeft);
  }
  group_->ring();
}

CrossedBytes Forwarder::crossed(int level) const noexcept {
  const Topology& topology = group_->topology();
  CrossedBytes sum;
  for (int peer = 0; peer < view_.num_ranks(); ++peer) {
    if (topology.group_of(peer, level) == topology.group_of(rank_, level)) continue;
    sum.rows += crossed_[peer].rows.load(std::memory_order_relaxed);
    sum.all += crossed_[peer].all.load(std::memory_order_relaxed);
  }
  return sum;
}

std::uint64_t Forwarder::want_room(int peer) {
  const auto lock = messages().lock();
  wanted_.push_back(peer);
  return room_[peer].load(std::memory_order_relaxed) + 1;
}

// Passes on what waited, serves whoever waits for sums, and tells this rank's caller what it waits
// for.
bool Forwarder::go_on() {
  bool moved = pass_waiting();
  for (auto& [client, requests] : requests_) {
    while (!requests.empty() && serve(requests.front())) {
      raise(served_[client], requests.front().number);
      requests.pop_front();
      moved = true;
    }
  }
  const std::size_t given = std::erase_if(wanted_, [&](int peer) {
    if (!messages().room(peer)) return false;
    room_[peer].fetch_add(1, std::memory_order_seq_cst);
    return true;
  });
  moved = moved || given > 0;
  if (moved) group_->ring();
  return moved;
}

void Forwarder::ask(const ForwardingTable::Mate& mate, std::uint64_t number, int origin,
                    const Ask& ask, std::span<const std::byte> terms) {
  std::vector<std::byte> body(sizeof ask + terms.size());
  std::memcpy(body.data(), &ask, sizeof ask);
  if (!terms.empty()) std::memcpy(body.data() + sizeof ask, terms.data(), terms.size());
  const auto lock = messages().lock();
  send(mate.rank, head(kAsk, number, mate.level, origin), body);
}

bool Forwarder::waits_for(int peer) const {
  return std::any_of(requests_.begin(), requests_.end(), [&](const auto& of_client) {
    const std::deque<SumRequest>& requests = of_client.second;
    if (requests.empty() || ready(requests.front()) != Ready::kYes) return false;
    const auto owed = [&](const Part& part) {
      return part.sums && part.sums->mate == peer && part.sums->filled < part.sums->size;
    };
    return std::any_of(requests.front().parts.begin(), requests.front().parts.end(), owed);
  });
}

// All those that speak through this rank have destroyed their exchange too.
bool Forwarder::done() const {
  if (holds()) return false;
  for (int peer = 0; peer < group_->size(); ++peer) {
    if (forwarding_.is_served[peer] &&
        view_.control(peer).progress.load(std::memory_order_relaxed) != kLeft)
      return false;
  }
  return true;
}

// Memory is kept: the pages of a first use cost more than the sums.
Forwarder::Incoming& Forwarder::expect(std::uint64_t number, int origin, int mate,
                                       std::size_t bytes) {
  const auto lock = messages().lock();
  Incoming incoming{.number = number,
                    .origin = origin,
                    .mate = mate,
                    .memory = {},
                    .size = bytes,
                    .filled = 0,
                    .capacity = std::max<std::size_t>(bytes, 1)};
  const auto fits = std::find_if(spare_.begin(), spare_.end(),
                                 [&](const auto& spare) { return spare.first >= bytes; });
  if (fits != spare_.end()) {
    incoming.capacity = fits->first;
    incoming.memory = std::move(fits->second);
    spare_.erase(fits);
  } else {
    if (!spare_.empty()) spare_.pop_back();  // too small
    incoming.memory = std::make_unique_for_overwrite<std::byte[]>(incoming.capacity);
  }
  return incoming_.emplace_back(std::move(incoming));
}

void Forwarder::forget_sums(std::uint64_t number, int origin) {
  const auto lock = messages().lock();
  for (auto it = incoming_.begin(); it != incoming_.end();) {
    if (it->number != number || it->origin != origin) {
      ++it;
      continue;
    }
    spare_.emplace_back(it->capacity, std::move(it->memory));
    it = incoming_.erase(it);
  }
}

bool Forwarder::all_here(std::uint64_t number, int mate) const {
  const auto lock = messages().lock();
  return std::any_of(incoming_.begin(), incoming_.end(), [&](const Incoming& incoming) {
    return incoming.number == number && incoming.origin == rank_ && incoming.mate == mate &&
           incoming.filled == incoming.size;
  });
}

void Forwarder::read_sums(int from, const MessageHead& head, std::span<const std::byte> body) {
  for (Incoming& incoming : incoming_) {
    if (incoming.number != head.number || incoming.origin != head.origin || incoming.mate != from)
      continue;
    if (body.size() > incoming.size - incoming.filled) return;
    std::memcpy(incoming.data() + incoming.filled, body.data(), body.size());
    incoming.filled += body.size();
    if (incoming.filled == incoming.size && head.origin == rank_) raise(summed_[from], head.number);
    return;
  }
}

}  // namespace ferry::internal

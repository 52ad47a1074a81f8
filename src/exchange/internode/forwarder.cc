#include "exchange/internode/forwarder.h"

#include <algorithm>

namespace ferry::internal {

namespace {

// The flags of a rank may come by the old table and by the new one where the active ranks have just
// changed: the later value holds.
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
                     Algorithm algorithm, bool second_way)
    : group_(&group),
      config_(config),
      layout_(*view.layout),
      view_{view.segment, &layout_, view.positions},
      everybody_(group.topology(), group.rank(), std::vector<bool>(group.size(), true),
                 algorithm == Algorithm::kFullmesh, second_way),
      table_(everybody_),
      progress_(second_way ? &ControlFlags::second_way : &ControlFlags::progress),
      asked_{.served = std::vector<std::atomic<std::uint64_t>>(group.size())},
      inbox_(group.size()),
      room_{.wanted = {}, .given = std::vector<std::atomic<std::uint64_t>>(group.size())},
      crossed_(group.size()) {
  group.reach(everybody_, /*together=*/true);
  channel_ = group.open_channel(this);
}

Forwarder::~Forwarder() { group_->close_channel(channel_); }

void Forwarder::use(std::shared_ptr<WorkerPool> workers) {
  const auto lock = messages().lock();
  workers_ = std::move(workers);
}

void Forwarder::send(int peer, const MessageHead& head, std::span<const std::byte> body) {
  messages().send_now(peer, bytes_of(head), body);
  count_all(peer, sizeof head + body.size());
}

void Forwarder::send_soon(int peer, const MessageHead& head, std::span<const std::byte> body) {
  messages().send_soon(peer, bytes_of(head), body);
  count_all(peer, sizeof head + body.size());
}

void Forwarder::tell(std::uint64_t number) {
  const auto lock = messages().lock();
  const int rank = group_->rank();
  const ControlFlags& mine = view_.control(rank);
  const Record& record = view_.record(rank, number);
  const bool dispatch = record.terms.kind == OperationKind::kDispatch;
  // Relaxed: my own flags.
  const RankFlags flags{.progress = mine.progress.load(std::memory_order_relaxed),
                        .read_through = mine.read_through.load(std::memory_order_relaxed),
                        .set_since = mine.set_since.load(std::memory_order_relaxed),
                        .growth = dispatch ? record.posted.growth : Code::kOk};
  const bool first = told_ < number && record.number == number;
  std::vector<std::byte> body;
  if (first) {
    const std::size_t counts = has_counts(record.terms) ? layout_.count_row_bytes() : 0;
    body =
        write_record({flags,
                      record,
                      {reinterpret_cast<const std::byte*>(view_.count_row(rank, number)), counts}});
    told_ = number;
  } else {
    body = write_flags(flags);
  }
  // The ask of a combine comes next. A combine that is refused has none: its record leaves with the
  // next progress().
  const bool ask_follows = first && !dispatch;
  for (const ForwardingTable::Mate& mate : table_.mates) {
    const MessageHead told = head(first ? kRecord : kFlags, number, mate.level, rank);
    ask_follows ? send_soon(mate.rank, told, body) : send(mate.rank, told, body);
  }
}

// Only where all ranks take part do rows take the second way (ExchangeParts::ways). As in tell(),
// the ask of a combine comes next.
void Forwarder::tell_delivered(std::uint64_t number) {
  const auto lock = messages().lock();
  const Terms& terms = view_.record(group_->rank(), number).terms;
  if (static_cast<int>(terms.num_active) < num_ranks()) return;
  const std::vector<std::byte> body =
      write_flags({.progress = progress_of(number, Stage::kDelivered)});
  told_ = number;
  for (const ForwardingTable::Mate& mate : table_.mates) {
    const MessageHead told = head(kFlags, 0, mate.level, group_->rank());
    terms.kind == OperationKind::kCombine ? send_soon(mate.rank, told, body)
                                          : send(mate.rank, told, body);
  }
}

ForwardingTable Forwarder::tell_read(const std::vector<bool>& taking_part, bool all) {
  ForwardingTable next = everybody_;
  if (!all) next = ForwardingTable(topology(), group_->rank(), taking_part, /*flat=*/true);
  group_->reach(next, /*together=*/false);
  // Relaxed: my own flag.
  const std::uint64_t read =
      view_.control(group_->rank()).read_through.load(std::memory_order_relaxed);
  const RankFlags flags{.progress = 0, .read_through = read, .set_since = 0};
  // Ranks that are left out from now on hear it by the table in use only: they may wait for it when
  // they come back.
  send_flags(table_, flags);
  send_flags(next, flags);
  return next;
}

// A rank that I send sums to gets them from me. Where groups are uneven, my flags reach it through
// other ranks, maybe before the last sums, or not at all. So an empty message of sums, sent after
// the last ones, tells it that no more come.
void Forwarder::tell_left() {
  for (int peer = 0; peer < num_ranks(); ++peer) {
    if (table_.is_served[peer] && table_.last_hop[peer] == group_->rank())
      send_soon(peer, head(kSums, kLeft, 0, peer), {});
  }
  const bool first_way = progress_ == &ControlFlags::progress;
  send_flags(table_, {.progress = kLeft, .read_through = first_way ? kLeft : 0, .set_since = 0});
  messages().progress();
}

void Forwarder::send_flags(const ForwardingTable& table, const RankFlags& flags) {
  const auto lock = messages().lock();
  for (const ForwardingTable::Mate& mate : table.mates)
    send(mate.rank, head(kFlags, 0, mate.level, group_->rank()), write_flags(flags));
}

void Forwarder::read(int from, const MessageHead& head, std::span<const std::byte> body) {
  const bool known = head.origin < num_ranks() &&
                     head.level <= topology().find_level(Topology::kHost) && !view_.here(from);
  if (!known) return;
  if (head.kind == kSums) return read_sums(from, head, body);
  if (view_.here(head.origin)) return;
  if (head.kind == kAsk) return read_ask(from, head, body);
  pass_on(head, body);
  RankFlags flags;
  switch (head.kind) {
    case kRecord: return read_record(head.origin, head.number, body);
    case kFlags:
      if (internal::read_flags(body, flags)) read_flags(head.origin, head.number, flags);
      return;
    case kRows: return store_rows(head.number, body);
    default: return;
  }
}

void Forwarder::read_record(int origin, std::uint64_t number, std::span<const std::byte> body) {
  RecordMessage message;
  if (!internal::read_record(body, layout_, message)) return;
  view_.record(origin, number) = message.record;
  std::ranges::copy(message.counts, reinterpret_cast<std::byte*>(view_.count_row(origin, number)));
  read_flags(origin, 0, message.flags);
}

void Forwarder::read_flags(int origin, std::uint64_t number, const RankFlags& flags) {
  if (flags.progress == progress_of(number, Stage::kGrown))
    view_.record(origin, number).posted.growth = flags.growth;
  raise_to(view_.control(origin).set_since, flags.set_since);  // before progress
  raise_to(view_.control(origin).read_through, flags.read_through);
  raise_to(view_.control(origin).*progress_, flags.progress);
  if (flags.progress == kLeft) raise(asked_.served[origin], kLeft);  // it asks for nothing more
  group_->ring();
}

// A later ask of a rank comes behind the earlier ones; one of an earlier combine is none.
void Forwarder::read_ask(int from, const MessageHead& head, std::span<const std::byte> body) {
  ByteReader reader(body);
  SumFormat format;
  const int level = everybody_.mates[everybody_.next_hop[head.origin]].level;
  std::list<SumRequest>& requests = asked_.requests[{level, head.origin}];
  const std::uint64_t last =
      requests.empty() ? asked_.served[head.origin].load(std::memory_order_relaxed)  // my own
                       : requests.back().number();
  if (head.number <= last || !read_format(reader, config_.max_output_row_bytes, format)) return;
  requests.emplace_back(*this, from, head, format).read(reader.rest());
}

void Forwarder::read_sums(int from, const MessageHead& head, std::span<const std::byte> body) {
  const bool whole = head.number == kLeft || inbox_.take(head.number, head.origin, from, body);
  if (!whole || head.origin != group_->rank()) return;
  raise_to(inbox_.summed()[from], head.number);
  group_->ring();
}

RowFormat Forwarder::row_format(const SumFormat& format) const noexcept {
  return {.wire = &wire_format(config_.combine_wire),
          .type = format.row_type,
          .hidden = format.hidden,
          .partials = format.partials,
          .weighted = format.weighted};
}

AnswerLayout Forwarder::answer_layout(const RowFormat& format, int scalars) const noexcept {
  return {.row_bytes =
              exact() ? format.wire_bytes() : format.hidden * element_bytes(sum_type(format.type)),
          .exact = exact(),
          .scalars = scalars};
}

const IncomingSums* Forwarder::ask(const ForwardingTable::Mate& mate, const Ask& ask,
                                   std::span<const std::byte> body) {
  const auto lock = messages().lock();
  const IncomingSums* sums =
      ask.bytes > 0 ? &inbox_.expect(ask.number, ask.origin, mate.rank, ask.bytes) : nullptr;
  send(mate.rank, head(kAsk, ask.number, mate.level, ask.origin), body);
  return sums;
}

void Forwarder::forget_sums(std::uint64_t number, int origin) {
  const auto lock = messages().lock();
  inbox_.forget(number, origin);
}

bool Forwarder::all_here(std::uint64_t number, int mate) const {
  const auto lock = messages().lock();
  return inbox_.whole(number, group_->rank(), mate);
}

CrossedBytes Forwarder::crossed(int level) const {
  CrossedBytes sum;
  for (int peer = 0; peer < num_ranks(); ++peer) {
    if (topology().group_of(peer, level) == topology().group_of(group_->rank(), level)) continue;
    sum.rows += crossed_[peer].rows.load(std::memory_order_relaxed);
    sum.all += crossed_[peer].all.load(std::memory_order_relaxed);
  }
  return sum;
}

std::uint64_t Forwarder::want_room(int peer, int messages) {
  const auto lock = this->messages().lock();
  room_.wanted.emplace_back(peer, messages);
  return room_.given[peer].load(std::memory_order_relaxed) + 1;
}

// Passes on what waited, serves whoever waits for sums, and tells this rank's caller what it waits
// for.
bool Forwarder::go_on() {
  bool moved = pass_waiting();
  for (auto& [from, requests] : asked_.requests) {
    const auto [level, origin] = from;
    while (!requests.empty() && requests.front().serve()) {
      raise(asked_.served[origin], requests.front().number());
      requests.pop_front();
      moved = true;
    }
  }
  const std::size_t given = std::erase_if(room_.wanted, [&](const auto& wanted) {
    const auto [peer, wanted_messages] = wanted;
    if (messages().room(peer) < wanted_messages) return false;
    room_.given[peer].fetch_add(1, std::memory_order_seq_cst);
    return true;
  });
  moved = moved || given > 0;
  if (moved) group_->ring();
  return moved;
}

bool Forwarder::waits_for(int peer) const {
  return std::any_of(asked_.requests.begin(), asked_.requests.end(), [peer](const auto& of_rank) {
    return !of_rank.second.empty() && of_rank.second.front().waits_for(peer);
  });
}

// Flags of the first way say nothing of rows that take the second: of an operation that I have
// delivered by it, those of a mate may be still to come whatever I wait for now.
bool Forwarder::expects(int peer) const {
  return progress_ == &ControlFlags::second_way && told_ > 0 && everybody_.is_mate[peer] &&
         seen_progress(peer) < progress_of(told_, Stage::kDelivered);
}

// What I see here: of a rank of another node, what came by this way.
std::uint64_t Forwarder::seen_progress(int peer) const noexcept {
  const ControlFlags& flags = view_.control(peer);
  return (view_.here(peer) ? flags.progress : flags.*progress_).load(std::memory_order_relaxed);
}

// True when nobody needs this forwarder any more. At every level either all ranks whose messages
// come through it, or all ranks that read these messages here, have destroyed their exchange or are
// gone.
bool Forwarder::done() const {
  if (holds()) return false;
  const int me = group_->rank();
  const auto takes_part = [&](int peer) {
    return seen_progress(peer) != kLeft &&
           !group_->ended(peer, /*sends_here=*/everybody_.last_hop[peer] == me);
  };
  std::vector<bool> inside(num_ranks(), true);  // [ranks] in my group of the level before
  for (int level = 0; level <= topology().find_level(Topology::kHost); ++level) {
    bool sender = false, reader = false;
    for (int peer = 0; peer < num_ranks(); ++peer) {
      if (!inside[peer]) continue;
      inside[peer] = topology().group_of(peer, level) == topology().group_of(me, level);
      if (!inside[peer] && everybody_.is_served[peer]) sender = sender || takes_part(peer);
      if (inside[peer] && peer != me) reader = reader || takes_part(peer);
    }
    if (sender && reader) return false;
  }
  return true;
}

// The messages of a rank are passed on in the order they came, as there is room. Asks are not: each
// mate asks anew (SumRequest).
void Forwarder::pass_on(const MessageHead& head, std::span<const std::byte> body) {
  const std::vector<ForwardingTable::Mate>& mates = everybody_.mates;
  if (mates.empty() || mates.back().level <= head.level) return;  // none is further in
  const auto waiting = passing_.find(head.origin);
  const std::size_t at = waiting == passing_.end() ? pass(head, body) : 0;
  if (at < body.size()) passing_[head.origin].push_back({head, {body.begin(), body.end()}, at});
}

// True when something moved.
bool Forwarder::pass_waiting() {
  bool moved = false;
  for (auto& [origin, messages] : passing_) {
    while (!messages.empty()) {
      Passing& next = messages.front();
      const std::size_t passed = pass(next.head, std::span(next.body).subspan(next.at));
      moved = moved || passed > 0;
      next.at += passed;
      if (next.at < next.body.size()) break;
      messages.pop_front();
    }
  }
  std::erase_if(passing_, [](const auto& of_rank) { return of_rank.second.empty(); });
  return moved;
}

// Returns how much of the body has left.
std::size_t Forwarder::pass(const MessageHead& head, std::span<const std::byte> body) {
  if (head.kind == kRows) return pass_rows(head, body);
  for (const ForwardingTable::Mate& mate : everybody_.mates) {
    MessageHead on = head;
    on.level = static_cast<std::uint8_t>(mate.level);
    if (mate.level > head.level) send(mate.rank, on, body);
  }
  return body.size();
}

std::size_t Forwarder::pass_rows(const MessageHead& head, std::span<const std::byte> body) {
  RowSplitter splitter(*this, {&everybody_}, head.level, head.number, head.origin);
  RowSplitter::Sending sending;
  std::size_t at = 0;
  while (at < body.size()) {
    RowUnit unit;
    const std::size_t bytes = read_row_unit(layout_, body.subspan(at), unit);
    if (bytes > 0 && splitter.send(unit, sending) >= 0) break;  // no room
    at = bytes > 0 ? at + bytes : body.size();                  // no unit: what is left is dropped
  }
  splitter.flush();
  return at;
}

}  // namespace ferry::internal

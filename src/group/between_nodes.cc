// A group on several nodes: this rank connects to its mates in other nodes, sends them the flags
// for which the ranks of their nodes wait, and writes the flags that arrive to the memory of its
// own node. There they look as if the ranks of other nodes had written them, so no other code
// depends on where a rank is.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "bootstrap/agree.h"
#include "bootstrap/handshake.h"
#include "group/leaving.h"
#include "group/state.h"
#include "group/wait.h"

namespace ferry::internal {

namespace {

constexpr std::chrono::seconds kLinger{2};
constexpr int kLingerSleepUs = 200;

// The progress thread: the number of looks without a pause, and the times of its sleeps. The sleeps
// are short since a channel also waits for events that no packet announces.
constexpr int kLooks = 50;
constexpr int kShortestThreadNapUs = 50;
constexpr int kLongestThreadNapUs = 2000;

}  // namespace

void GroupState::join_nodes(const TransportFactory& make, const Deadline& by) {
  const std::vector<int>& ranks = rendezvous_->ranks();
  const std::string job = rank_ == ranks[0] ? hex(fresh_nonce()).substr(0, 16) : "";
  const std::vector<std::string> jobs = rendezvous_->all_gather(job, by);
  std::string problem;
  try {
    messages_ =
        std::make_unique<MessageChannel>(make(), rank_, size_, number_in(jobs[0], ranks[0]));
  } catch (const Error& error) {
    problem = error.what();
  }
  check_no_problem(rendezvous_->all_gather(problem, by), ranks);
  const std::vector<std::string> addresses = rendezvous_->all_gather(messages_->address(), by);
  std::vector<std::string> others;
  std::vector<bool> takes_part(size_);
  for (std::size_t place = 0; place < ranks.size(); ++place) {
    const int peer = ranks[place];
    takes_part[peer] = true;
    nodes_.addresses[peer] = addresses[place];
    if (!here(peer)) others.push_back(addresses[place]);
  }
  messages_->let_in(others);
  rendezvous_->all_gather("", by);  // from now on all ranks let each other in
  nodes_.forwarding = ForwardingTable(topology_, rank_, takes_part, /*flat=*/true);
  std::optional<Error> failure;
  try {
    reach(nodes_.forwarding, /*together=*/true);
  } catch (const Error& error) {
    failure = error;
  }
  begin_progress();
  try {
    await_links(failure, by);
  } catch (...) {
    end_progress();  // ends the thread, which uses this object, before the object is destroyed
    messages_.reset();
    throw;
  }
  share_progress(this);
}

// From now on messages are read and may get a reply.
void GroupState::begin_progress() {
  nodes_.progress.own_thread = progress_thread_in_environment();
  {
    const auto held = lock();
    nodes_.progress.open = true;
  }
  if (nodes_.progress.own_thread)
    nodes_.progress.thread = std::jthread([this](const std::stop_token& ending) { live(ending); });
}

void GroupState::end_progress() {
  unshare_progress(this);
  if (nodes_.progress.thread.joinable()) {
    nodes_.progress.thread.request_stop();
    messages_->wake();
    nodes_.progress.thread.join();
  }
  std::vector<std::shared_ptr<void>> kept_open;  // they end after the lock is released
  const auto held = lock();
  nodes_.progress.open = false;
  for (const auto& [number, channel] : nodes_.channels)
    kept_open.push_back(std::move(channel->kept_open));
}

std::unique_lock<std::mutex> GroupState::lock() const {
  const BetweenNodes::Progress& progress = nodes_.progress;
  // Relaxed: a hint for live(); the mutex orders everything else.
  progress.waiting.fetch_add(1, std::memory_order_relaxed);
  std::unique_lock held(progress.mutex);
  progress.waiting.fetch_sub(1, std::memory_order_relaxed);
  return held;
}

void GroupState::live(const std::stop_token& ending) {
  int looks = 0;
  int nap_us = kShortestThreadNapUs;
  while (!ending.stop_requested()) {
    while (nodes_.progress.waiting.load(std::memory_order_relaxed) > 0) std::this_thread::yield();
    if (move_messages()) {
      looks = 0;
      nap_us = kShortestThreadNapUs;
    } else if (++looks < kLooks) {
      std::this_thread::yield();
    } else {
      messages_->sleep(nap_us);
      nap_us = std::min(2 * nap_us, kLongestThreadNapUs);
    }
  }
}

// Connects to the ranks to which this rank sends, and to those that send to it. If the ranks do not
// call this `together`, a rank that sends here may leave before it has connected to this rank. So
// the sender gets a message that this rank listens (kListens).
void GroupState::reach(const ForwardingTable& forwarding, bool together) {
  const auto held = lock();
  std::vector<int> peers, senders;
  for (int peer = 0; peer < size_; ++peer) {
    const bool sends_here = forwarding.is_served[peer] && forwarding.last_hop[peer] == rank_;
    if (nodes_.reached[peer] || !(forwarding.is_mate[peer] || sends_here)) continue;
    peers.push_back(peer);
    if (sends_here && !together) senders.push_back(peer);
  }
  connect(peers);
  for (const int peer : senders) send(peer, GroupMessage::kListens, 0);
}

void GroupState::connect(const std::vector<int>& peers) {
  std::map<int, std::string> addresses;
  for (const int peer : peers) addresses[peer] = nodes_.addresses[peer];
  if (!addresses.empty()) messages_->connect(addresses);
  for (const int peer : peers) nodes_.reached[peer] = true;  // not after an exception
  survival_.messages().send_view(*this, peers);
}

void GroupState::send(int peer, std::uint8_t kind, std::uint64_t number,
                      std::span<const std::byte> body) {
  const MessageHead head{.channel = 0, .kind = kind, .number = number};
  messages_->send_now(peer, bytes_of(head), body);
}

// Sends the abort word to all ranks of the view to which this rank has connected, including mates
// in operations of fewer ranks (linger).
void GroupState::send_abort(std::uint64_t word) noexcept {
  if (!messages_) return;
  try {
    const auto held = lock();
    for (int peer = 0; peer < size_; ++peer) {
      if (nodes_.reached[peer] && survival_.has(peer))
        send(peer, GroupMessage::kAbort, word, bytes_of(flags_->slot(rank_).report));
    }
  } catch (const std::bad_alloc&) {  // the others end at their deadlines
  }
  move_messages();
}

// Sends the abort word to ranks that listen and to which this rank has never connected.
void GroupState::send_abort_to_listeners() {
  for (int peer = 0; peer < size_; ++peer) {
    if (!nodes_.listens[peer] || nodes_.reached[peer]) continue;
    try {
      connect({peer});
      send(peer, GroupMessage::kAbort, flags_->abort(rank_), bytes_of(flags_->slot(rank_).report));
    } catch (const std::exception&) {
      nodes_.listens[peer] = false;  // it cannot be told
    }
  }
}

bool GroupState::move_messages() {
  try {
    return receive_and_send();
  } catch (const std::exception& error) {  // what arrived may be lost
    static_cast<void>(fail(error.what()));
    return true;
  }
}

// Messages are read in the order in which they came, so the message that says that a rank left is
// read after its others.
bool GroupState::receive_and_send() {
  std::vector<std::shared_ptr<void>> ended;  // they end after the lock is released
  std::vector<MessageChannel::Loss> losses;
  const auto held = lock();
  if (!nodes_.progress.open) return false;
  bool moved = messages_->receive([this](int from, auto message) { read(from, message); }, losses);
  for (const auto& [peer, why] : losses) lost(peer, why);
  for (const int peer : std::exchange(nodes_.to_acknowledge, {}))
    send(peer, GroupMessage::kAcknowledgement, 0);
  survival_.messages().answer_late_ranks(*this);
  for (const auto& [number, channel] : nodes_.channels) {
    if (!survival_.messages().begun()) break;
    moved = channel->go_on() || moved;
    if (channel->kept_open && channel->done) ended.push_back(std::move(channel->kept_open));
  }
  moved = raise_sent() || moved;
  messages_->send_bundled();
  return moved;
}

void GroupState::read(int from, std::span<const std::byte> message, bool kept) {
  ByteReader reader(message);
  const auto head = reader.get<MessageHead>();
  if (!reader.ok()) return;
  if (!kept && !survival_.messages().is_for_now(*this, from, head, message)) return;
  // The ranks of this node that go on without this one read messages of the next view.
  const bool outside = verdict_.closed.load(std::memory_order_acquire) &&  // partner: leave()
                       NextView::has_come(*this, view().number + 1);
  if (outside && (head.channel != 0 || head.kind == GroupMessage::kBarrier)) return;
  if (survival_.messages().holds(head.channel, from, message)) return;
  if (head.channel != 0) {
    const auto channel = nodes_.channels.find(head.channel);
    if (channel != nodes_.channels.end()) channel->second->read({from, head, reader.rest()});
    return;
  }
  switch (head.kind) {
    case GroupMessage::kBarrier: read_barrier(from, head.number, reader.rest()); break;
    case GroupMessage::kAbort: read_abort(from, head.number, reader.rest()); break;
    case GroupMessage::kAcknowledgement: nodes_.acknowledged[from] = true; break;
    case GroupMessage::kListens: nodes_.listens[from] = true; break;
    case GroupMessage::kMeeting: flags_->set_meeting(from, as_text(reader.rest())); break;
    default: break;
  }
}

// A rank that left goes on reading messages for its node until the others have left it behind. A
// message that it reads late must not replace what the others read in the next view.
void GroupState::read_barrier(int from, std::uint64_t number, std::span<const std::byte> piece) {
  if (piece.size() > GroupSlot::kBytes || number <= flags_->num_barriers(from)) return;
  if (!piece.empty()) std::memcpy(flags_->slot(from).piece(number), piece.data(), piece.size());
  raise_to(flags_->slot(from).barrier, number);
  ring();
}

void GroupState::read_abort(int from, std::uint64_t word, std::span<const std::byte> report) {
  if (report.size() != GroupSlot::kReportBytes || !AbortWord::is_one(word, size_)) return;
  if (nodes_.reached[from]) nodes_.to_acknowledge.push_back(from);
  if (AbortWord::code(word) == Code::kClosed)
    nodes_.farewell[from].store(true, std::memory_order_release);  // partner: gone()
  if (flags_->abort(from) != AbortWord::kNone) return;
  std::memcpy(flags_->slot(from).report, report.data(), report.size() - 1);  // the last stays 0
  flags_->set_abort(from, word);
  ring();
}

bool GroupState::ended(int peer, bool sends_here) const noexcept {
  if (flags_->gave_up(peer) || !survival_.has(peer)) return true;
  if (here(peer)) return departed(peer) || !rendezvous_->alive(peer);
  if (nodes_.lost[peer].load(std::memory_order_acquire)) return true;  // partner: lost()
  // Acquire: partner: read_abort().
  return sends_here ? nodes_.farewell[peer].load(std::memory_order_acquire) : departed(peer);
}

Status GroupState::await_sent(Await await, const std::vector<bool>& mates) {
  await.phase = "room";
  await.flags = &nodes_.sent;
  await.stride_bytes = 0;
  await.only = &mates;
  await.per_call = 0;
  std::vector<MessageChannel::Traffic> before;
  await.outgoing = &before;
  {
    const auto held = lock();
    if (all_sent()) return {};
    before = messages_->traffic();
    await.value = nodes_.want_sent = nodes_.sent.load(std::memory_order_relaxed) + 1;
  }
  return wait(await);
}

bool GroupState::all_sent() const {
  const auto holds = [](const auto& channel) { return channel.second->holds; };
  return messages_->all_sent() && std::ranges::none_of(nodes_.channels, holds);
}

// When a link is closed, messages that have arrived but are not read yet may be lost. So a rank
// that leaves stays until it has passed on all messages that it keeps or may still get, and every
// rank that had messages of it has acknowledged the last one or is lost. A rank that has departed
// may still pass messages on to ranks of its node, so it acknowledges too; when it reads no more,
// it acknowledges every message in advance. The time limit is for a peer that computes and reads no
// messages.
void GroupState::linger() noexcept {
  const Deadline by = Deadline::after(kLinger);
  const bool broken = verdict_.broken.load(std::memory_order_acquire);  // partner: break_group
  const auto done = [&] {
    const auto held = lock();
    send_abort_to_listeners();
    const auto is_open = [](const auto& channel) { return channel.second->kept_open != nullptr; };
    if (!all_sent() || (!broken && std::ranges::any_of(nodes_.channels, is_open))) return false;
    for (int peer = 0; peer < size_; ++peer) {
      const bool lost = nodes_.lost[peer].load(std::memory_order_acquire);  // partner: lost()
      const bool waited = nodes_.reached[peer] && survival_.has(peer);
      if (waited && !nodes_.acknowledged[peer] && !lost) return false;
    }
    return true;
  };
  while (!done() && !by.passed()) {
    if (!progress_all_here()) messages_->sleep(kLingerSleepUs);
  }
  const auto held = lock();
  for (int peer = 0; peer < size_; ++peer) {
    // Acquire: partner: read_abort(), which acknowledges.
    if (nodes_.reached[peer] && !nodes_.farewell[peer].load(std::memory_order_acquire))
      send(peer, GroupMessage::kAcknowledgement, 0);
  }
}

// Wakes the wait of await_sent() once everything is sent.
bool GroupState::raise_sent() {
  const bool wanted = nodes_.want_sent > nodes_.sent.load(std::memory_order_relaxed);
  if (!wanted || !all_sent()) return false;
  raise(nodes_.sent, nodes_.want_sent);
  ring();
  return true;
}

// Also called when the connection to a rank that has departed ends.
void GroupState::lost(int peer, const std::string& why) {
  log(departed(peer) ? LogLevel::kDebug : LogLevel::kWarn,
      fmt::format("rank {} of another node is lost: {}", peer, why));
  nodes_.why_lost[peer] = why;
  nodes_.lost[peer].store(true, std::memory_order_release);  // partner: check()
  ring();
}

}  // namespace ferry::internal

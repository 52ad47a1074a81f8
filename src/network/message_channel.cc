// Orders packets and drops duplicates by sequence numbers, joins the packets of a message, and
// manages send buffers.
#include "network/message_channel.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"
#include "network/message_parts.h"

namespace ferry::internal {
namespace {

// The limit for packets that arrived out of order and are kept. If a network delivers more than
// these before the next packet in order, it has lost that packet.
constexpr std::size_t kMaxEarlyPackets = 4096;
constexpr std::size_t kMaxEarlyBytes = std::size_t{16} << 20;

constexpr std::chrono::milliseconds kClosingTime{100};
constexpr int kClosingNapUs = 2000;

}  // namespace

MessageChannel::SendBuffer::SendBuffer(SendBuffer&& other) noexcept
    : messages_(other.messages_), message_(std::exchange(other.message_, nullptr)) {}

MessageChannel::SendBuffer& MessageChannel::SendBuffer::operator=(SendBuffer&& other) noexcept {
  std::swap(messages_, other.messages_);
  std::swap(message_, other.message_);
  return *this;
}

MessageChannel::SendBuffer::~SendBuffer() {
  if (message_ != nullptr) messages_->put_back(message_);
}

std::byte* MessageChannel::SendBuffer::data() const noexcept { return message_->buffer.get(); }

int MessageChannel::SendBuffer::peer() const noexcept { return message_->peer; }

MessageChannel::MessageChannel(std::unique_ptr<Transport> transport, int rank, int size,
                               std::uint64_t job)
    : transport_(std::move(transport)), self_{rank, job} {
  FERRY_CHECK(rank, >=, 0);
  FERRY_CHECK(rank, <, size);
  FERRY_CHECK(transport_.get(), !=, nullptr);
  static_assert(sizeof(Head) == 32 && sizeof(Head) <= Transport::kMaxHeadBytes);
  for (int peer = 0; peer < size; ++peer) {
    peers_.push_back(std::make_unique<Peer>());
    peers_.back()->job = job;
  }
  bundled_.reserve(peers_.size());
}

MessageChannel::~MessageChannel() {
  try {
    send_the_rest();
  } catch (...) {  // an invariant does not hold, or there is no memory; the rest is not sent
  }
  transport_.reset();  // ends first: it may still send from the memory of messages
}

// Sends the remaining messages. Packets that arrive meanwhile are read and dropped, because a
// socket that is closed with unread bytes discards the last bytes that it sent.
void MessageChannel::send_the_rest() {
  send_bundles();
  const Deadline deadline = Deadline::after(kClosingTime);
  while (!deadline.passed()) {
    events_.clear();
    const bool moved = transport_->progress([](const Transport::Packet&) {}, events_);
    for (void* const ticket : events_.sent) packet_sent(static_cast<Outgoing*>(ticket));
    if (moved) continue;
    if (under_way_ == 0) break;
    if (transport_->arm()) transport_->sleep(kClosingNapUs);
  }
}

std::string MessageChannel::address() const {
  const std::lock_guard held(mutex_);
  return transport_->address();
}

void MessageChannel::let_in(const std::vector<std::string>& addresses) {
  const std::lock_guard held(mutex_);
  transport_->let_in(addresses);
}

void MessageChannel::connect(const std::map<int, std::string>& addresses) {
  const std::lock_guard held(mutex_);
  transport_->connect(addresses);
  for (const auto& [peer, address] : addresses)
    peers_[static_cast<std::size_t>(peer)]->is_connected = true;
}

std::optional<MessageChannel::SendBuffer> MessageChannel::send_buffer(int peer) {
  const std::lock_guard held(mutex_);
  Peer& to = *peers_[static_cast<std::size_t>(peer)];
  if (to.buffers.empty()) {
    if (to.num_buffers == kUnsent) return std::nullopt;
    Outgoing* message = new_message(peer);
    message->buffer = make_pages(kSendBufferBytes);
    ++to.num_buffers;
    to.buffers.push_back(message);
  }
  FERRY_CHECK(to.num_buffers, <=, kUnsent);
  FERRY_CHECK(static_cast<int>(to.buffers.size()), <=, to.num_buffers);
  Outgoing* message = to.buffers.back();
  to.buffers.pop_back();
  FERRY_CHECK(message->peer, ==, peer);
  return SendBuffer(this, message);
}

int MessageChannel::room(int peer) const {
  const std::lock_guard held(mutex_);
  const Peer& to = *peers_[static_cast<std::size_t>(peer)];
  const int free = kUnsent - to.num_buffers + static_cast<int>(to.buffers.size());
  FERRY_CHECK(free, >=, 0);
  FERRY_CHECK(free, <=, kUnsent);
  return free;
}

void MessageChannel::send(SendBuffer buffer, std::size_t bytes) {
  const std::lock_guard held(mutex_);
  FERRY_CHECK(buffer.messages_, ==, this);
  FERRY_CHECK(buffer.message_, !=, nullptr);
  FERRY_CHECK(bytes, <=, kSendBufferBytes);
  send_bundle(buffer.peer());
  send_packets(std::exchange(buffer.message_, nullptr), bytes);
}

void MessageChannel::send_now(int peer, std::span<const std::byte> head,
                              std::span<const std::byte> body) {
  const std::lock_guard held(mutex_);
  add_to_bundle(peer, head, body);
  send_bundle(peer);
}

void MessageChannel::send_soon(int peer, std::span<const std::byte> head,
                               std::span<const std::byte> body) {
  const std::lock_guard held(mutex_);
  add_to_bundle(peer, head, body);
}

// Throws without memory, and then adds nothing.
void MessageChannel::add_to_bundle(int peer, std::span<const std::byte> head,
                                   std::span<const std::byte> body) {
  Outgoing*& bundle = peers_[static_cast<std::size_t>(peer)]->bundle;
  if (bundle == nullptr && spare_.empty()) spare_.push_back(new_message(peer));
  Outgoing* const to = bundle == nullptr ? spare_.back() : bundle;
  to->reserve(sizeof(std::uint64_t) + head.size() + body.size());
  if (bundle == nullptr) {
    spare_.pop_back();
    bundled_.push_back(to->peer = peer);
    bundle = to;
  }
  append(bundle->copy, std::uint64_t{head.size() + body.size()});
  append(bundle->copy, head);
  append(bundle->copy, body);
}

void MessageChannel::send_bundle(int peer) {
  Outgoing* const bundle = std::exchange(peers_[static_cast<std::size_t>(peer)]->bundle, nullptr);
  if (bundle == nullptr) return;
  std::erase(bundled_, peer);
  send_packets(bundle, bundle->copy.size());
}

void MessageChannel::send_bundles() {
  while (!bundled_.empty()) send_bundle(bundled_.back());
}

MessageChannel::Outgoing* MessageChannel::new_message(int peer) {
  messages_.push_back(std::make_unique<Outgoing>());
  spare_.reserve(messages_.size());
  messages_.back()->peer = peer;
  return messages_.back().get();
}

// For a peer that is not connected, no packet is cut or numbered, and the message counts as sent:
// an object of an earlier view may end after another process has taken the place of the peer.
void MessageChannel::send_packets(Outgoing* message, std::size_t bytes) {
  Peer& to = *peers_[static_cast<std::size_t>(message->peer)];
  FERRY_CHECK(message->packets_remaining, ==, 0U);
  FERRY_CHECK(message->heads.empty(), ==, true);
  ++under_way_;
  message->number = to.queue_one();
  message->packets_remaining = 1;  // not 0 before all packets are cut
  for (std::size_t cut = 0; to.is_connected && !to.is_lost;) {
    const std::span body(message->data() + cut,
                         std::min(bytes - cut, transport_->max_body_bytes()));
    FERRY_CHECK(body.empty(), ==, bytes == 0);  // otherwise the message would never end
    message->heads.push_back({.job = self_.job,
                              .remaining = bytes - cut,
                              .sequence = to.next_out++,
                              .from = static_cast<std::uint32_t>(self_.rank),
                              .body_bytes = static_cast<std::uint32_t>(body.size()),
                              .is_bundle = message->buffer ? 0u : 1u});
    ++message->packets_remaining;
    if (transport_->send(message->peer, bytes_of(message->heads.back()), body, message))
      packet_sent(message);
    cut += body.size();
    if (cut == bytes) break;
  }
  packet_sent(message);
  if (asleep_ > 0 && under_way_ > 0) transport_->wake();
}

void MessageChannel::packet_sent(Outgoing* message) {
  FERRY_CHECK(message->packets_remaining, >, 0U);
  if (--message->packets_remaining > 0) return;
  FERRY_CHECK(under_way_, >, 0U);
  --under_way_;
  peers_[static_cast<std::size_t>(message->peer)]->mark_sent(message->number);
  give_back(message);
}

void MessageChannel::put_back(Outgoing* message) {
  const std::lock_guard held(mutex_);
  give_back(message);
}

void MessageChannel::give_back(Outgoing* message) {
  message->heads.clear();
  if (message->buffer) {
    peers_[static_cast<std::size_t>(message->peer)]->buffers.push_back(message);
    return;
  }
  message->empty();
  spare_.push_back(message);
}

void MessageChannel::send_bundled() {
  const std::lock_guard held(mutex_);
  send_bundles();
}

bool MessageChannel::receive(const MessageReader& read, std::vector<Loss>& lost) {
  const std::lock_guard held(mutex_);
  send_bundles();
  events_.clear();
  lost_.clear();
  const bool moved =
      transport_->progress([&](const Transport::Packet& packet) { arrive(packet, read); }, events_);
  for (const auto& [peer, why] : events_.lost) lose(peer, why);
  for (void* const ticket : events_.sent) packet_sent(static_cast<Outgoing*>(ticket));
  lost = lost_;
  return moved;
}

void MessageChannel::disregard(int peer) {
  const std::lock_guard held(mutex_);
  peers_[static_cast<std::size_t>(peer)]->is_disregarded = disregards_ = true;
}

void MessageChannel::replace(int peer, std::uint64_t job) {
  const std::lock_guard held(mutex_);
  FERRY_CHECK(peer, !=, self_.rank);
  send_bundle(peer);  // to the process before
  transport_->disconnect(peer);
  peers_[static_cast<std::size_t>(peer)]->begin_anew(job);
}

bool MessageChannel::all_sent() const {
  const std::lock_guard held(mutex_);
  const auto is_through = [](const auto& to) { return to->is_disregarded || to->all_sent(); };
  const bool sent = under_way_ == 0 || (disregards_ && std::ranges::all_of(peers_, is_through));
  return sent && bundled_.empty();
}

std::vector<MessageChannel::Traffic> MessageChannel::traffic() const {
  const std::lock_guard held(mutex_);
  std::vector<Traffic> traffic;
  for (const auto& peer : peers_) {
    FERRY_CHECK(peer->traffic.sent, <=, peer->traffic.queued);
    traffic.push_back(peer->traffic);
  }
  return traffic;
}

void MessageChannel::sleep(int wait_us) {
  {
    const std::lock_guard held(mutex_);
    if (!transport_->arm()) return;
    ++asleep_;
  }
  transport_->sleep(wait_us);
  const std::lock_guard held(mutex_);
  FERRY_CHECK(asleep_, >, 0);
  --asleep_;
}

MessageChannel::Counters MessageChannel::counters() const {
  const std::lock_guard held(mutex_);
  return counters_;
}

void MessageChannel::lose(int peer, const std::string& why) {
  FERRY_CHECK(peer, !=, self_.rank);
  Peer& from = *peers_[static_cast<std::size_t>(peer)];
  if (from.is_lost) return;
  from.is_lost = true;
  from.forget();
  lost_.push_back({peer, why});
}

bool MessageChannel::is_ours(const Head& head, std::size_t body_bytes) const {
  const bool cut_well = head.body_bytes == body_bytes && body_bytes <= head.remaining &&
                        (body_bytes > 0 || head.remaining == 0);
  return head.from < peers_.size() && head.job == peers_[head.from]->job &&
         head.from != static_cast<std::uint32_t>(self_.rank) && cut_well;
}

void MessageChannel::arrive(const Transport::Packet& packet, const MessageReader& read) {
  ByteReader reader(packet.head);
  const auto head = reader.get<Head>();
  if (!reader.done() || !is_ours(head, packet.body.size())) {
    ++counters_.strangers;
    return;
  }
  const int from = static_cast<int>(head.from);
  Peer& peer = *peers_[head.from];
  if (peer.is_lost) {
    ++counters_.unread;
    return;
  }
  const auto ahead = static_cast<std::int32_t>(head.sequence - peer.next_in);
  if (ahead < 0) ++counters_.duplicates;
  if (ahead > 0) hold(from, head, packet.body);
  if (ahead != 0) return;
  take(from, head, packet.body, read);
  while (!peer.early.empty()) {
    const auto next = peer.early.find(peer.next_in);
    if (next == peer.early.end()) break;
    const Early early = std::move(next->second);
    peer.early.erase(next);
    FERRY_CHECK(peer.early_bytes, >=, early.body.size());
    peer.early_bytes -= early.body.size();
    take(from, early.head, early.body, read);
  }
}

void MessageChannel::hold(int from, const Head& head, std::span<const std::byte> body) {
  Peer& peer = *peers_[static_cast<std::size_t>(from)];
  const Early early{head, {body.begin(), body.end()}};
  if (!peer.early.try_emplace(head.sequence, early).second) {
    ++counters_.duplicates;
    return;
  }
  ++counters_.reordered;
  peer.early_bytes += body.size();
  if (peer.early.size() <= kMaxEarlyPackets && peer.early_bytes <= kMaxEarlyBytes) return;
  lose(from, fmt::format("packet {} of rank {} has not come, and {} packets ({} bytes) after it "
                         "have come: at most {} packets and {} bytes are kept",
                         peer.next_in, from, peer.early.size(), peer.early_bytes, kMaxEarlyPackets,
                         kMaxEarlyBytes));
}

void MessageChannel::take(int from, const Head& head, std::span<const std::byte> body,
                          const MessageReader& read) {
  Peer& peer = *peers_[static_cast<std::size_t>(from)];
  FERRY_CHECK(head.sequence, ==, peer.next_in);
  FERRY_CHECK(body.size(), <=, head.remaining);  // is_ours() drops all others
  ++peer.next_in;
  const bool is_first = peer.to_join == 0;
  FERRY_CHECK(peer.joined.empty(), ==, is_first);
  if (!is_first && head.remaining != peer.to_join) {
    lose(from, fmt::format("{2} bytes of a message of rank {0} are missing, and its next packet "
                           "counts {1}",
                           from, head.remaining, peer.to_join));
    return;
  }
  peer.to_join = head.remaining - body.size();
  if (is_first && peer.to_join == 0) return hand_over(from, head.is_bundle != 0, body, read);
  peer.joined.insert(peer.joined.end(), body.begin(), body.end());
  if (peer.to_join > 0) return;
  const std::vector<std::byte> whole = std::exchange(peer.joined, {});
  hand_over(from, head.is_bundle != 0, whole, read);
}

void MessageChannel::hand_over(int from, bool is_bundle, std::span<const std::byte> message,
                               const MessageReader& read) {
  if (!is_bundle) return read(from, message);
  ByteReader bundle(message);
  while (bundle.remaining() > 0) {
    const auto bytes = bundle.get<std::uint64_t>();
    const std::span<const std::byte> one = bundle.take(bytes);
    if (!bundle.ok()) {
      ++counters_.strangers;
      return;
    }
    read(from, one);
  }
  FERRY_CHECK(bundle.done(), ==, true);
}

}  // namespace ferry::internal

// Order and exactly-once by sequence numbers; joining of messages that were cut; send buffers.
#include "network/message_channel.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/clock.h"
#include "network/message_parts.h"

namespace ferry::internal {
namespace {

// What came before its turn is kept up to here; a network that goes further has lost a packet.
constexpr std::size_t kMaxEarlyPackets = 4096;
constexpr std::size_t kMaxEarlyBytes = std::size_t{16} << 20;
// Buffers of larger messages are not kept.
constexpr std::size_t kKeptBytes = std::size_t{64} << 10;

constexpr std::chrono::milliseconds kClosingTime{100};

// The own thread: how often it looks again at once, and how long it sleeps. Sleeps are short since
// a reader also waits for what no packet announces.
constexpr int kLooks = 50;
constexpr int kShortestNapUs = 50;
constexpr int kLongestNapUs = 2000;

}  // namespace

MessageChannel::SendBuffer::SendBuffer(SendBuffer&& other) noexcept
    : messages_(other.messages_), message_(std::exchange(other.message_, nullptr)) {}

MessageChannel::SendBuffer& MessageChannel::SendBuffer::operator=(SendBuffer&& other) noexcept {
  std::swap(messages_, other.messages_);
  std::swap(message_, other.message_);
  return *this;
}

MessageChannel::SendBuffer::~SendBuffer() {
  if (message_ == nullptr) return;
  const auto held = messages_->lock();
  messages_->give_back(message_);
}

std::byte* MessageChannel::SendBuffer::data() const noexcept { return message_->buffer.get(); }

int MessageChannel::SendBuffer::peer() const noexcept { return message_->peer; }

MessageChannel::MessageChannel(std::unique_ptr<Link> link, int rank, int size, std::uint64_t job,
                               bool own_thread)
    : link_(std::move(link)), self_{rank, job}, own_thread_(own_thread) {
  static_assert(sizeof(Head) == 32 && sizeof(Head) <= Link::kMaxHeadBytes);
  for (int peer = 0; peer < size; ++peer) peers_.push_back(std::make_unique<Peer>());
}

MessageChannel::~MessageChannel() {
  if (thread_.joinable()) {
    thread_.request_stop();
    {
      const auto held = lock();
      link_->wake();
    }
    thread_.join();
  }
  // What comes now is dropped, but it is taken: a socket that is closed over unread bytes takes
  // back what it sent last.
  reader_ = nullptr;
  send_bundles();
  const Deadline deadline = Deadline::after(kClosingTime);
  while (!deadline.passed()) {
    if (link_->progress(*this)) continue;
    if (all_sent()) break;
    if (link_->arm()) link_->sleep(kLongestNapUs);
  }
  link_.reset();  // before the memory of what it still sends
}

std::string MessageChannel::address() const {
  const auto held = lock();
  return link_->address();
}

void MessageChannel::let_in(const std::vector<std::string>& addresses) {
  const auto held = lock();
  link_->let_in(addresses);
}

void MessageChannel::connect(const std::map<int, std::string>& addresses) {
  const auto held = lock();
  link_->connect(addresses);
}

std::map<int, std::string> MessageChannel::unanswered() const {
  const auto held = lock();
  return link_->unanswered();
}

void MessageChannel::read_by(Reader* reader) {
  const auto held = lock();
  reader_ = reader;
  if (own_thread_ && !thread_.joinable()) {
    thread_ = std::jthread([this](const std::stop_token& ending) { live(ending); });
  }
}

std::unique_lock<std::recursive_mutex> MessageChannel::lock() const {
  // Relaxed: a hint for live(); the mutex orders everything else.
  waiting_.fetch_add(1, std::memory_order_relaxed);
  std::unique_lock held(mutex_);
  waiting_.fetch_sub(1, std::memory_order_relaxed);
  return held;
}

std::optional<MessageChannel::SendBuffer> MessageChannel::send_buffer(int peer) {
  const auto held = lock();
  Peer& to = *peers_[static_cast<std::size_t>(peer)];
  if (to.buffers.empty()) {
    if (to.num_buffers == kUnsent) return std::nullopt;
    Outgoing* message = new_message(peer);
    message->buffer = make_pages(kSendBufferBytes);
    ++to.num_buffers;
    to.buffers.push_back(message);
  }
  Outgoing* message = to.buffers.back();
  to.buffers.pop_back();
  return SendBuffer(this, message);
}

int MessageChannel::room(int peer) const {
  const auto held = lock();
  const Peer& to = *peers_[static_cast<std::size_t>(peer)];
  return kUnsent - to.num_buffers + static_cast<int>(to.buffers.size());
}

void MessageChannel::send(SendBuffer buffer, std::size_t bytes) {
  const auto held = lock();
  send_bundle(buffer.peer());
  send_packets(std::exchange(buffer.message_, nullptr), bytes);
}

void MessageChannel::send_now(int peer, std::span<const std::byte> head,
                              std::span<const std::byte> body) {
  const auto held = lock();
  add_to_bundle(peer, head, body);
  send_bundle(peer);
}

void MessageChannel::send_soon(int peer, std::span<const std::byte> head,
                               std::span<const std::byte> body) {
  const auto held = lock();
  add_to_bundle(peer, head, body);
}

void MessageChannel::add_to_bundle(int peer, std::span<const std::byte> head,
                                   std::span<const std::byte> body) {
  Outgoing*& bundle = peers_[static_cast<std::size_t>(peer)]->bundle;
  if (bundle == nullptr) {
    if (spare_.empty()) spare_.push_back(new_message(peer));
    bundle = spare_.back();
    spare_.pop_back();
    bundle->peer = peer;
    bundle->copy.clear();
    bundled_.push_back(peer);
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
  messages_.back()->peer = peer;
  return messages_.back().get();
}

void MessageChannel::send_packets(Outgoing* message, std::size_t bytes) {
  Peer& to = *peers_[static_cast<std::size_t>(message->peer)];
  ++under_way_;
  ++to.traffic.sent;
  message->packets_left = 1;  // until all are cut
  for (std::size_t cut = 0; !to.is_lost;) {
    const std::span body(message->data() + cut, std::min(bytes - cut, link_->max_body_bytes()));
    message->heads.push_back({.job = self_.job,
                              .left = bytes - cut,
                              .sequence = to.next_out++,
                              .from = static_cast<std::uint32_t>(self_.rank),
                              .body_bytes = static_cast<std::uint32_t>(body.size()),
                              .is_bundle = message->buffer ? 0u : 1u});
    ++message->packets_left;
    if (link_->send(message->peer, bytes_of(message->heads.back()), body, message))
      packet_left(message);
    cut += body.size();
    if (cut == bytes) break;
  }
  packet_left(message);
  if (asleep_ > 0 && under_way_ > 0) link_->wake();
}

void MessageChannel::packet_left(Outgoing* message) {
  if (--message->packets_left > 0) return;
  --under_way_;
  ++peers_[static_cast<std::size_t>(message->peer)]->traffic.left;
  give_back(message);
}

void MessageChannel::give_back(Outgoing* message) {
  message->heads.clear();
  if (message->buffer) {
    peers_[static_cast<std::size_t>(message->peer)]->buffers.push_back(message);
    return;
  }
  if (message->copy.capacity() > kKeptBytes) message->copy = {};
  spare_.push_back(message);
}

bool MessageChannel::progress() {
  const auto held = lock();
  if (reader_ == nullptr || progressing_) return false;
  progressing_ = true;
  send_bundles();
  const bool moved = link_->progress(*this);
  const bool went_on = reader_->go_on();
  send_bundles();
  progressing_ = false;
  return moved || went_on;
}

bool MessageChannel::all_sent() const {
  const auto held = lock();
  return under_way_ == 0 && bundled_.empty();
}

std::vector<MessageChannel::Traffic> MessageChannel::traffic() const {
  const auto held = lock();
  std::vector<Traffic> traffic;
  for (const auto& peer : peers_) traffic.push_back(peer->traffic);
  return traffic;
}

void MessageChannel::sleep(int wait_us) {
  {
    const auto held = lock();
    if (!link_->arm()) return;
    ++asleep_;
  }
  link_->sleep(wait_us);
  const auto held = lock();
  --asleep_;
}

MessageChannel::Counters MessageChannel::counters() const {
  const auto held = lock();
  return counters_;
}

std::string MessageChannel::describe() const {
  const auto held = lock();
  return link_->describe();
}

std::string MessageChannel::exposed() const {
  const auto held = lock();
  return link_->exposed();
}

void MessageChannel::sent(void* ticket) { packet_left(static_cast<Outgoing*>(ticket)); }

void MessageChannel::lost(int peer, const std::string& why) {
  Peer& from = *peers_[static_cast<std::size_t>(peer)];
  if (from.is_lost) return;
  from.is_lost = true;
  from.forget();
  if (reader_ != nullptr) reader_->lost(peer, why);
}

bool MessageChannel::is_ours(const Head& head, std::size_t body_bytes) const {
  const bool cut_well = head.body_bytes == body_bytes && body_bytes <= head.left &&
                        (body_bytes > 0 || head.left == 0);
  return head.job == self_.job && head.from < peers_.size() &&
         head.from != static_cast<std::uint32_t>(self_.rank) && cut_well;
}

void MessageChannel::arrived(std::span<const std::byte> head_bytes,
                             std::span<const std::byte> body) {
  ByteReader reader(head_bytes);
  const auto head = reader.get<Head>();
  if (!reader.done() || !is_ours(head, body.size())) {
    ++counters_.strangers;
    return;
  }
  const int from = static_cast<int>(head.from);
  Peer& peer = *peers_[head.from];
  if (peer.is_lost || reader_ == nullptr) {
    ++counters_.unread;
    return;
  }
  const auto ahead = static_cast<std::int32_t>(head.sequence - peer.next_in);
  if (ahead < 0) ++counters_.duplicates;
  if (ahead > 0) hold(from, head, body);
  if (ahead != 0) return;
  take(from, head, body);
  while (!peer.early.empty()) {
    const auto next = peer.early.find(peer.next_in);
    if (next == peer.early.end()) break;
    const Early early = std::move(next->second);
    peer.early.erase(next);
    peer.early_bytes -= early.body.size();
    take(from, early.head, early.body);
  }
}

void MessageChannel::hold(int from, const Head& head, std::span<const std::byte> body) {
  Peer& peer = *peers_[head.from];
  const auto [place, is_new] = peer.early.try_emplace(head.sequence);
  if (!is_new) {
    ++counters_.duplicates;
    return;
  }
  ++counters_.reordered;
  place->second = {head, {body.begin(), body.end()}};
  peer.early_bytes += body.size();
  if (peer.early.size() <= kMaxEarlyPackets && peer.early_bytes <= kMaxEarlyBytes) return;
  lost(from, fmt::format("packet {} of rank {} has not come, and {} packets ({} bytes) after it "
                         "have: at most {} packets and {} bytes are kept",
                         peer.next_in, from, peer.early.size(), peer.early_bytes, kMaxEarlyPackets,
                         kMaxEarlyBytes));
}

void MessageChannel::take(int from, const Head& head, std::span<const std::byte> body) {
  Peer& peer = *peers_[static_cast<std::size_t>(from)];
  ++peer.next_in;
  const bool is_first = peer.to_join == 0;
  if (!is_first && head.left != peer.to_join) {
    lost(from, fmt::format("a packet of rank {} says that {} bytes of its message are missing, and "
                           "the one before it says {}",
                           from, head.left, peer.to_join));
    return;
  }
  peer.to_join = head.left - body.size();
  if (is_first && peer.to_join == 0) {
    read(from, head.is_bundle != 0, body);
    return;
  }
  peer.joined.insert(peer.joined.end(), body.begin(), body.end());
  if (peer.to_join > 0) return;
  read(from, head.is_bundle != 0, peer.joined);
  peer.joined.clear();
  if (peer.joined.capacity() > kSendBufferBytes) peer.joined = {};
}

void MessageChannel::read(int from, bool is_bundle, std::span<const std::byte> message) {
  if (!is_bundle) return reader_->read(from, message);
  ByteReader bundle(message);
  while (bundle.left() > 0) {
    const auto bytes = bundle.get<std::uint64_t>();
    const std::span<const std::byte> one = bundle.take(bytes);
    if (!bundle.ok()) {
      ++counters_.strangers;
      return;
    }
    reader_->read(from, one);
  }
}

void MessageChannel::live(const std::stop_token& ending) {
  int looks = 0;
  int nap_us = kShortestNapUs;
  while (!ending.stop_requested()) {
    while (waiting_.load(std::memory_order_relaxed) > 0) std::this_thread::yield();
    if (progress()) {
      looks = 0;
      nap_us = kShortestNapUs;
    } else if (++looks < kLooks) {
      std::this_thread::yield();
    } else {
      sleep(nap_us);
      nap_us = std::min(2 * nap_us, kLongestNapUs);
    }
  }
}

}  // namespace ferry::internal

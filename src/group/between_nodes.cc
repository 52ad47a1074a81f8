// What a group does with several nodes: it connects to its mates, the ranks of the same position in
// other nodes, sends them the flags that the ranks of their nodes wait for, and writes down the
// flags that come. The flags of a rank of another node lie here as if that rank had written them,
// so nothing else needs to know where a rank is.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/bytes.h"
#include "bootstrap/agree.h"
#include "bootstrap/handshake.h"
#include "group/leaving.h"
#include "group/state.h"
#include "group/wait.h"

namespace ferry::internal {

namespace {

constexpr std::chrono::seconds kLinger{2};
constexpr int kLingerSleepUs = 200;

}  // namespace

void GroupState::join_nodes(const LinkFactory& make_link, const Deadline& by) {
  nodes_.own_thread = progress_thread_in_environment();
  const std::string job = rank_ == 0 ? hex(fresh_nonce()).substr(0, 16) : "";
  const std::vector<std::string> jobs = rendezvous_->all_gather(job, by);
  std::string problem;
  try {
    messages_ = std::make_unique<MessageChannel>(
        make_link(), rank_, size_, std::stoull(jobs[0], nullptr, 16), nodes_.own_thread);
  } catch (const Error& error) {
    problem = error.what();
  }
  check_no_problem(rendezvous_->all_gather(problem, by));
  nodes_.addresses = rendezvous_->all_gather(messages_->address(), by);
  std::vector<std::string> others;
  for (int peer = 0; peer < size_; ++peer)
    if (!here(peer)) others.push_back(nodes_.addresses[peer]);
  messages_->let_in(others);
  rendezvous_->all_gather("", by);  // all let each other in
  nodes_.reached.resize(size_);
  nodes_.heard.resize(size_);
  nodes_.listens.resize(size_);
  nodes_.forwarding =
      ForwardingTable(topology_, rank_, std::vector<bool>(size_, true), /*flat=*/true);
  std::optional<Error> failure;
  try {
    reach(nodes_.forwarding, /*together=*/true);
  } catch (const Error& error) {
    failure = error;
  }
  messages_->read_by(this);  // from here on a message that is read may be answered
  try {
    await_links(failure, by);
  } catch (...) {
    messages_.reset();  // its reader is this object, which is not made
    throw;
  }
  share_progress(messages_.get());
}

// Connects both ways: to whom this rank sends, and to who sends to it. Where ranks do not do so
// `together`, one that sends here may leave before it has connected, so it is told who listens.
void GroupState::reach(const ForwardingTable& forwarding, bool together) {
  const auto lock = messages_->lock();
  std::vector<int> peers, senders;
  for (int peer = 0; peer < size_; ++peer) {
    const bool sends_here = forwarding.is_served[peer] && forwarding.last_hop[peer] == rank_;
    if (nodes_.reached[peer] || !(forwarding.is_mate[peer] || sends_here)) continue;
    peers.push_back(peer);
    if (sends_here && !together) senders.push_back(peer);
  }
  connect(peers);
  for (const int peer : senders) tell(peer, kListens, 0);
}

void GroupState::connect(const std::vector<int>& peers) {
  std::map<int, std::string> addresses;
  for (const int peer : peers) {
    addresses[peer] = nodes_.addresses[peer];
    nodes_.reached[peer] = true;
  }
  if (!addresses.empty()) messages_->connect(addresses);
}

std::uint32_t GroupState::open_channel(Channel* channel) {
  const auto lock = messages_->lock();
  nodes_.channels[++nodes_.num_channels] = channel;
  return nodes_.num_channels;
}

void GroupState::close_channel(std::uint32_t number) noexcept {
  const auto lock = messages_->lock();
  nodes_.channels.erase(number);
}

void GroupState::leave_open(std::shared_ptr<Channel> channel) {
  const auto lock = messages_->lock();
  nodes_.left_open.push_back(std::move(channel));
}

void GroupState::tell(int peer, std::uint8_t kind, std::uint64_t number,
                      std::span<const std::byte> body) noexcept {
  const MessageHead head{.channel = 0, .kind = kind, .number = number};
  messages_->send_now(peer, bytes_of(head), body);
}

// To all ranks that had a message of this one, the mates of smaller sets too (linger).
void GroupState::tell_abort(std::uint64_t word) noexcept {
  if (!messages_) return;
  const auto lock = messages_->lock();
  for (int peer = 0; peer < size_; ++peer) {
    if (nodes_.reached[peer]) tell(peer, kAbort, word, bytes_of(flags_->slot(rank_).report));
  }
  messages_->progress();
}

// The same, to those that listen and never had a message of this rank.
void GroupState::tell_listeners() {
  for (int peer = 0; peer < size_; ++peer) {
    if (!nodes_.listens[peer] || nodes_.reached[peer]) continue;
    connect({peer});
    tell(peer, kAbort, flags_->abort(rank_), bytes_of(flags_->slot(rank_).report));
  }
}

void GroupState::read(int from, std::span<const std::byte> message) {
  ByteReader reader(message);
  const auto head = reader.get<MessageHead>();
  const std::span<const std::byte> body = reader.rest();
  if (!reader.ok()) return;
  if (head.channel != 0) {
    const auto channel = nodes_.channels.find(head.channel);
    if (channel != nodes_.channels.end()) channel->second->read(from, head, body);
    return;
  }
  if (head.kind == kAbort) return read_abort(from, head.number, body);
  if (head.kind == kHeard || head.kind == kListens) {
    (head.kind == kHeard ? nodes_.heard : nodes_.listens)[from] = true;
    return;
  }
  if (body.size() > GroupSlot::kBytes) return;
  if (!body.empty()) std::memcpy(flags_->slot(from).piece(head.number), body.data(), body.size());
  raise(flags_->slot(from).barrier, head.number);
  ring();
}

void GroupState::read_abort(int from, std::uint64_t word,
                            std::span<const std::byte> report) noexcept {
  if (report.size() != GroupSlot::kReportBytes) return;
  if (nodes_.reached[from]) tell(from, kHeard, 0);
  if (AbortWord::code(word) == Code::kClosed)
    nodes_.farewell[from].store(true, std::memory_order_release);  // partner: gone()
  if (flags_->abort(from) != AbortWord::kNone) return;
  std::memcpy(flags_->slot(from).report, report.data(), report.size());
  flags_->set_abort(from, word);
  ring();
}

bool GroupState::ended(int peer, bool sends_here) const noexcept {
  if (flags_->gave_up(peer)) return true;
  if (here(peer)) return left(peer) || !rendezvous_->alive(peer);
  if (nodes_.lost[peer].load(std::memory_order_acquire)) return true;  // partner: lost()
  // Acquire: partner: read_abort().
  return sends_here ? nodes_.farewell[peer].load(std::memory_order_acquire) : left(peer);
}

Status GroupState::await_left(Await await, const std::vector<bool>& mates) noexcept {
  await.phase = "room";
  await.flags = &nodes_.left;
  await.stride_bytes = 0;
  await.only = &mates;
  await.per_call = 0;
  std::vector<MessageChannel::Traffic> before;
  await.outgoing = &before;
  {
    const auto lock = messages_->lock();
    if (all_left()) return {};
    before = messages_->traffic();
    await.value = nodes_.want_left = nodes_.left.load(std::memory_order_relaxed) + 1;
  }
  return wait(await);
}

bool GroupState::all_left() const {
  const auto holds = [](const auto& channel) { return channel.second->holds(); };
  return messages_->all_sent() &&
         std::none_of(nodes_.channels.begin(), nodes_.channels.end(), holds);
}

// A link that is closed while messages are under way may drop those that have arrived and are not
// read yet. So a rank that leaves stays until it has passed on what it keeps and what may still
// come, and every rank that had messages of it has answered the last one, has left, or is lost. The
// limit is for a peer in another process that computes and reads no messages for so long.
void GroupState::linger() noexcept {
  const Deadline by = Deadline::after(kLinger);
  const bool broken = verdict_.broken.load(std::memory_order_acquire);  // partner: break_group
  const auto done = [&] {
    const auto lock = messages_->lock();
    tell_listeners();
    if (!all_left() || (!broken && !std::ranges::all_of(nodes_.left_open, &Channel::done)))
      return false;
    for (int peer = 0; peer < size_; ++peer) {
      const bool lost = nodes_.lost[peer].load(std::memory_order_acquire);  // partner: lost()
      if (nodes_.reached[peer] && !nodes_.heard[peer] && !left(peer) && !lost) return false;
    }
    return true;
  };
  while (!done() && !by.passed()) {
    if (!progress_all_here()) messages_->sleep(kLingerSleepUs);
  }
}

bool GroupState::go_on() {
  bool moved = false;
  for (const auto& [number, channel] : nodes_.channels) moved = channel->go_on() || moved;
  std::erase_if(nodes_.left_open, [](const auto& channel) { return channel->done(); });
  if (nodes_.want_left > nodes_.left.load(std::memory_order_relaxed) && all_left()) {
    raise(nodes_.left, nodes_.want_left);
    ring();
    moved = true;
  }
  return moved;
}

// The link to a rank that left ends too.
void GroupState::lost(int peer, const std::string& why) {
  log(left(peer) ? LogLevel::kDebug : LogLevel::kWarn,
      fmt::format("rank {} of another node is lost: {}", peer, why));
  nodes_.why_lost[peer] = why;
  nodes_.lost[peer].store(true, std::memory_order_release);  // partner: check()
  ring();
}

}  // namespace ferry::internal

#include "collectives/messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "kernels/kernels.h"

namespace ferry::internal {

Messages::Messages(GroupState& group, Mailboxes mailboxes)
    : group_(group),
      mailboxes_(std::move(mailboxes)),
      crowded_(group.crowded(1)),
      view_(group.view().number),
      only_(group.size()),
      nobody_(group.size()),
      full_(group.size()),
      receiving_(group.size()) {}

void Messages::begin(std::shared_ptr<MessageState> message) {
  {
    const std::lock_guard held(mutex_);
    message->number = ++number_;
    begun_.push_back(std::move(message));
  }
  // Partner: await_event(), maybe in another thread. Sequentially consistent, as raise().
  mailboxes_.events().fetch_add(1, std::memory_order_seq_cst);
  group_.ring(group_.rank());
}

// Appends the messages that were begun to `pending_`. Returns the first of them.
Messages::Begun Messages::take_begun() {
  const std::lock_guard held(mutex_);
  const auto num_begun = static_cast<std::ptrdiff_t>(begun_.size());
  pending_.splice(pending_.end(), begun_);
  return std::prev(pending_.end(), num_begun);
}

// Connects to the peers of this message and of those after it.
void Messages::meet(Begun message) {
  for (; message != pending_.end(); ++message) {
    for (int peer = 0; peer < group_.size(); ++peer)
      if ((*message)->spec.peer == peer || (*message)->spec.peer == MessageSpec::kAny)
        mailboxes_.meet(peer);
  }
}

// `awaited`: the message that the caller waits for; null: it waits for none of its own. After an
// exception a message may have been moved in part, so the group breaks and all messages end.
Status Messages::move(bool waits, const MessageState* awaited, CountedWait& counted) noexcept {
  Status status;
  try {
    status = try_move(waits, awaited, counted);
  } catch (const std::exception& error) {
    status = group_.fail(error.what());
  }
  return status.ok() ? status : end_all(status);
}

Status Messages::try_move(bool waits, const MessageState* awaited, CountedWait& counted) {
  for (;;) {
    // Acquire: what is counted is seen below. Partner: Mailboxes::count_event().
    const std::uint64_t events = mailboxes_.events().load(std::memory_order_acquire);
    if (Status verdict = verdict_in(group_, view_, "collectives"); !verdict.ok()) return verdict;
    meet(take_begun());
    if (!waits) group_.progress();
    bool ended = advance();
    while (waits && std::ranges::any_of(pending_, [](const auto& each) { return each->written; })) {
      if (Status sent = await_departure(); !sent.ok()) return sent;
      ended = advance() || ended;
    }
    if (!waits || ended || pending_.empty()) return {};
    if (Status status = await_event(events, awaited, counted); !status.ok()) return status;
  }
}

Status Messages::finish(const std::shared_ptr<MessageState>& message) {
  begin(message);
  CountedWait counted(group_.survival().num_calls());
  while (!message->has_ended()) {
    Status status = move(/*waits=*/true, message.get(), counted);
    if (!status.ok()) return status;
  }
  return message->status;
}

// True when a message has ended.
bool Messages::advance() {
  const std::size_t before = pending_.size();
  full_.assign(full_.size(), false);
  Wanted unmatched;
  pending_.remove_if([&](const std::shared_ptr<MessageState>& message) {
    return message->spec.receives ? receive_some(*message, unmatched) : send_some(*message);
  });
  // Ranks that this one sends to may wait for room themselves.
  if (std::ranges::find(full_, true) != full_.end()) keep_all();
  return pending_.size() < before;
}

// A send ends when its data are in the mailbox or, for a receiver on another node, have left this
// rank's memory.
bool Messages::send_some(MessageState& message) {
  const int receiver = message.spec.peer;
  if (!message.written) {
    if (!write_some(message)) return false;
    message.written = true;
    if (!group_.here(receiver))
      message.channel_number = group_.messages().traffic()[receiver].queued;
  }
  if (!is_sent(message)) return false;
  message.end({});
  return true;
}

bool Messages::is_sent(const MessageState& message) const {
  const int receiver = message.spec.peer;
  return group_.here(receiver) ||
         group_.messages().traffic()[receiver].sent >= message.channel_number;
}

// Returns false and marks the receiver as full if there is no room for the rest of the message.
bool Messages::write_some(MessageState& message) {
  const int receiver = message.spec.peer;
  while (!full_[receiver]) {
    const std::size_t most = mailboxes_.shape().most_in_piece();
    const std::size_t bytes = std::min(most, message.spec.bytes - message.moved);
    if (!mailboxes_.has_room(receiver, MailboxShape::piece_bytes(bytes))) break;
    mailboxes_.write({.bytes = bytes,
                      .total = message.spec.bytes,
                      .tag = message.spec.tag,
                      .dtype = message.spec.dtype},
                     message.spec.from + message.moved, receiver);
    message.moved += bytes;
    if (message.moved == message.spec.bytes) return true;
  }
  full_[receiver] = true;
  return false;
}

void Messages::keep_all() {
  for (const int sender : group_.view().members) {
    while (!receiving_[sender] && mailboxes_.keep(sender)) {
    }
  }
}

// A message may arrive between the calls for two receives. If an earlier receive, now in
// `unmatched`, would have taken the message, the message is left for that receive.
bool Messages::receive_some(MessageState& message, Wanted& unmatched) {
  const std::int64_t tag = message.spec.tag;
  const bool any = message.spec.peer == MessageSpec::kAny;
  const int first = any ? first_sender_ : message.spec.peer;
  for (int i = 0; !message.matched && i < (any ? group_.size() : 1); ++i) {
    const int sender = (first + i) % group_.size();
    if (!group_.survival().has(sender)) continue;
    if (unmatched.contains({tag, sender}) || unmatched.contains({tag, MessageSpec::kAny})) continue;
    if (match(message, sender) && !message.status.ok()) {
      message.end(message.status);
      return true;
    }
  }
  if (!message.matched) {
    unmatched.insert({tag, message.spec.peer});
    return false;
  }
  if (!message.whole && !receive_pieces(message)) return false;
  message.end({});
  return true;
}

bool Messages::match(MessageState& message, int sender) {
  if (KeptMessage* kept = mailboxes_.find_kept(sender, message.spec.tag)) {
    if (claim(message, sender, kept->head)) take_kept(message, *kept);
    return true;
  }
  for (;;) {  // what is kept here has another tag
    const PieceHead* piece = receiving_[sender] ? nullptr : mailboxes_.next(sender);
    if (piece == nullptr) return false;
    if (!mailboxes_.begins(sender) || piece->tag != message.spec.tag) {
      if (!mailboxes_.keep(sender)) return false;
      continue;
    }
    receiving_[sender] = claim(message, sender, *piece);
    return true;
  }
}

// False, with the status of the receive: the message is of another size or type.
bool Messages::claim(MessageState& message, int sender, const PieceHead& head) {
  message.source = sender;
  message.status = check(message, sender, head);
  message.matched = message.status.ok();
  // So a receive from any rank takes a message of each sender before a second one of the same.
  if (message.spec.peer == MessageSpec::kAny && message.matched)
    first_sender_ = (sender + 1) % group_.size();
  return message.matched;
}

Status Messages::check(const MessageState& message, int sender, const PieceHead& head) const {
  const MessageSpec& spec = message.spec;
  if (head.total == spec.bytes && head.dtype == spec.dtype) return {};
  return {Code::kMismatch,
          fmt::format("recv {}: rank {} sent {} bytes of {} with tag {}, rank {} expects {} bytes "
                      "of {}",
                      message.number, sender, head.total, data_type_name(head.dtype), head.tag,
                      group_.rank(), spec.bytes, data_type_name(spec.dtype)),
          sender};
}

// An incomplete message is the last one that was kept, so its rest is what comes next.
void Messages::take_kept(MessageState& message, const KeptMessage& kept) {
  for (const std::vector<std::byte>& piece : kept.pieces) {
    if (!piece.empty()) std::memcpy(message.spec.to + message.moved, piece.data(), piece.size());
    message.moved += piece.size();
  }
  message.whole = kept.whole();
  if (!message.whole) receiving_[message.source] = true;
  mailboxes_.drop_kept(message.source, kept.head.tag);
}

// A message, or the rest of one, straight into the caller's memory.
bool Messages::receive_pieces(MessageState& message) {
  const int sender = message.source;
  do {
    const PieceHead* piece = mailboxes_.next(sender);
    if (piece == nullptr) return false;
    FERRY_CHECK(piece->bytes, <=, message.spec.bytes - message.moved);
    if (piece->bytes > 0)
      copy_row(message.spec.to + message.moved, piece + 1, piece->bytes, Stores::kCached);
    message.moved += piece->bytes;
    mailboxes_.take(sender, *piece);
  } while (message.moved < message.spec.bytes);
  message.whole = true;
  receiving_[sender] = false;
  return true;
}

Status Messages::end_all(const Status& status) {
  take_begun();
  for (const std::shared_ptr<MessageState>& message : pending_) message->end(status);
  pending_.clear();
  return status;
}

}  // namespace ferry::internal

// How a rank waits for its messages: for anything that happens in its mailboxes. Each message has a
// deadline of its own and a rank that it needs.
#include <algorithm>

#include "collectives/messages.h"

namespace ferry::internal {

namespace {

// The interval at which a waiting rank looks whether another rank has died.
constexpr std::chrono::nanoseconds kLook = std::chrono::milliseconds(50);

}  // namespace

void Messages::want(int peer) noexcept {
  only_.assign(only_.size(), false);
  only_[peer] = true;
}

// Any of the other ranks, or this one if there is no other.
void Messages::want_any() noexcept {
  only_.assign(only_.size(), false);
  for (const int peer : group_.view().members)
    only_[peer] = peer != group_.rank() || group_.view().members.size() == 1;
}

// The wait for one message, which an error names. A receive from any rank waits for the rank that
// died or, if none died, for all ranks.
Await Messages::awaiting(MessageState& message, const Status& death,
                         std::uint64_t events) noexcept {
  const int peer = message.source;
  const bool any = peer == MessageSpec::kAny;
  any&& death.ok() ? want_any() : want(any ? death.culprit() : peer);
  Await await{.operation = message.spec.receives ? "recv" : "send",
              .number = message.number,
              .phase = message.spec.receives ? "a message" : "room",
              .flags = &mailboxes_.events(),
              .stride_bytes = 0,
              .value = events + 1,
              .time = &message.time,
              .crowded = crowded_,
              .only = &only_};
  if (!message.spec.receives) {
    const std::size_t bytes =
        std::min(mailboxes_.shape().most_in_piece(), message.spec.bytes - message.moved);
    await.flags = &mailboxes_.flags(group_.rank(), 0).taken;
    await.stride_bytes = mailboxes_.shape().stride;
    await.value = mailboxes_.needed(peer, MailboxShape::piece_bytes(bytes));
  } else if (!any) {
    await.flags = &mailboxes_.flags(0, group_.rank()).sent;
    await.stride_bytes = mailboxes_.sender_stride();
    await.value = mailboxes_.taken(peer) + 1;
    // There is no room to look behind the pieces in the mailbox, so no flag ends the wait.
    if (!message.matched && !receiving_[peer] && mailboxes_.is_full(peer)) {
      await.phase = "a message behind 64 MiB of others";
      await.value = ~std::uint64_t{0};
    }
  }
  return await;
}

// A rank that leaves the group does not end a receive from any rank while other ranks remain. A
// rank that died ends it.
bool Messages::has_lost_peer(const MessageState& message, const Status& death) const noexcept {
  if (message.source != MessageSpec::kAny)
    return group_.ended(message.source, /*sends_here=*/message.spec.receives);
  if (!death.ok()) return true;
  for (const int peer : group_.view().members)
    if (peer != group_.rank() && !group_.ended(peer, /*sends_here=*/true)) return false;
  return group_.view().members.size() > 1;
}

// Other ranks see that this rank waits for the peer of `awaited`. A thread that moves messages
// beside the one that makes the calls has no such message: its wait does not count.
Status Messages::await_event(std::uint64_t events, const MessageState* awaited,
                             CountedWait& counted) {
  MessageState& first = *pending_.front();
  CallTime look(std::min(kLook, first.time.limit()));
  Await event = awaiting(first, {}, events);
  const int peer = awaited != nullptr ? awaited->source : MessageSpec::kAny;
  const bool counts = peer != MessageSpec::kAny && peer != group_.rank();
  counts ? want(peer) : want_any();
  event.flags = &mailboxes_.events();
  event.stride_bytes = 0;
  event.value = events + 1;
  event.time = &look;
  event.needed = &nobody_;
  Status status = group_.wait(event, counts, &counted);
  const bool quiet = status.code() == Code::kTimeout;
  if (!status.ok() && !quiet) return status;
  const std::int64_t now = now_ns();
  const bool looks = quiet || now - looked_ns_ >= kLook.count();
  if (looks) looked_ns_ = now;
  if (Status verdict = verdict_in(group_, view_, "collectives"); !verdict.ok()) return verdict;
  const Status death = looks ? group_.death_here() : Status{};
  for (const std::shared_ptr<MessageState>& message : pending_) {
    const bool late = message->time.passed();
    if (!late && !(looks && has_lost_peer(*message, death))) continue;
    Await last = awaiting(*message, death, events);
    // This rank has taken everything that had come at the last look, and the message was not there.
    // So the wait ends with an error: no flag reaches this value.
    if (message->over) last.value = ~std::uint64_t{0};
    const int peer = message->source != MessageSpec::kAny ? message->source : death.culprit();
    message->over = late || peer < 0 || !receiving_[peer];
    if (Status ended = group_.wait(last); !ended.ok()) return ended;
  }
  return {};
}

// Waits until the messages that are written have left for other nodes: this rank may not call ferry
// again for a while.
Status Messages::await_departure() {
  only_ = nobody_;
  std::uint64_t last = 0;
  for (const std::shared_ptr<MessageState>& message : pending_) {
    if (!message->written) continue;
    only_[message->spec.peer] = true;
    last = message->number;
  }
  CallTime time(group_.default_deadline());
  return group_.await_sent({.operation = "send",
                            .number = last,
                            .phase = "room",
                            .flags = &mailboxes_.events(),
                            .stride_bytes = 0,
                            .value = 0,
                            .time = &time,
                            .crowded = crowded_},
                           only_);
}

}  // namespace ferry::internal

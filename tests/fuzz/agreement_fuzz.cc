// Messages of nodes that agree on the next view, as any network may bring them. A message that is
// read has ranks of the group only, and its bytes again. Input: the message.
#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "group/agreement_message.h"

namespace {

using ferry::internal::AgreementMessage;

constexpr int kSize = 4;

void require(bool condition) {
  if (!condition) std::abort();
}

bool is_rank(std::int64_t rank) { return rank >= 0 && rank < kSize; }

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const bool asks = AgreementMessage::asks(bytes);
  const auto message = AgreementMessage::read(bytes, kSize);
  if (!message) return 0;
  require(std::ranges::equal(message->bytes(), bytes));
  require(message->what <= AgreementMessage::What::kUnlinked);
  for (const std::int32_t rank : message->members) require(is_rank(rank));
  for (const AgreementMessage::RankSeat& one : message->seats) require(is_rank(one.rank));
  for (const auto& one : message->objects) require(is_rank(one.rank));
  for (const std::int32_t rank : message->unreached) require(is_rank(rank));
  const bool answered = message->what == AgreementMessage::What::kPromise ||
                        message->what >= AgreementMessage::What::kAccepted ||
                        message->what == AgreementMessage::What::kWaits;
  require(asks != answered);
  return 0;
}

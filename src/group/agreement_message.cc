#include "group/agreement_message.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"

namespace ferry::internal {

namespace {

template <typename Item>
void append_list(std::vector<std::byte>& out, const std::vector<Item>& items) {
  append(out, std::uint32_t{static_cast<std::uint32_t>(items.size())});
  append(out, items);
}

template <typename Item>
bool read_list(ByteReader& reader, std::vector<Item>& items) {
  const auto count = reader.get<std::uint32_t>();
  if (!reader.ok() || count > reader.remaining() / sizeof(Item)) return false;
  items.resize(count);
  reader.get_all(std::span(items));
  return reader.ok();
}

}  // namespace

std::vector<std::byte> AgreementMessage::bytes() const {
  std::vector<std::byte> out;
  append(out, what);
  append(out, ballot);
  append(out, accepted);
  append_list(out, members);
  append_list(out, seats);
  append_list(out, objects);
  append_list(out, unreached);
  return out;
}

std::optional<AgreementMessage> AgreementMessage::read(std::span<const std::byte> bytes, int size) {
  AgreementMessage message;
  ByteReader reader(bytes);
  message.what = reader.get<What>();
  message.ballot = reader.get<std::uint64_t>();
  message.accepted = reader.get<std::uint64_t>();
  const bool whole = read_list(reader, message.members) && read_list(reader, message.seats) &&
                     read_list(reader, message.objects) && read_list(reader, message.unreached) &&
                     reader.done();
  const auto is_rank = [size](std::int64_t rank) { return rank >= 0 && rank < size; };
  const bool good =
      whole && message.what <= What::kUnlinked && std::ranges::all_of(message.members, is_rank) &&
      std::ranges::all_of(message.unreached, is_rank) &&
      std::ranges::all_of(message.seats, [&](const RankSeat& one) { return is_rank(one.rank); }) &&
      std::ranges::all_of(message.objects, [&](const auto& one) { return is_rank(one.rank); });
  return good ? std::optional(std::move(message)) : std::nullopt;
}

bool AgreementMessage::asks(std::span<const std::byte> bytes) noexcept {
  return asks(ByteReader(bytes).get<What>());
}

bool AgreementMessage::gives_up(std::span<const std::byte> bytes) noexcept {
  return ByteReader(bytes).get<What>() == What::kOutvoted;
}

}  // namespace ferry::internal

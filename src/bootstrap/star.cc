// One collective after the other, numbered so that ranks at different ones are found.
#include "bootstrap/star.h"

#include <cstring>

namespace ferry::internal {
namespace {

using Texts = std::vector<std::string>;

// Lengths, then texts.
std::string pack(const Texts& texts) {
  std::string packed;
  for (const std::string& text : texts) {
    const std::uint64_t bytes = text.size();
    packed.append(reinterpret_cast<const char*>(&bytes), sizeof(bytes));
  }
  for (const std::string& text : texts) packed += text;
  return packed;
}

Texts unpack(const std::string& packed, std::size_t size) {
  Texts texts;
  std::size_t at = size * sizeof(std::uint64_t);
  for (std::size_t seat = 0; seat < size; ++seat) {
    std::uint64_t bytes = 0;
    std::memcpy(&bytes, packed.data() + seat * sizeof(bytes), sizeof(bytes));
    texts.push_back(packed.substr(at, bytes));
    at += bytes;
  }
  return texts;
}

}  // namespace

Star::Star(const Party& party, Deadline deadline)
    : size_(party.size()), is_hub_(party.self.rank == party.hub()) {
  if (size_ == 1) return;
  if (!is_hub_) {
    spoke_.emplace(party, deadline);
    return;
  }
  hub_.emplace(party, deadline);
  hub_->answer(Kind::kWelcome, 0, "", {}, deadline);
}

Texts Star::all_gather(std::string_view mine, Deadline deadline) {
  return guarded([&]() -> Texts {
    if (size_ == 1) return {std::string(mine)};
    const std::uint32_t call = ++num_calls_;
    if (spoke_) {
      spoke_->say(call, mine);
      return unpack(spoke_->await(Kind::kGathered, call, deadline).payload, size_);
    }
    Texts texts = hub_->gather(call, std::string(mine), deadline);
    hub_->answer(Kind::kGathered, call, pack(texts), {}, deadline);
    return texts;
  });
}

void Star::hand_out(const std::vector<std::shared_ptr<const Descriptor>>& by_seat,
                    Deadline deadline) {
  if (size_ == 1) return;
  guarded([&] {
    hub_->answer(Kind::kSegment, num_calls_, by_seat.empty() ? "" : "here", by_seat, deadline);
  });
}

std::optional<Descriptor> Star::take(Deadline deadline) {
  Frame frame = guarded([&] { return spoke_->await(Kind::kSegment, num_calls_, deadline); });
  if (frame.payload.empty()) return std::nullopt;
  return std::move(frame.passed);
}

template <typename Call>
auto Star::guarded(const Call& call) -> decltype(call()) {
  if (failure_) throw *failure_;
  try {
    return call();
  } catch (const Error& error) {
    failure_ = error;
    throw;
  }
}

}  // namespace ferry::internal

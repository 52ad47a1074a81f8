#include "exchange/setup/replies.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "exchange/setup/differences.h"

namespace ferry::internal {

namespace {

// A reply is kRefused, an error code as one character and a reason; or kWilling and the description
// of the object that the rank would make.
constexpr char kRefused = '-', kWilling = '+';

// The text from `at` on. The text comes from another rank and may end before `at`.
std::string_view rest_of(std::string_view text, std::size_t at) {
  return text.substr(std::min(at, text.size()));
}

}  // namespace

std::string refusal_reply(const Error& why) {
  return fmt::format("{}{}{}", kRefused, static_cast<char>(why.code()), why.what());
}

std::string willing_reply(const std::string& what) { return kWilling + what; }

void require_agreement(const std::vector<std::string>& replies, const char* object) {
  for (std::size_t rank = 0; rank < replies.size(); ++rank) {
    if (replies[rank].starts_with(kRefused))
      throw Error(Code::kPeerRejected,
                  fmt::format("rank {} refused to make this {}: {}", rank, object,
                              rest_of(replies[rank], 2)),
                  static_cast<int>(rank));
  }
  for (std::size_t rank = 1; rank < replies.size(); ++rank) {
    if (replies[rank] == replies[0]) continue;
    throw Error(Code::kMismatch,
                fmt::format("ranks 0 and {} make different {}s: {}", rank, object,
                            differences(rest_of(replies[0], 1), rest_of(replies[rank], 1))),
                static_cast<int>(rank));
  }
}

}  // namespace ferry::internal

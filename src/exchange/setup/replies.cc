#include "exchange/setup/replies.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "bootstrap/agree.h"
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

void require_agreement(const std::vector<std::string>& replies, const std::vector<int>& ranks,
                       const char* object) {
  for (std::size_t place = 0; place < replies.size(); ++place) {
    if (!replies[place].starts_with(kRefused)) continue;
    const int rank = sender_of(ranks, place);
    throw Error(Code::kPeerRejected,
                fmt::format("rank {} refused to make this {}: {}", rank, object,
                            rest_of(replies[place], 2)),
                rank);
  }
  for (std::size_t place = 1; place < replies.size(); ++place) {
    if (replies[place] == replies[0]) continue;
    const int rank = sender_of(ranks, place);
    throw Error(
        Code::kMismatch,
        fmt::format("ranks {} and {} make different {}s: {}", sender_of(ranks, 0), rank, object,
                    differences(rest_of(replies[0], 1), rest_of(replies[place], 1))),
        rank);
  }
}

}  // namespace ferry::internal

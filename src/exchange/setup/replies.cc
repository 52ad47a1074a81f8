#include "exchange/setup/replies.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "exchange/setup/differences.h"

namespace ferry::internal {

namespace {

// A reply is kRefused, a code as one character, a reason; or kWilling and what the rank would
// make. Terms and fields have kFields between them.
constexpr char kRefused = '-', kWilling = '+', kFields = '\x1f';

// The text from `at` on; it comes from another rank and may be shorter.
std::string_view rest_of(std::string_view text, std::size_t at) {
  return text.substr(std::min(at, text.size()));
}

std::string differences_of(std::string_view first, std::string_view other) {
  const std::size_t mine = first.find(kFields), theirs = other.find(kFields);
  if (mine == first.npos || theirs == other.npos)  // what has no terms
    return differences(rest_of(first, 1), rest_of(other, 1));
  const std::string terms =
      differences(rest_of(first.substr(0, mine), 1), rest_of(other.substr(0, theirs), 1));
  return terms.empty() ? differences(first.substr(mine + 1), other.substr(theirs + 1)) : terms;
}

}  // namespace

std::string refusal_reply(const Error& why) {
  return fmt::format("{}{}{}", kRefused, static_cast<char>(why.code()), why.what());
}

std::string willing_reply(const std::string& what) { return kWilling + what; }

std::string terms_and_fields(const std::string& terms, const std::string& fields) {
  return terms + kFields + fields;
}

void require_agreement(const std::vector<std::string>& answers) {
  for (std::size_t rank = 0; rank < answers.size(); ++rank) {
    if (answers[rank].starts_with(kRefused))
      throw Error(
          Code::kPeerRejected,
          fmt::format("rank {} refused to make this exchange: {}", rank, rest_of(answers[rank], 2)),
          static_cast<int>(rank));
  }
  for (std::size_t rank = 1; rank < answers.size(); ++rank) {
    if (answers[rank] == answers[0]) continue;
    throw Error(Code::kMismatch,
                fmt::format("ranks 0 and {} make different exchanges: {}", rank,
                            differences_of(answers[0], answers[rank])),
                static_cast<int>(rank));
  }
}

}  // namespace ferry::internal

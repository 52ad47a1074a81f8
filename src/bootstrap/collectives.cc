// Numbers the collectives, so that ranks in different collectives are detected.
#include "bootstrap/collectives.h"

#include "base/bytes.h"
#include "base/check.h"
#include "bootstrap/coordinator.h"
#include "bootstrap/member.h"

namespace ferry::internal {

std::unique_ptr<Collectives> join(const Roster& roster, Deadline deadline) {
  FERRY_CHECK(roster.size(), >, 0U);
  FERRY_CHECK(roster.place(roster.self.rank), >=, 0);
  if (roster.self.rank == roster.coordinator())
    return std::make_unique<Coordinator>(roster, deadline);
  return std::make_unique<Member>(roster, deadline);
}

std::vector<std::string> Collectives::all_gather(std::string_view mine, Deadline deadline) {
  return guarded([&] { return gather(++num_calls_, mine, deadline); });
}

std::optional<Descriptor> Collectives::hand_out(const Handouts& handouts, Deadline deadline) {
  FERRY_CHECK(num_calls_, >, 0U);
  return guarded([&] { return pass(num_calls_, handouts, deadline); });
}

void Collectives::look() {
  guarded([&] { watch(); });
}

void Collectives::give_up(const Error& error) {
  if (!failure_) guarded([&] { fail(error); });
  throw error;  // after an earlier failure, this error has more detail for the caller
}

template <typename Call>
auto Collectives::guarded(const Call& call) -> decltype(call()) {
  if (failure_) throw *failure_;
  try {
    return call();
  } catch (const Error& error) {
    failure_ = error;
    throw;
  }
}

std::string pack(const std::vector<std::string>& texts) {
  std::string packed;
  for (const std::string& text : texts) append(packed, std::uint64_t{text.size()});
  for (const std::string& text : texts) packed += text;
  return packed;
}

std::vector<std::string> unpack(std::string_view packed, std::size_t size) {
  ByteReader reader(packed);
  std::vector<std::uint64_t> lengths(size);
  reader.get_all(std::span(lengths));
  std::vector<std::string> texts;
  for (const std::uint64_t bytes : lengths) texts.emplace_back(as_text(reader.take(bytes)));
  if (reader.done()) return texts;
  throw Error(Code::kMismatch, "the reply of a collective is not one text for each rank");
}

}  // namespace ferry::internal

// Numbers the collectives, so that ranks in different collectives are detected.
#include "bootstrap/collectives.h"

#include "base/bytes.h"
#include "base/check.h"
#include "bootstrap/coordinator.h"
#include "bootstrap/member.h"

namespace ferry::internal {

std::unique_ptr<BootstrapCollectives> join(const Roster& roster, Deadline deadline) {
  FERRY_CHECK(roster.size(), >, 0U);
  FERRY_CHECK(roster.place(roster.self.rank), >=, 0);
  if (roster.self.rank == roster.coordinator())
    return std::make_unique<Coordinator>(roster, deadline);
  return std::make_unique<Member>(roster, deadline);
}

std::vector<std::string> BootstrapCollectives::all_gather(std::string_view mine,
                                                          Deadline deadline) {
  return guarded([&] { return gather(++num_calls_, mine, deadline); });
}

std::optional<Descriptor> BootstrapCollectives::hand_out(const Handouts& handouts,
                                                         Deadline deadline) {
  FERRY_CHECK(num_calls_, >, 0U);
  return guarded([&] { return pass(num_calls_, handouts, deadline); });
}

void BootstrapCollectives::look() {
  guarded([&] { watch(); });
}

void BootstrapCollectives::give_up(const Error& error) {
  if (!failure_) guarded([&] { fail(error); });
  throw error;  // after an earlier failure, this error has more detail for the caller
}

template <typename Call>
auto BootstrapCollectives::guarded(const Call& call) -> decltype(call()) {
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
  for (std::size_t first = 0, next = 0; first < texts.size(); first = next) {
    while (next < texts.size() && texts[next] == texts[first]) ++next;
    append(packed, std::uint64_t{next - first});
    append(packed, std::uint64_t{texts[first].size()});
    packed += texts[first];
  }
  return packed;
}

std::vector<std::string> unpack(std::string_view packed, std::size_t size) {
  ByteReader reader(packed);
  std::vector<std::string> texts;
  while (reader.ok() && texts.size() < size) {
    const auto count = reader.get<std::uint64_t>(), bytes = reader.get<std::uint64_t>();
    const std::string text(as_text(reader.take(bytes)));
    if (count == 0 || count > size - texts.size()) break;
    texts.insert(texts.end(), count, text);
  }
  if (reader.done() && texts.size() == size) return texts;
  throw Error(Code::kMismatch, "the reply of a collective is not one text for each rank");
}

}  // namespace ferry::internal

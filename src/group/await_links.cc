// What a rank does while a group is made and its links between nodes are not there yet: it stays
// until all peers that it connects to have replied, so that a firewall is reported then, with the
// port that it blocks.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "group/state.h"

namespace ferry::internal {

namespace {

// Pauses between two looks at the connections, and between two rounds in which ranks report them.
constexpr std::chrono::milliseconds kLook{1}, kLongestLook{20}, kRound{250};
// So long before the deadline ranks send each other what is missing.
constexpr std::chrono::milliseconds kTelling{500};
constexpr int kTellingPart = 10;  // of the deadline, at most

constexpr const char* kHint =
    "; does a firewall stop it? UCX_TCP_PORT_RANGE=first-last chooses the ports where UCX listens, "
    "FERRY_SOCKET_IFNAME the interfaces";

// What a rank says of its links: nothing when they are there, else what it does, which peer is
// missing, and why.
constexpr char kWaits = 'w', kGaveUp = 'g', kLost = 'l', kStopped = 's';

std::string report_of(char what, int peer, const std::string& why) {
  return fmt::format("{}{} {}", what, peer, why);
}

Error error_of(int rank, const std::string& report, int size) {
  const Code code = report[0] == kGaveUp    ? Code::kTimeout
                    : report[0] == kStopped ? Code::kInterrupted
                                            : Code::kPeerLost;
  const int peer = std::atoi(&report[1]);
  const std::string why = report.substr(report.find(' ') + 1);
  return {code, fmt::format("rank {}: {}", rank, why), peer >= 0 && peer < size ? peer : rank};
}

// All ranks decide by the same reports. Throws what one of them that does not wait says: this
// rank's, else the first.
bool all_there(const std::vector<std::string>& reports, int self) {
  const int size = static_cast<int>(reports.size());
  int ended = -1;
  bool all = true;
  for (int rank = size - 1; rank >= 0; --rank) {
    const std::string& report = reports[static_cast<std::size_t>(rank)];
    all = all && report.empty();
    if (!report.empty() && report[0] != kWaits && ended != self) ended = rank;
  }
  if (ended < 0) return all;
  throw error_of(ended, reports[static_cast<std::size_t>(ended)], size);
}

}  // namespace

// Rounds of an all-gather, so that all ranks end in the same one. `failure`: of this rank's own
// reach(); the others must learn of it.
void GroupState::await_links(const std::optional<Error>& failure, const Deadline& by) {
  const std::int64_t telling_ns =
      std::min<std::chrono::nanoseconds>(kTelling, options_.deadline / kTellingPart).count();
  const auto is_late = [&] { return by.remaining_ns() < telling_ns; };
  while (true) {
    const Deadline round = by.earlier(kRound);
    std::string report =
        failure ? report_of(kLost, failure->culprit(), failure->what() + std::string(kHint)) : "";
    for (auto pause = kLook; !failure; pause = std::min(2 * pause, kLongestLook)) {
      report = missing_links();
      if (!report.starts_with(kWaits) || round.passed() || is_late()) break;
      std::this_thread::sleep_for(pause);
    }
    if (by.interrupted()) report = report_of(kStopped, rank_, "was interrupted while it connected");
    if (report.starts_with(kWaits) && is_late()) {
      report[0] = kGaveUp;
      report += fmt::format("; deadline {:.3g} s",
                            std::chrono::duration<double>(options_.deadline).count());
    }
    if (all_there(rendezvous_->all_gather(report, by), rank_)) return;
  }
}

// Empty when all peers that this rank connects to have replied.
std::string GroupState::missing_links() {
  progress();
  const auto held = lock();
  for (const auto& [peer, why] : nodes_.why_lost)
    return report_of(kLost, peer, fmt::format("cannot reach rank {}: {}{}", peer, why, kHint));
  const std::map<int, std::string> unconnected = messages_->unconnected();
  if (unconnected.empty()) return {};
  const auto& [peer, where] = *unconnected.begin();
  return report_of(kWaits, peer,
                   fmt::format("rank {} does not answer at {}{}", peer, where, kHint));
}

}  // namespace ferry::internal

// Waits, while a group is made, until all peers to which this rank connects have replied. So a
// firewall is reported then, with the port that it blocks.
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
// The time before the deadline at which ranks report their missing connections to each other.
constexpr std::chrono::milliseconds kReportTime{500};
constexpr int kReportPart = 10;  // 10: at most a tenth of the deadline

constexpr const char* kHint =
    "; does a firewall stop it? UCX_TCP_PORT_RANGE=first-last chooses the ports where UCX listens, "
    "FERRY_SOCKET_IFNAME the interfaces";

// A rank's report on its links: empty when all are connected, else one of these states, the missing
// peer, and the reason.
constexpr char kWaits = 'w', kGaveUp = 'g', kLost = 'l', kStopped = 's';

std::string report_of(char what, int peer, const std::string& why) {
  return fmt::format("{}{} {}", what, peer, why);
}

Error error_of(int rank, const std::string& report, const std::vector<int>& ranks) {
  const Code code = report[0] == kGaveUp    ? Code::kTimeout
                    : report[0] == kStopped ? Code::kInterrupted
                                            : Code::kPeerLost;
  const int peer = std::atoi(&report[1]);
  const std::string why = report.substr(report.find(' ') + 1);
  return {code, fmt::format("rank {}: {}", rank, why),
          std::ranges::binary_search(ranks, peer) ? peer : rank};
}

// `reports` has one report for each rank in `ranks`, and is equal on all ranks. Returns true if all
// reports are empty. Throws if a rank gave up, lost a link or was stopped: the error of rank `self`
// if it is one of these, else that of the first such rank.
bool all_there(const std::vector<std::string>& reports, const std::vector<int>& ranks, int self) {
  std::optional<std::size_t> ended;
  bool all = true;
  for (std::size_t place = reports.size(); place-- > 0;) {
    const std::string& report = reports[place];
    all = all && report.empty();
    const bool is_first = !ended || ranks[*ended] != self;
    if (!report.empty() && report[0] != kWaits && is_first) ended = place;
  }
  if (!ended) return all;
  throw error_of(ranks[*ended], reports[*ended], ranks);
}

}  // namespace

// All-gathers the reports in rounds, so that all ranks end in the same round. `failure`: the error
// of this rank's reach(), which is sent to the others.
void GroupState::await_links(const std::optional<Error>& failure, const Deadline& by) {
  const std::int64_t report_ns =
      std::min<std::chrono::nanoseconds>(kReportTime, options_.deadline / kReportPart).count();
  const auto is_late = [&] { return by.remaining_ns() < report_ns; };
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
    if (all_there(rendezvous_->all_gather(report, by), rendezvous_->ranks(), rank_)) return;
  }
}

// This rank's report: empty when all peers to which it connects have replied.
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

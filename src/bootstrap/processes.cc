// Rendezvous of processes, of one host or of several: collectives go over one star of all ranks,
// memory and liveness stay with those of the own host. Called by group creation; calls Star and
// Host.
#include <optional>

#include "bootstrap/agree.h"
#include "bootstrap/host.h"
#include "bootstrap/rendezvous.h"
#include "bootstrap/star.h"
#include "ferry/status.h"

namespace ferry::internal {
namespace {

class ProcessRendezvous final : public Rendezvous {
 public:
  // `network`: null when all ranks are on this host.
  ProcessRendezvous(int rank, const std::vector<int>& nodes, std::unique_ptr<Star> network,
                    std::unique_ptr<Host> host)
      : Rendezvous(rank, nodes), network_(std::move(network)), host_(std::move(host)) {}

  std::vector<std::string> all_gather(std::string_view mine, Deadline deadline) override {
    return (network_ ? *network_ : host_->star()).all_gather(mine, deadline);
  }

  std::shared_ptr<Segment> share_segment(std::size_t bytes, Deadline deadline) override {
    check_same_bytes(all_gather(std::to_string(bytes), deadline));
    std::string problem;
    std::shared_ptr<Segment> segment = host_->share_segment(bytes, deadline, problem);
    check_no_problem(all_gather(problem, deadline));
    return segment;
  }

  // Of a rank of another host nothing is known here: its silence is found where its messages come.
  bool alive(int peer) noexcept override { return !host_->has(peer) || host_->alive(peer); }
  int pid(int peer) const noexcept override { return host_->has(peer) ? host_->pid(peer) : 0; }

 private:
  std::unique_ptr<Star> network_;
  std::unique_ptr<Host> host_;
};

std::vector<int> all_ranks(const std::vector<int>& nodes) {
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < nodes.size(); ++rank) ranks.push_back(static_cast<int>(rank));
  return ranks;
}

std::unique_ptr<Host> meet_on_host(const std::string& address, int rank, std::vector<int> ranks,
                                   const std::vector<int>& nodes, Deadline deadline) {
  const int num_ranks = static_cast<int>(ranks.size());
  Party party{unix_door(address, num_ranks), own_hello(address, rank, nodes), std::move(ranks)};
  return std::make_unique<Host>(std::move(party), nodes, deadline);
}

// What each rank tells all others once they have met.
struct Place {
  std::string nonce;  // rank 0's names the sockets on each host
  std::string identity;

  std::string text() const { return nonce + identity; }
  static Place read(const std::string& text) {
    const std::size_t digits = 2 * kNonceBytes;
    if (text.size() < digits) throw Error(Code::kMismatch, "a rank's place is not one");
    return {text.substr(0, digits), text.substr(digits)};
  }
};

}  // namespace

std::unique_ptr<Rendezvous> process_rendezvous(const std::string& address, int rank,
                                               const std::vector<int>& nodes, Deadline deadline) {
  check_rank(rank, static_cast<int>(nodes.size()));
  auto host = meet_on_host(address, rank, all_ranks(nodes), nodes, deadline);
  return std::make_unique<ProcessRendezvous>(rank, nodes, nullptr, std::move(host));
}

std::unique_ptr<Rendezvous> tcp_rendezvous(const TcpMeeting& meeting, int rank,
                                           const std::vector<int>& split, Deadline deadline) {
  check_rank(rank, static_cast<int>(split.size()));
  const Hello self = own_hello(meeting.name, rank, split);
  auto network = std::make_unique<Star>(Party{tcp_door(meeting), self, all_ranks(split)}, deadline);

  const Place mine{hex(fresh_nonce()), identity(self)};
  std::vector<std::string> keys;
  std::vector<int> here;  // ranks of this host
  std::string nonce;
  for (const std::string& text : network->all_gather(mine.text(), deadline)) {
    const Place place = Place::read(text);
    const int peer = static_cast<int>(keys.size());
    if (peer == 0) nonce = place.nonce;
    if (place.identity == mine.identity) here.push_back(peer);
    keys.push_back(place.identity + ' ' + std::to_string(split[static_cast<std::size_t>(peer)]));
  }
  const std::vector<int> nodes = number_nodes(keys);

  // Hosts that share a network namespace but not their processes share the names of sockets.
  const std::string address = nonce.substr(0, 32) + '-' + std::to_string(here.front());
  std::unique_ptr<Host> host;
  std::string problem;
  try {
    host = meet_on_host(address, rank, here, nodes, deadline);
  } catch (const Error& error) {
    problem = error.what();
  }
  check_no_problem(network->all_gather(problem, deadline));
  return std::make_unique<ProcessRendezvous>(rank, nodes, std::move(network), std::move(host));
}

}  // namespace ferry::internal

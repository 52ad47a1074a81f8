// Rendezvous of processes on one host or several. One coordinator serves the collectives of all
// ranks. Memory and liveness concern the ranks of one host.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <numeric>
#include <optional>

#include "base/check.h"
#include "bootstrap/agree.h"
#include "bootstrap/collectives.h"
#include "bootstrap/later_endpoint.h"
#include "bootstrap/places.h"
#include "bootstrap/rendezvous.h"
#include "network/liveness.h"

namespace ferry::internal {
namespace {

// The ranks of one host. They have collectives over Unix sockets, share segments, and watch each
// other's processes.
class Host {
 public:
  // `nodes` [ranks of the group]: ranks of the same node share a segment.
  Host(Roster roster, const std::vector<int>& nodes, Deadline deadline)
      : roster_(std::move(roster)), collectives_(join(roster_, deadline)) {
    for (const int rank : roster_.ranks) nodes_.push_back(nodes[static_cast<std::size_t>(rank)]);
    std::vector<pid_t> pids;
    for (const std::string& text : collectives_->all_gather(std::to_string(getpid()), deadline))
      pids.push_back(pid_in(text, roster_.ranks[pids.size()]));
    FERRY_CHECK(pids.size(), ==, roster_.size());
    liveness_ = Liveness(pids);
    // All ranks still ran after all ranks had opened the pidfds, so that no pidfd is of a reused
    // pid.
    collectives_->all_gather("", deadline);
  }

  // The texts by ascending rank, though the coordinator may be any rank.
  std::vector<std::string> all_gather(std::string_view mine, Deadline deadline) {
    std::vector<std::string> texts = collectives_->all_gather(mine, deadline);
    const auto before = std::ranges::count_if(
        roster_.ranks, [&](int rank) { return rank < roster_.coordinator(); });
    std::rotate(texts.begin(), texts.begin() + 1, texts.begin() + 1 + before);
    return texts;
  }

  // Collective: the coordinator makes a segment for each node, and every rank maps the one of its
  // node. Returns null if there is none; at least one rank then has the reason in `problem`.
  std::shared_ptr<Segment> share_segment(std::size_t bytes, Deadline deadline,
                                         std::string& problem) {
    try {
      const bool coordinates = roster_.self.rank == roster_.coordinator();
      return coordinates ? offer(bytes, deadline) : take(bytes, deadline);
    } catch (const Error& error) {
      problem = error.what();
      return nullptr;
    }
  }

  // Collective: the coordinator sends its segment to the others. `mine`: null on a rank without it.
  std::shared_ptr<Segment> pass_on(std::shared_ptr<Segment> mine, std::size_t bytes,
                                   Deadline deadline, std::string& problem) {
    try {
      if (roster_.self.rank != roster_.coordinator()) {
        std::shared_ptr<Segment> taken = take(bytes, deadline);
        return mine ? mine : taken;
      }
      Handouts handouts;
      for (std::size_t place = 0; place < roster_.size(); ++place)
        handouts.push_back(duplicate(mine->fd()));
      collectives_->hand_out(handouts, deadline);
      return mine;
    } catch (const Error& error) {
      problem = error.what();
      return nullptr;
    }
  }

  bool has(int rank) const { return roster_.place(rank) >= 0; }
  bool alive(int rank) const noexcept { return liveness_.alive(roster_.place(rank)); }
  int kill(int rank) const noexcept { return liveness_.kill(roster_.place(rank)); }
  int pid(int rank) const noexcept { return liveness_.pid(roster_.place(rank)); }

 private:
  // Duplicates a descriptor for a frame. If one of several segments cannot be created, frames in a
  // queue may outlive the segments.
  static std::shared_ptr<const Descriptor> duplicate(int fd) {
    Descriptor copy(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (!copy) throw Error(Code::kSystem, fmt::format("no descriptor: {}", std::strerror(errno)));
    return std::make_shared<const Descriptor>(std::move(copy));
  }

  // Makes the segments and hands them out. If the kernel refuses one, this sends a reply without
  // handouts.
  std::shared_ptr<Segment> offer(std::size_t bytes, Deadline deadline) {
    std::map<int, std::shared_ptr<Segment>> segments;  // by node
    Handouts handouts;
    std::optional<Error> refused;
    try {
      for (const int node : nodes_) {
        std::shared_ptr<Segment>& segment = segments[node];
        if (!segment) segment = Segment::create(bytes);
        handouts.push_back(duplicate(segment->fd()));
      }
    } catch (const Error& error) {
      refused = error;
      handouts.clear();
    }
    if (!refused) FERRY_CHECK(handouts.size(), ==, roster_.size());
    collectives_->hand_out(handouts, deadline);
    if (refused) throw *refused;
    return segments[nodes_[0]];
  }

  std::shared_ptr<Segment> take(std::size_t bytes, Deadline deadline) {
    std::optional<Descriptor> passed = collectives_->hand_out({}, deadline);
    if (!passed) return nullptr;  // the coordinator has the reason
    if (!*passed)
      throw Error(Code::kSystem, "no descriptor arrived with a shared segment (ulimit -n?)");
    return Segment::attach(passed->release(), bytes);
  }

  Roster roster_;
  std::vector<int> nodes_;  // by place
  std::unique_ptr<BootstrapCollectives> collectives_;
  Liveness liveness_;
};

std::unique_ptr<Host> meet_on_host(const std::string& address, Roster roster,
                                   const std::vector<int>& nodes, Deadline deadline) {
  roster.endpoint = unix_endpoint(address, static_cast<int>(roster.size()));
  roster.self = own_hello(address, roster.self.rank, nodes);
  return std::make_unique<Host>(std::move(roster), nodes, deadline);
}

// The same for ranks of one of several hosts, which have met `across` the hosts before. An error
// reaches those of the other hosts.
std::unique_ptr<Host> meet_beside(BootstrapCollectives& across, const std::string& address,
                                  Roster roster, const std::vector<int>& nodes, Deadline deadline) {
  const int rank = roster.self.rank;
  roster.outer = &across;
  std::unique_ptr<Host> host;
  try {
    host = meet_on_host(address, std::move(roster), nodes, deadline);
  } catch (const Error& error) {
    across.give_up({error.code(), fmt::format("rank {}: {}", rank, error.what()),
                    error.culprit() < 0 ? rank : error.culprit()});
  }
  across.all_gather("", deadline);  // all ranks have met on their hosts
  return host;
}

// Where the ranks of an admission meet anew. `invited`: on its coordinator and on newcomers, the
// connections of the invitation.
std::unique_ptr<Host> meet_for(const Admission& admission, int rank, const std::vector<int>& nodes,
                               BootstrapCollectives* invited, Deadline deadline) {
  Roster roster{.endpoint = {},
                .self = own_hello(admission.name, rank, nodes),
                .ranks = admission.ranks(),
                .outer = invited};
  const auto coordinator = std::ranges::find(roster.ranks, admission.coordinator());
  std::rotate(roster.ranks.begin(), coordinator, coordinator + 1);
  return meet_on_host(admission.name, std::move(roster), nodes, deadline);
}

class ProcessRendezvous final : public Rendezvous {
 public:
  // `across`: the collectives of all hosts, or null if all ranks are on this host. `ranks`: empty
  // for all.
  ProcessRendezvous(int rank, const std::vector<int>& nodes, AdmissionAddress at,
                    std::unique_ptr<BootstrapCollectives> across, std::unique_ptr<Host> host,
                    const std::vector<int>& ranks = {})
      : Rendezvous(rank, nodes, ranks),
        admission_address_(std::move(at)),
        across_(std::move(across)),
        host_(std::move(host)) {}

  std::vector<std::string> all_gather(std::string_view mine, Deadline deadline) override {
    return across_ ? across_->all_gather(mine, deadline) : host_->all_gather(mine, deadline);
  }

  std::shared_ptr<Segment> share_segment(std::size_t bytes, Deadline deadline) override {
    std::string problem;
    std::shared_ptr<Segment> segment = host_->share_segment(bytes, deadline, problem);
    check_shared(all_gather(share_reply(bytes, problem), deadline), ranks());
    FERRY_CHECK(segment.get(), !=, nullptr);
    FERRY_CHECK(segment->bytes(), ==, bytes);
    return segment;
  }

  // Returns true for ranks of other hosts, whose liveness is not known here. The group detects
  // their loss from their messages.
  bool alive(int peer) noexcept override { return !host_->has(peer) || host_->alive(peer); }
  int kill(int peer) noexcept override { return host_->has(peer) ? host_->kill(peer) : ESRCH; }
  int pid(int peer) const noexcept override { return host_->has(peer) ? host_->pid(peer) : 0; }

  std::unique_ptr<Rendezvous> among(const std::vector<int>& members, const MeetingPlace& place,
                                    Deadline deadline) override {
    Roster roster{{}, own_hello(place.name, rank(), nodes()), members};
    std::unique_ptr<BootstrapCollectives> across;
    std::unique_ptr<Host> host;
    if (std::ranges::all_of(members, [this](int member) { return host_->has(member); })) {
      host = meet_on_host(place.name, std::move(roster), nodes(), deadline);
    } else {
      const TcpEndpoint& first = admission_address_.endpoint.tcp;
      roster.endpoint = later_endpoint(first, members[0], rank(), across_->local_address(), place);
      across = join(roster, deadline);
      std::erase_if(roster.ranks, [this](int member) { return !host_->has(member); });
      const std::string name = fmt::format("{} {}", place.name, roster.ranks.front());
      host = meet_beside(*across, name, std::move(roster), nodes(), deadline);
    }
    return std::make_unique<ProcessRendezvous>(rank(), nodes(), admission_address_,
                                               std::move(across), std::move(host), members);
  }

  bool admits() const noexcept override { return true; }

  std::unique_ptr<BootstrapCollectives> await_newcomers(const Admission& admission,
                                                        Deadline deadline) override {
    return internal::await_newcomers(admission_address_, admission, nodes(), deadline);
  }

  std::unique_ptr<Rendezvous> among(const Admission& admission, BootstrapCollectives* invited,
                                    Deadline deadline) override {
    return std::make_unique<ProcessRendezvous>(
        rank(), nodes(), admission_address_, nullptr,
        meet_for(admission, rank(), nodes(), invited, deadline), admission.ranks());
  }

  std::shared_ptr<Segment> pass_on(std::shared_ptr<Segment> mine, std::size_t bytes,
                                   Deadline deadline) override {
    all_gather("", deadline);
    std::string problem;
    std::shared_ptr<Segment> segment = host_->pass_on(std::move(mine), bytes, deadline, problem);
    check_shared(all_gather(share_reply(bytes, problem), deadline), ranks());
    FERRY_CHECK(segment.get(), !=, nullptr);
    return segment;
  }

 private:
  AdmissionAddress admission_address_;
  std::unique_ptr<BootstrapCollectives> across_;
  std::unique_ptr<Host> host_;
};

std::vector<int> all_ranks(const std::vector<int>& nodes) {
  std::vector<int> ranks(nodes.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

std::unique_ptr<Rendezvous> process_rendezvous(const std::string& address, int rank,
                                               const std::vector<int>& nodes, Deadline deadline,
                                               const LocalLaunch& launch) {
  check_rank(rank, static_cast<int>(nodes.size()));
  Roster roster{{}, own_hello(address, rank, nodes), all_ranks(nodes), launch};
  auto host = meet_on_host(address, std::move(roster), nodes, deadline);
  return std::make_unique<ProcessRendezvous>(
      rank, nodes, unix_admission_address(address, static_cast<int>(nodes.size())), nullptr,
      std::move(host));
}

std::pair<std::unique_ptr<Rendezvous>, Admission> newcomer_rendezvous(const AdmissionAddress& at,
                                                                      int rank,
                                                                      const std::vector<int>& split,
                                                                      Deadline deadline) {
  const int size = static_cast<int>(split.size());
  check_rank(rank, size);
  const std::unique_ptr<BootstrapCollectives> invited = await_admission(at, rank, split, deadline);
  const Admission admission = admission_in(invited->welcome(), rank, size);
  auto host = meet_for(admission, rank, split, invited.get(), deadline);
  return {std::make_unique<ProcessRendezvous>(rank, split, at, nullptr, std::move(host),
                                              admission.ranks()),
          admission};
}

// After the ranks of all hosts have met, each sends its place to the others.
std::unique_ptr<Rendezvous> tcp_rendezvous(const TcpEndpoint& endpoint, int rank,
                                           const std::vector<int>& split, Deadline deadline,
                                           const LocalLaunch& launch) {
  check_rank(rank, static_cast<int>(split.size()));
  Roster roster{.endpoint = tcp_endpoint(endpoint),
                .self = own_hello(endpoint.group, rank, split),
                .ranks = all_ranks(split),
                .launch = launch};
  auto across = join(roster, deadline);

  const std::string mine = own_place(roster.self);
  const HostMeeting here = host_meeting(across->all_gather(mine, deadline), rank, mine, split);
  const AdmissionAddress admits_at = tcp_admission_address(roster.endpoint);
  roster.ranks = here.ranks;  // the ranks of another host meet at another address
  auto host = meet_beside(*across, here.address, std::move(roster), here.nodes, deadline);
  return std::make_unique<ProcessRendezvous>(rank, here.nodes, admits_at, std::move(across),
                                             std::move(host));
}

}  // namespace ferry::internal

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

// Puts texts in ascending order of ranks. `ranks` has the rank of each text: first the coordinator,
// which may be any rank, then the others in ascending order.
std::vector<std::string> by_rank(std::vector<std::string> texts, const std::vector<int>& ranks) {
  const auto before = std::ranges::count_if(ranks, [&](int rank) { return rank < ranks[0]; });
  std::rotate(texts.begin(), texts.begin() + 1, texts.begin() + 1 + before);
  return texts;
}

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
    // No rank goes on before all ranks have opened the pidfds, so that no pidfd is of a reused pid.
    collectives_->all_gather("", deadline);
  }

  std::vector<std::string> all_gather(std::string_view mine, Deadline deadline) {
    return by_rank(collectives_->all_gather(mine, deadline), roster_.ranks);
  }

  // Collective: the coordinator makes a segment for each node, and every rank maps the one of its
  // node. Returns null if there is none; at least one rank then has the reason in `problem`.
  std::shared_ptr<Segment> share_segment(std::size_t bytes, Deadline deadline,
                                         std::optional<Error>& problem) {
    try {
      const bool coordinates = roster_.self.rank == roster_.coordinator();
      return coordinates ? offer(bytes, deadline) : take(bytes, deadline);
    } catch (const Error& error) {
      problem = error;
      return nullptr;
    }
  }

  // Collective: the coordinator sends its segment to the others, or a new one if it has none.
  std::shared_ptr<Segment> pass_on(std::shared_ptr<Segment> mine, std::size_t bytes,
                                   Deadline deadline, std::optional<Error>& problem) {
    try {
      if (roster_.self.rank != roster_.coordinator()) {
        std::shared_ptr<Segment> taken = take(bytes, deadline);
        return mine ? mine : taken;
      }
      if (!mine) mine = Segment::create(bytes);
      Handouts handouts;
      for (std::size_t place = 0; place < roster_.size(); ++place)
        handouts.push_back(duplicate(mine->fd()));
      collectives_->hand_out(handouts, deadline);
      return mine;
    } catch (const Error& error) {
      problem = error;
      return nullptr;
    }
  }

  BootstrapCollectives& collectives() noexcept { return *collectives_; }
  bool has(int rank) const { return roster_.place(rank) >= 0; }
  bool alive(int rank) const noexcept { return liveness_.alive(roster_.place(rank)); }
  int kill(int rank) const noexcept { return liveness_.kill(roster_.place(rank)); }
  int pid(int rank) const noexcept { return liveness_.pid(roster_.place(rank)); }

 private:
  // Duplicates a descriptor for a frame: a frame that is still in a queue at the deadline outlives
  // the segment.
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
  roster.endpoint = unix_endpoint(address, static_cast<int>(nodes.size()));
  roster.self.address = address;
  return std::make_unique<Host>(std::move(roster), nodes, deadline);
}

// Collective: which of these ranks are of this host. Ranks of a node share memory, and so a
// process cannot take the place of a rank whose node has members on another host.
std::vector<int> ranks_here(BootstrapCollectives& across, const Roster& roster,
                            const std::vector<int>& nodes, Deadline deadline) {
  const std::vector<std::string> hosts = across.all_gather(identity(roster.self), deadline);
  std::map<int, std::size_t> first;  // by node
  std::vector<int> here;
  for (std::size_t place = 0; place < roster.size(); ++place) {
    const int rank = roster.ranks[place], node = nodes[static_cast<std::size_t>(rank)];
    const std::size_t other = first.try_emplace(node, place).first->second;
    if (hosts[other] != hosts[place]) {
      throw Error(
          Code::kInvalidArgument,
          fmt::format("rank {} is of the node of rank {}, and their processes are on "
                      "different hosts or cannot share memory",
                      std::max(rank, roster.ranks[other]), std::min(rank, roster.ranks[other])),
          rank);
    }
    if (hosts[place] == identity(roster.self)) here.push_back(rank);
  }
  std::ranges::sort(here);
  return here;
}

// As meet_on_host(), for the ranks of one of several hosts or nodes. The ranks of all of them have
// met before, in the collectives `across`, which also pass an error on to the others.
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

class ProcessRendezvous final : public Rendezvous {
 public:
  // `across`: the collectives of all hosts, or null if all ranks are on this host. `ranks`: empty
  // for all.
  ProcessRendezvous(int rank, const std::vector<int>& nodes, AdmissionAddress at,
                    std::unique_ptr<BootstrapCollectives> across, std::unique_ptr<Host> host,
                    const std::vector<int>& ranks = {})
      : Rendezvous(rank, nodes, ranks),
        admission_address_(std::move(at)),
        places_(this->ranks()),
        across_(std::move(across)),
        host_(std::move(host)) {}

  // For the ranks of an admission, which meet anew. `invited`: the connections of the invitation on
  // its coordinator and on newcomers, null on other members.
  ProcessRendezvous(int rank, const Admission& admission, AdmissionAddress at,
                    BootstrapCollectives* invited, Deadline deadline)
      : Rendezvous(rank, admission.nodes, admission.ranks()), admission_address_(std::move(at)) {
    Roster roster{{}, own_hello(admission.name, rank, nodes()), ranks()};
    roster.outer = invited;
    const auto coordinator = std::ranges::find(roster.ranks, admission.coordinator);
    std::rotate(roster.ranks.begin(), coordinator, coordinator + 1);
    places_ = roster.ranks;
    if (admission.place.empty()) {
      host_ = meet_on_host(admission.name, roster, nodes(), deadline);
    } else {
      roster.endpoint = admission_endpoint(admission_address_.endpoint.tcp, admission);
      across_ = join(roster, deadline);
      roster.ranks = ranks_here(*across_, roster, nodes(), deadline);
      const std::string name = fmt::format("{} {}", admission.name, roster.ranks.front());
      host_ = meet_beside(*across_, name, roster, nodes(), deadline);
    }
    if (num_nodes(nodes()) == 1) return;
    roster.ranks = admission.led_node_ranks(rank);
    const std::string name = fmt::format("{} node {}", admission.name, nodes()[rank]);
    node_ = meet_beside(across_ ? *across_ : host_->collectives(), name, roster, nodes(), deadline);
  }

  std::vector<std::string> all_gather(std::string_view mine, Deadline deadline) override {
    return across_ ? by_rank(across_->all_gather(mine, deadline), places_)
                   : host_->all_gather(mine, deadline);
  }

  std::shared_ptr<Segment> share_segment(std::size_t bytes, Deadline deadline) override {
    std::optional<Error> problem;
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

  std::unique_ptr<BootstrapCollectives> await_newcomers(Admission& admission,
                                                        Deadline deadline) override {
    if (across_) {
      const TcpEndpoint& first = admission_address_.endpoint.tcp;
      admission.place =
          meeting_text(own_address(first.interfaces, across_->local_address(), first.address.port));
    }
    return internal::await_newcomers(admission_address_, admission, deadline);
  }

  std::unique_ptr<Rendezvous> among(const Admission& admission, BootstrapCollectives* invited,
                                    Deadline deadline) override {
    return std::make_unique<ProcessRendezvous>(rank(), admission, admission_address_, invited,
                                               deadline);
  }

  std::shared_ptr<Segment> pass_on(std::shared_ptr<Segment> mine, std::size_t bytes,
                                   Deadline deadline) override {
    all_gather("", deadline);
    std::optional<Error> problem;
    Host& node = node_ ? *node_ : *host_;
    std::shared_ptr<Segment> segment = node.pass_on(std::move(mine), bytes, deadline, problem);
    check_shared(all_gather(share_reply(bytes, problem), deadline), ranks());
    FERRY_CHECK(segment.get(), !=, nullptr);
    return segment;
  }

 private:
  AdmissionAddress admission_address_;
  std::vector<int> places_;  // Roster::ranks of `across_`
  std::unique_ptr<BootstrapCollectives> across_;
  std::unique_ptr<Host> host_;
  std::unique_ptr<Host> node_;  // after an admission of several nodes: the ranks of this node
};

// The hello of a process before the ranks of its group have met.
Hello first_hello(const std::string& address, int rank, const GroupRanks& ranks) {
  check_rank(rank, ranks.size());
  Hello hello = own_hello(address, rank, ranks.split);
  if (std::ssize(ranks.members) < ranks.size()) hello.members = rank_list(ranks.members);
  return hello;
}

}  // namespace

std::unique_ptr<Rendezvous> process_rendezvous(const std::string& address, int rank,
                                               const GroupRanks& ranks, Deadline deadline,
                                               const LocalLaunch& launch) {
  const std::vector<int>& nodes = ranks.split;
  Roster roster{{}, first_hello(address, rank, ranks), ranks.members, launch};
  auto host = meet_on_host(address, std::move(roster), nodes, deadline);
  return std::make_unique<ProcessRendezvous>(rank, nodes, unix_admission_address(address, nodes),
                                             nullptr, std::move(host), ranks.members);
}

std::pair<std::unique_ptr<Rendezvous>, Admission> newcomer_rendezvous(const AdmissionAddress& at,
                                                                      int rank, Deadline deadline) {
  const int size = static_cast<int>(at.split.size());
  check_rank(rank, size);
  const std::unique_ptr<BootstrapCollectives> invited = await_admission(at, rank, deadline);
  const Admission admission = admission_in(invited->welcome(), rank, size);
  return {std::make_unique<ProcessRendezvous>(rank, admission, at, invited.get(), deadline),
          admission};
}

// After the ranks of all hosts have met, each sends its place to the others.
std::unique_ptr<Rendezvous> tcp_rendezvous(const TcpEndpoint& endpoint, int rank,
                                           const GroupRanks& ranks, Deadline deadline,
                                           const LocalLaunch& launch) {
  Roster roster{.endpoint = tcp_endpoint(endpoint),
                .self = first_hello(endpoint.group, rank, ranks),
                .ranks = ranks.members,
                .launch = launch};
  auto across = join(roster, deadline);

  const std::string mine = own_place(roster.self, rank == ranks.members[0]);
  const HostMeeting here = host_meeting(across->all_gather(mine, deadline), rank, mine, ranks);
  const AdmissionAddress admits_at = tcp_admission_address(roster.endpoint, ranks.split);
  roster.ranks = here.ranks;  // the ranks of another host meet at another address
  auto host = meet_beside(*across, here.address, std::move(roster), here.nodes, deadline);
  return std::make_unique<ProcessRendezvous>(rank, here.nodes, admits_at, std::move(across),
                                             std::move(host), ranks.members);
}

}  // namespace ferry::internal

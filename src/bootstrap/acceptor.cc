// Accepting, challenging and hearing connections of anyone; who is a rank gets its place.
#include "bootstrap/acceptor.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>

#include "bootstrap/agree.h"
#include "bootstrap/socket.h"

namespace ferry::internal {
namespace {

constexpr int kPollMs = 100;
constexpr useconds_t kListenPauseUs = 2000;
// After a misfit, how long to wait for ranks that are on their way, so that they hear it too.
constexpr std::chrono::seconds kLinger{1};
// Connections that have not said hello, beyond one per rank; then the oldest is dropped. It can try
// again.
constexpr std::size_t kMaxStrangers = 64;

// A connection that has not yet shown who it is. Nothing that it sends is believed, takes memory or
// holds up the others before that.
struct Guest {
  std::unique_ptr<Connection> connection;
  Handshake handshake;
};

// An earlier group may still be closing its listener: it is waited for until the deadline.
Descriptor listen(const Roster& roster, Deadline deadline) {
  const Endpoint& endpoint = roster.endpoint;
  bool asked = endpoint.local();  // on one host every other holder goes by itself
  while (true) {
    if (Descriptor listener = listen_at(endpoint)) return listener;
    if (asked && !deadline.passed()) {
      usleep(kListenPauseUs);
      continue;
    }
    const Holder holder = holder_of(endpoint);
    asked = true;
    if (holder.is_another_job) {
      throw Error(Code::kInvalidArgument,
                  fmt::format("rank {} cannot listen at {}: {} meets there; give each job a port "
                              "(FERRY_PORT)",
                              roster.coordinator(), endpoint.name, holder.who));
    }
    if (deadline.passed()) {
      throw Error(Code::kTimeout,
                  fmt::format("rank {} cannot listen at {}: {} has held it until the deadline",
                              roster.coordinator(), endpoint.name, holder.who));
    }
  }
}

class Acceptor {
 public:
  Acceptor(const Roster& roster, Deadline deadline)
      : roster_(roster),
        deadline_(deadline),
        listener_(listen(roster, deadline)),
        members_(roster.size()) {}

  std::vector<Peer> run() {
    while (!absent().empty() && !until().passed()) {
      service(connections(), until().remaining_ms(kPollMs), listener_.fd());
      accept_guests();
      hear_guests();
      watch_members();
    }
    if (!problem_ && !absent().empty())
      object({Code::kTimeout, missing_text() + refused(), absent()[0]});
    if (!problem_) return std::move(members_);
    flush_all(connections(), Deadline::after(std::chrono::seconds(1)));
    throw *problem_;
  }

 private:
  bool local() const noexcept { return roster_.endpoint.local(); }
  Deadline until() const noexcept { return problem_ ? *linger_ : deadline_; }

  void accept_guests() {
    while (Descriptor socket = accept_from(listener_)) {
      Guest guest{std::make_unique<Connection>(std::move(socket)), {}};
      if (!local()) {
        guest.connection->send(FrameKind::kChallenge, 0,
                               guest.handshake.challenge(*roster_.endpoint.secret));
      } else if (is_other_user(*guest.connection)) {
        continue;
      }
      guests_.push_back(std::move(guest));
      if (guests_.size() > roster_.size() + kMaxStrangers) guests_.erase(guests_.begin());
    }
    if (errno != EMFILE && errno != ENFILE && errno != ENOMEM && errno != ENOBUFS) return;
    object({Code::kSystem,
            fmt::format("rank {} cannot accept more connections: {} (it needs one descriptor per "
                        "rank: ulimit -n)",
                        roster_.coordinator(), std::strerror(errno)),
            roster_.coordinator()});
  }

  bool is_other_user(Connection& connection) {
    const Credentials& who = connection.credentials();
    if (who.uid == geteuid()) return false;
    refused_ = fmt::format(
        "pid {} runs as uid {}, rank {} (pid {}) as uid {}: ranks of one group share their user",
        who.pid, who.uid, roster_.coordinator(), getpid(), geteuid());
    connection.send_failure(Error(Code::kInvalidArgument, refused_));
    return true;
  }

  void hear_guests() {
    for (Guest& guest : guests_) {
      const std::optional<Frame> frame = guest.connection->take();
      if (!frame && !guest.connection->closed()) continue;
      if (const auto hello = frame ? hello_in(guest, *frame) : std::nullopt) {
        receive(std::move(guest.connection), *hello);
        continue;
      }
      refused_ =
          fmt::format("pid {} connected without a hello", guest.connection->credentials().pid);
      ++num_failed_;
      guest.connection.reset();
    }
    std::erase_if(guests_, [](const Guest& guest) { return !guest.connection; });
  }

  // Nullopt when it is not what a rank of this job sends.
  std::optional<Hello> hello_in(Guest& guest, const Frame& frame) {
    if (frame.kind != FrameKind::kHello) return std::nullopt;
    if (local()) return decode_hello(frame.payload);
    const Secret& secret = *roster_.endpoint.secret;
    const auto text = guest.handshake.proven(Handshake::Side::kMember, secret, frame.payload);
    if (!text) return std::nullopt;
    guest.connection->send(
        FrameKind::kProof, 0,
        guest.handshake.prove(Handshake::Side::kCoordinator, secret, encode(roster_.self)));
    return decode_hello(*text);
  }

  // Groups of one job may come to one port at the same time; the other tries again later.
  void receive(std::unique_ptr<Connection> connection, const Hello& hello) {
    if (local() || hello.address == roster_.self.address) {
      give_place(std::move(connection), hello);
      return;
    }
    connection->send(FrameKind::kElsewhere, 0, roster_.self.address);
    misfits_.push_back(std::move(connection));
  }

  // A rank that does not fit gets its place all the same, so that it counts as come.
  void give_place(std::unique_ptr<Connection> connection, const Hello& hello) {
    const int place = hello.rank == roster_.coordinator() ? -1 : roster_.place(hello.rank);
    Peer* member = place < 0 ? nullptr : &members_[static_cast<std::size_t>(place)];
    const std::string differs =
        local() ? disagreement_on_host(roster_.self, hello) : disagreement(roster_.self, hello);
    if (!differs.empty()) {
      object({Code::kMismatch, differs, hello.rank});
    } else if (member == nullptr) {
      object({Code::kInvalidArgument,
              fmt::format("{} says it is rank {}; rank {} of {} waits for {}", who(hello),
                          hello.rank, roster_.coordinator(), roster_.self.size,
                          rank_list({roster_.ranks.begin() + 1, roster_.ranks.end()}))});
    } else if (member->connection) {
      object({Code::kInvalidArgument,
              fmt::format("two processes say they are rank {}: {} and {}", hello.rank, member->who,
                          who(hello)),
              hello.rank});
    }
    if (problem_) connection->send_failure(*problem_);
    if (member == nullptr || member->connection) {
      misfits_.push_back(std::move(connection));
      return;
    }
    connection->trust();
    *member = {std::move(connection), who(hello)};
  }

  // Members have nothing to say yet, unless they give up; and they may end.
  void watch_members() {
    for (std::size_t place = 1; place < members_.size(); ++place) {
      const Peer& member = members_[place];
      const int rank = roster_.ranks[place];
      if (!member.connection) continue;
      const std::optional<Frame> frame = member.connection->take();
      if (frame && frame->kind == FrameKind::kFailure) {
        object(given_up(failure_in(frame->payload), rank, absent()));
      } else if (member.connection->closed()) {
        object({Code::kPeerLost,
                fmt::format("rank {} ({}) ended or left while {} had not come", rank, member.who,
                            rank_list(absent())),
                rank});
      }
    }
  }

  // The first problem counts. Who is there hears it now, who comes within the linger hears it then;
  // between hosts, only those that have proved that they are of this job.
  void object(const Error& problem) {
    if (problem_) return;
    problem_ = problem;
    linger_ = deadline_.sooner(kLinger);
    for (const Guest& guest : guests_) {
      if (local() && guest.connection) guest.connection->send_failure(problem);
    }
    for (const Peer& member : members_) {
      if (member.connection) member.connection->send_failure(problem);
    }
  }

  std::string who(const Hello& hello) const {
    return local() ? fmt::format("pid {}", hello.pid)
                   : fmt::format("pid {}, host {}", hello.pid, hello.host);
  }

  std::vector<int> absent() const {
    std::vector<int> ranks;
    for (std::size_t place = 1; place < members_.size(); ++place) {
      if (!members_[place].connection) ranks.push_back(roster_.ranks[place]);
    }
    return ranks;
  }

  std::string missing_text() const {
    return fmt::format("{} of {} did not come to {} before the deadline; they must run {}",
                       rank_list(absent()), roster_.self.size, roster_.endpoint.name,
                       roster_.endpoint.advice);
  }

  // Why somebody was turned away, if anybody was.
  std::string refused() const {
    if (local()) return refused_.empty() ? "" : "; refused: " + refused_;
    if (num_failed_ == 0) return "";
    return fmt::format("; {} connection{} failed authentication (no or another FERRY_SECRET)",
                       num_failed_, num_failed_ == 1 ? "" : "s");
  }

  std::vector<Connection*> connections() const {
    std::vector<Connection*> all;
    for (const Guest& guest : guests_) all.push_back(guest.connection.get());
    for (const Peer& member : members_) all.push_back(member.connection.get());
    for (const auto& misfit : misfits_) all.push_back(misfit.get());
    return all;
  }

  const Roster& roster_;
  const Deadline deadline_;
  const Descriptor listener_;
  std::vector<Guest> guests_;
  std::vector<Peer> members_;
  std::vector<std::unique_ptr<Connection>> misfits_;  // told why, and kept until they hear it
  std::string refused_;                               // the last one, on this host
  int num_failed_ = 0;                                // proofs, between hosts
  std::optional<Error> problem_;
  std::optional<Deadline> linger_;
};

}  // namespace

std::vector<Peer> accept_members(const Roster& roster, Deadline deadline) {
  if (roster.size() == 1) return std::vector<Peer>(1);
  return Acceptor(roster, deadline).run();
}

}  // namespace ferry::internal

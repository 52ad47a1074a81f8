// Accepts the connections of any process and challenges them. A process that is a rank of the group
// gets its place.
#include "bootstrap/acceptor.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "base/bytes.h"
#include "base/check.h"
#include "bootstrap/agree.h"
#include "bootstrap/endpoint_check.h"
#include "bootstrap/guest.h"
#include "bootstrap/socket.h"

namespace ferry::internal {
namespace {

// How long this rank waits after an error for ranks that have not connected yet, so that they
// receive the error, too.
constexpr std::chrono::milliseconds kLinger{500};

class Acceptor {
 public:
  Acceptor(const Roster& roster, Deadline deadline);
  std::vector<Peer> run();

 private:
  bool local() const noexcept { return roster_.endpoint.local(); }
  Deadline until() const noexcept { return problem_ ? *linger_ : deadline_; }

  bool reserve();
  bool has_room() const;
  bool oldest_had_its_time() const;
  void accept_guests();
  bool give_way();
  void welcome_guest(Descriptor socket);
  void no_descriptors();
  bool is_other_user(Connection& connection);
  void read_guests();
  std::optional<Hello> hello_in(Guest& guest, const Frame& frame);
  void receive(std::unique_ptr<Connection> connection, const Hello& hello);
  void send_away(std::unique_ptr<Connection> connection, const std::string& why);
  void give_place(std::unique_ptr<Connection> connection, const Hello& hello);
  void watch_members();
  void watch_local_ranks();
  void watch_other_hosts();
  void watch_endpoint();
  void watch_caller();
  void object(const Error& problem);
  std::string who(const Hello& hello) const;
  std::string awaited_instead_of(const Hello& hello) const;
  std::vector<int> absent() const;
  std::string missing_text() const;
  std::string refused() const;
  std::vector<Connection*> connections() const;

  const Roster& roster_;
  const Deadline deadline_;
  const ParentSocket listener_;
  const std::size_t most_strangers_ = most_strangers();
  // Whether the next connection cannot get a descriptor until a stranger is dropped.
  bool no_descriptor_ = false;
  std::vector<ParentSocket> reserved_;  // duplicates of the listener, which reserve descriptors
  std::vector<Guest> guests_;
  std::vector<Peer> members_;
  std::vector<std::unique_ptr<Connection>> misfits_;  // open until they have received an error
  std::string refused_;  // why the last connection was refused, on one host
  int num_failed_ = 0;   // the number of failed proofs, between hosts
  LocalRanks local_ranks_;
  EndpointCheck check_;
  std::optional<Error> problem_;
  std::optional<Deadline> linger_;
};

Acceptor::Acceptor(const Roster& roster, Deadline deadline)
    : roster_(roster),
      deadline_(deadline),
      listener_(listen_patiently(roster, deadline)),
      members_(roster.size()),
      local_ranks_(roster.launch, roster.coordinator()),
      check_(roster) {
  if (!reserve()) no_descriptors();
}

std::vector<Peer> Acceptor::run() {
  while (!absent().empty() && !until().passed()) {
    const bool room = has_room();
    service(connections(), until().remaining_ms(room ? Deadline::kLongestSleepMs : kStrangerMs),
            room ? listener_.fd() : -1);
    accept_guests();
    watch_members();  // first, as another process may come for a member that has ended
    read_guests();
    watch_local_ranks();
    watch_other_hosts();
    watch_endpoint();
    watch_caller();
    if (!problem_) reserve();  // gets back descriptors that a stranger took for a while
  }
  if (!problem_ && !absent().empty())
    object(ended(deadline_, roster_.coordinator(),
                 {Code::kTimeout, missing_text() + refused(), absent()[0]}));
  if (!problem_) {
    FERRY_CHECK(absent().size(), ==, 0U);
    return std::move(members_);
  }
  flush_all(connections(), Deadline::after(std::chrono::seconds(1)));
  throw *problem_;
}

// Reserves a descriptor for each rank that has not connected, so that strangers and the rest of the
// process cannot take it. Returns false if there are not enough.
bool Acceptor::reserve() {
  const std::size_t needed = absent().size();
  while (reserved_.size() > needed) reserved_.pop_back();
  while (reserved_.size() < needed) {
    Descriptor copy(fcntl(listener_.fd(), F_DUPFD_CLOEXEC, 0));
    if (!copy) return false;
    reserved_.emplace_back(std::move(copy));
  }
  FERRY_CHECK(reserved_.size(), ==, needed);
  return true;
}

bool Acceptor::has_room() const {
  const bool full = no_descriptor_ || guests_.size() >= absent().size() + most_strangers_;
  return !full || guests_.empty() || oldest_had_its_time();
}

bool Acceptor::oldest_had_its_time() const {
  return !guests_.empty() && now_ns() - guests_.front().since_ns > kStrangerNs;
}

void Acceptor::accept_guests() {
  while (has_room()) {
    Descriptor socket = accept_from(listener_.descriptor());
    const bool refused = errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS;
    no_descriptor_ = !socket && refused && !give_way();
    if (no_descriptor_ && guests_.empty()) no_descriptors();
    if (!socket && (!refused || no_descriptor_)) return;
    if (!socket) continue;
    welcome_guest(std::move(socket));
    if (guests_.size() > absent().size() + most_strangers_) guests_.erase(guests_.begin());
  }
}

// Frees a descriptor: that of the oldest stranger if kStrangerNs have passed, else a reserved one.
bool Acceptor::give_way() {
  if (oldest_had_its_time()) {
    guests_.erase(guests_.begin());
  } else if (!reserved_.empty()) {
    reserved_.pop_back();
  } else {
    return false;
  }
  return true;
}

void Acceptor::welcome_guest(Descriptor socket) {
  auto connection = std::make_unique<Connection>(std::move(socket));
  if (local() && is_other_user(*connection)) return;
  guests_.push_back({std::move(connection), std::nullopt, now_ns()});
  if (local()) return;
  Guest& guest = guests_.back();
  guest.connection->await_keys_behind(FrameKind::kHello);
  guest.handshake.emplace(*roster_.endpoint.secret, Handshake::Side::kCoordinator);
  guest.connection->send(FrameKind::kChallenge, 0, guest.handshake->share());
}

void Acceptor::no_descriptors() {
  reserved_.clear();  // ranks that still connect need these descriptors to get the error
  object({Code::kSystem,
          fmt::format("rank {} cannot accept more connections: {} (it needs one descriptor per "
                      "rank: ulimit -n)",
                      roster_.coordinator(), std::strerror(errno)),
          roster_.coordinator()});
}

bool Acceptor::is_other_user(Connection& connection) {
  const Credentials& who = connection.credentials();
  if (who.uid == geteuid()) return false;
  refused_ = fmt::format(
      "pid {} runs as uid {}, rank {} (pid {}) as uid {}: ranks of one group share their user",
      who.pid, who.uid, roster_.coordinator(), getpid(), geteuid());
  connection.send_failure(Error(Code::kInvalidArgument, refused_));
  return true;
}

void Acceptor::read_guests() {
  for (Guest& guest : guests_) {
    const std::optional<Frame> frame = guest.connection->take();
    if (!frame && !guest.connection->closed()) continue;
    if (const auto hello = frame ? hello_in(guest, *frame) : std::nullopt) {
      watch_members();  // an earlier process of the same rank may have ended since it got its place
      receive(std::move(guest.connection), *hello);
      continue;
    }
    refused_ = fmt::format("pid {} connected without a hello", guest.connection->credentials().pid);
    ++num_failed_;
    guest.connection.reset();
  }
  std::erase_if(guests_, [](const Guest& guest) { return !guest.connection; });
  std::erase_if(misfits_, [](const auto& misfit) { return misfit->closed(); });
}

// Returns nullopt if the frame is not a hello of a rank of this job. A rank whose hello
// has another version of the protocol receives the error unsealed, since it could not open a sealed
// error.
std::optional<Hello> Acceptor::hello_in(Guest& guest, const Frame& frame) {
  if (frame.kind != FrameKind::kHello || frame.call != 0) return std::nullopt;
  if (local()) return decode_hello(frame.payload);
  ByteReader reader(frame.payload);
  const std::string_view share = as_text(reader.take(Handshake::kShareBytes));
  if (!guest.handshake->take_share(share)) return std::nullopt;
  const auto text = guest.handshake->open(as_text(reader.rest()));
  if (!text) return std::nullopt;
  guest.connection->send(FrameKind::kProof, 0, guest.handshake->seal(encode(roster_.self)));
  std::optional<Hello> hello = decode_hello(*text);
  if (hello && hello->protocol == roster_.self.protocol)
    guest.connection->protect(guest.handshake->record_keys());
  return hello;
}

// Ranks of another group of this job may come to the port while this group meets there. Such a rank
// is sent away, and tries again later.
void Acceptor::receive(std::unique_ptr<Connection> connection, const Hello& hello) {
  if (local() || hello.address == roster_.self.address) {
    give_place(std::move(connection), hello);
    return;
  }
  send_away(std::move(connection),
            fmt::format("another group of this job met there: {}", roster_.self.address));
}

void Acceptor::send_away(std::unique_ptr<Connection> connection, const std::string& why) {
  connection->send(FrameKind::kElsewhere, 0, why);
  misfits_.push_back(std::move(connection));
}

// Gives a rank its place, even if it does not fit, so that it no longer counts as missing. An
// admission that does not name the rank sends it away: a later one may name it.
void Acceptor::give_place(std::unique_ptr<Connection> connection, const Hello& hello) {
  if (is_same_process(hello, roster_.self)) return;  // EndpointCheck
  const int place = hello.rank == roster_.coordinator() ? -1 : roster_.place(hello.rank);
  Peer* member = place < 0 ? nullptr : &members_[static_cast<std::size_t>(place)];
  const std::string differs =
      local() ? disagreement_on_host(roster_.self, hello) : disagreement(roster_.self, hello);
  const bool admits = !roster_.welcome.empty();
  if (admits && member == nullptr) {
    if (differs.empty()) return send_away(std::move(connection), awaited_instead_of(hello));
    connection->send_failure(Error(Code::kMismatch, differs, hello.rank));
    misfits_.push_back(std::move(connection));
    return;
  }
  const auto claim_both = [&](const std::string& other) {
    object(
        {Code::kInvalidArgument,
         fmt::format("two processes claim to be rank {}: {} and {}", hello.rank, other, who(hello)),
         hello.rank});
  };
  if (!differs.empty()) {
    object({Code::kMismatch, differs, hello.rank});
  } else if (hello.rank == roster_.coordinator()) {
    claim_both(who(roster_.self));
  } else if (member == nullptr) {
    object({Code::kInvalidArgument, awaited_instead_of(hello)});
  } else if (member->connection) {
    claim_both(member->who);
  }
  if (problem_) connection->send_failure(*problem_);
  if (member == nullptr || member->connection) {
    misfits_.push_back(std::move(connection));
    return;
  }
  FERRY_CHECK(place, >, 0);  // the coordinator's own place is 0
  connection->trust();
  if (!problem_) connection->send(FrameKind::kAccepted, 0, "");
  *member = {std::move(connection), who(hello)};
}

// Looks for failed members. Before all ranks have connected, a member sends only failures, or its
// process may end.
void Acceptor::watch_members() {
  for (std::size_t place = 1; place < members_.size(); ++place) {
    const Peer& member = members_[place];
    const int rank = roster_.ranks[place];
    if (!member.connection) continue;
    const std::optional<Frame> frame = member.connection->take();
    if (frame && frame->kind == FrameKind::kFailure) {
      object(given_up(failure_in(frame->payload), rank, absent(), missing_text()));
    } else if (member.connection->closed()) {
      object(lost(*member.connection, rank, member.who, roster_.coordinator(),
                  fmt::format("while {} had not come", rank_list(absent()))));
    }
  }
}

// Reports a rank of this host that has ended before it connected, since it will not connect.
void Acceptor::watch_local_ranks() {
  const auto ended = problem_ ? std::nullopt : local_ranks_.ended(absent());
  if (!ended) return;
  object({Code::kPeerLost,
          fmt::format("rank {} ended before it joined: {}", *ended, local_ranks_.reason()),
          *ended});
}

void Acceptor::watch_other_hosts() {
  if (problem_ || roster_.outer == nullptr) return;
  try {
    roster_.outer->look();
  } catch (const Error& error) {
    // The coordinator of all hosts only knows that this rank did not connect to it. So its error is
    // replaced by the names of the local ranks that are missing.
    const bool only_late = error.code() == Code::kTimeout && error.culprit() == roster_.self.rank;
    const std::vector<int> awaited = only_late ? absent() : std::vector<int>();
    object(awaited.empty() ? error : Error(error.code(), missing_text() + refused(), awaited[0]));
  }
}

void Acceptor::watch_endpoint() {
  if (problem_) return;
  if (const auto problem = check_.problem()) object(*problem);
}

// The caller may know that a rank will not come. The other ranks find that out too, so this rank
// does not wait kLinger for them.
void Acceptor::watch_caller() {
  deadline_.look([this](const Error& why) { object(why), linger_ = deadline_.earlier({}); });
}

// Records the first problem. It is sent to all connected ranks at once, and to ranks that connect
// within kLinger when they do. Between hosts, only ranks that have proved that they know the secret
// receive it.
void Acceptor::object(const Error& problem) {
  if (problem_) return;
  problem_ = problem;
  linger_ = deadline_.earlier(kLinger);
  for (const Guest& guest : guests_) {
    if (local() && guest.connection) guest.connection->send_failure(problem);
  }
  for (const Peer& member : members_) {
    if (member.connection) member.connection->send_failure(problem);
  }
}

std::string Acceptor::who(const Hello& hello) const {
  return local() ? fmt::format("pid {}", hello.pid)
                 : fmt::format("pid {}, host {}", hello.pid, hello.host);
}

std::string Acceptor::awaited_instead_of(const Hello& hello) const {
  return fmt::format("{} claims to be rank {}; rank {} of {} waits for {}", who(hello), hello.rank,
                     roster_.coordinator(), roster_.self.size,
                     rank_list({roster_.ranks.begin() + 1, roster_.ranks.end()}));
}

std::vector<int> Acceptor::absent() const {
  std::vector<int> ranks;
  for (std::size_t place = 1; place < members_.size(); ++place) {
    if (!members_[place].connection) ranks.push_back(roster_.ranks[place]);
  }
  return ranks;
}

std::string Acceptor::missing_text() const {
  return fmt::format("{} of {} did not come to {} before the deadline; they must run {}",
                     rank_list(absent()), roster_.self.size, roster_.endpoint.name,
                     roster_.endpoint.advice);
}

// Why connections were refused. Empty if none was.
std::string Acceptor::refused() const {
  if (local()) return refused_.empty() ? "" : "; refused: " + refused_;
  if (num_failed_ == 0) return "";
  return fmt::format("; {} connection{} failed authentication (no or another FERRY_SECRET)",
                     num_failed_, num_failed_ == 1 ? "" : "s");
}

std::vector<Connection*> Acceptor::connections() const {
  std::vector<Connection*> all;
  for (const Guest& guest : guests_) all.push_back(guest.connection.get());
  for (const Peer& member : members_) all.push_back(member.connection.get());
  for (const auto& misfit : misfits_) all.push_back(misfit.get());
  return all;
}

}  // namespace

std::vector<Peer> accept_members(const Roster& roster, Deadline deadline) {
  if (roster.size() == 1) return std::vector<Peer>(1);
  return Acceptor(roster, deadline).run();
}

}  // namespace ferry::internal

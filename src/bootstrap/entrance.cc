// Accepting, challenging and hearing connections of anyone.
#include "bootstrap/entrance.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace ferry::internal {
namespace {

// Connections that have not said hello, beyond one per rank; then the oldest is dropped. It can try
// again.
constexpr std::size_t kMaxStrangers = 64;
constexpr useconds_t kListenPauseUs = 2000;

}  // namespace

Entrance::Entrance(const Party& party, Deadline deadline) : party_(party) {
  const Door& door = party.door;
  bool asked = !door.secret;  // on one host every other holder goes by itself
  while (!(listener_ = door.listen())) {
    if (asked && !deadline.passed()) {
      usleep(kListenPauseUs);
      continue;
    }
    const Door::Holder holder = door.holder();
    asked = true;
    if (holder.another_job) {
      throw Error(Code::kInvalidArgument,
                  fmt::format("rank {} cannot listen at {}: {} meets there; give each job a port "
                              "(FERRY_PORT)",
                              party.hub(), door.name, holder.who));
    }
    if (deadline.passed()) {
      throw Error(Code::kTimeout,
                  fmt::format("rank {} cannot listen at {}: {} has held it until the deadline",
                              party.hub(), door.name, holder.who));
    }
  }
}

std::vector<Entrance::Arrival> Entrance::arrivals(std::optional<Error>& problem) {
  accept(problem);
  std::vector<Arrival> arrivals;
  for (Guest& guest : guests_) {
    const std::optional<Frame> frame = guest.connection->take();
    if (!frame && !guest.connection->closed()) continue;
    if (const auto hello = frame ? hello_in(guest, *frame) : std::nullopt) {
      arrivals.push_back({std::move(guest.connection), *hello});
      continue;
    }
    refused_ = fmt::format("pid {} connected without a hello", guest.connection->credentials().pid);
    ++num_failed_;
    guest.connection.reset();
  }
  std::erase_if(guests_, [](const Guest& guest) { return !guest.connection; });
  return arrivals;
}

void Entrance::accept(std::optional<Error>& problem) {
  while (Descriptor socket = accept_from(listener_)) {
    Guest guest{std::make_unique<Connection>(std::move(socket)), {}};
    if (party_.door.secret) {
      guest.connection->send(Kind::kChallenge, 0, guest.handshake.challenge(*party_.door.secret));
    } else if (is_other_user(*guest.connection)) {
      continue;
    }
    guests_.push_back(std::move(guest));
    if (guests_.size() > party_.size() + kMaxStrangers) guests_.erase(guests_.begin());
  }
  if (errno != EMFILE && errno != ENFILE && errno != ENOMEM && errno != ENOBUFS) return;
  problem.emplace(Code::kSystem,
                  fmt::format("rank {} cannot accept more connections: {} (it needs one descriptor "
                              "per rank: ulimit -n)",
                              party_.hub(), std::strerror(errno)));
}

bool Entrance::is_other_user(Connection& connection) {
  const Credentials& who = connection.credentials();
  if (who.uid == geteuid()) return false;
  refused_ = fmt::format(
      "pid {} runs as uid {}, rank {} (pid {}) as uid {}: ranks of one group share their user",
      who.pid, who.uid, party_.hub(), getpid(), geteuid());
  connection.send_failure(Error(Code::kInvalidArgument, refused_));
  return true;
}

std::optional<Hello> Entrance::hello_in(Guest& guest, const Frame& frame) {
  if (frame.kind != Kind::kHello) return std::nullopt;
  const std::optional<Secret>& secret = party_.door.secret;
  if (!secret) return decode_hello(frame.payload);
  const auto text = guest.handshake.proven(Handshake::Side::kSpoke, *secret, frame.payload);
  if (!text) return std::nullopt;
  guest.connection->send(
      Kind::kProof, 0, guest.handshake.prove(Handshake::Side::kHub, *secret, encode(party_.self)));
  return decode_hello(*text);
}

std::vector<Connection*> Entrance::connections() const {
  std::vector<Connection*> all;
  for (const Guest& guest : guests_) all.push_back(guest.connection.get());
  return all;
}

void Entrance::send_failure(const Error& error) {
  if (party_.door.secret) return;  // others need not know what goes on here
  for (Guest& guest : guests_) guest.connection->send_failure(error);
}

std::string Entrance::refused() const {
  if (!party_.door.secret) return refused_.empty() ? "" : "; refused: " + refused_;
  if (num_failed_ == 0) return "";
  return fmt::format("; {} connection{} failed authentication (no or another FERRY_SECRET)",
                     num_failed_, num_failed_ == 1 ? "" : "s");
}

}  // namespace ferry::internal

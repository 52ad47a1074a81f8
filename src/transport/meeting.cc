// The hub's side of finding each other: accept, hear the hello, seat by rank.
#include "transport/meeting.h"

#include <fmt/format.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "transport/agree.h"

namespace ferry::internal {
namespace {

constexpr int kPollMs = 100;
// Connections that have not said hello, beyond one per rank; then the oldest is dropped. It can try
// again.
constexpr std::size_t kMaxStrangers = 64;
// After a misfit, how long to wait for ranks that are on their way, so that they hear it too.
constexpr std::chrono::seconds kLinger{1};

class Meeting {
 public:
  Meeting(const Hello& self, Deadline deadline)
      : self_(self),
        deadline_(deadline),
        name_(socket_name(self.address, self.size)),
        seats_(static_cast<std::size_t>(self.size)) {}

  std::vector<std::unique_ptr<Connection>> run() {
    listen();
    while (!absent().empty() && !until().passed()) {
      service(connections(), until().remaining_ms(kPollMs), listener_.fd());
      accept_guests();
      hear_guests();
      watch_seats();
    }
    if (!problem_ && !absent().empty()) object(Code::kTimeout, missing_text());
    if (problem_) {
      flush_all(connections(), Deadline::after(std::chrono::seconds(1)));
      throw *problem_;
    }
    return std::move(seats_);
  }

 private:
  Deadline until() const noexcept { return problem_ ? *linger_ : deadline_; }

  // An earlier group of the same address may still be closing its listener.
  void listen() {
    while (!(listener_ = listen_at(name_))) {
      if (deadline_.passed()) {
        const Descriptor holder = connect_to(name_);
        const Credentials who = holder ? credentials_of(holder) : Credentials{};
        throw Error(
            Code::kTimeout,
            fmt::format("rank 0 cannot listen at @{}: pid {} (uid {}) has held it until the "
                        "deadline",
                        name_, who.pid, who.uid));
      }
      usleep(2000);
    }
  }

  void accept_guests() {
    while (Descriptor socket = accept_from(listener_)) {
      auto guest = std::make_unique<Connection>(std::move(socket));
      if (guest->credentials().uid != geteuid()) {
        refused_ = fmt::format(
            "pid {} runs as uid {}, rank 0 (pid {}) as uid {}: ranks of one group share their user",
            guest->credentials().pid, guest->credentials().uid, getpid(), geteuid());
        guest->send_failure(Error(Code::kInvalidArgument, refused_));
        continue;
      }
      guests_.push_back(std::move(guest));
      if (guests_.size() > seats_.size() + kMaxStrangers) guests_.erase(guests_.begin());
    }
    if (errno != EMFILE && errno != ENFILE && errno != ENOMEM && errno != ENOBUFS) return;
    object(
        Code::kSystem,
        fmt::format("rank 0 cannot accept more connections: {} (it needs one descriptor per rank: "
                    "ulimit -n)",
                    std::strerror(errno)));
  }

  void hear_guests() {
    for (auto& guest : guests_) {
      const std::optional<Frame> frame = guest->take();
      if (!frame && !guest->closed()) continue;
      const auto hello =
          frame && frame->kind == Kind::kHello ? decode_hello(frame->payload) : std::nullopt;
      if (hello) {
        seat(std::move(guest), *hello);
      } else {
        refused_ = fmt::format("pid {} connected without a hello", guest->credentials().pid);
      }
      guest.reset();
    }
    std::erase(guests_, nullptr);
  }

  // A rank that does not fit gets its seat all the same, so that it counts as come.
  void seat(std::unique_ptr<Connection> guest, const Hello& hello) {
    const std::string problem = disagreement(self_, hello);
    const bool in_range = hello.rank >= 1 && hello.rank < self_.size;
    auto* seat = in_range ? &seats_[static_cast<std::size_t>(hello.rank)] : nullptr;
    if (!problem.empty()) {
      object(Code::kMismatch, problem);
    } else if (!in_range) {
      object(Code::kInvalidArgument,
             fmt::format("pid {} says it is rank {}; rank 0 of {} waits for ranks 1 to {}",
                         hello.pid, hello.rank, self_.size, self_.size - 1));
    } else if (*seat) {
      object(Code::kInvalidArgument,
             fmt::format("two processes say they are rank {}: pid {} and pid {}", hello.rank,
                         (*seat)->credentials().pid, guest->credentials().pid));
    }
    if (problem_) guest->send_failure(*problem_);
    if (seat == nullptr || *seat) {
      misfits_.push_back(std::move(guest));
      return;
    }
    guest->trust();
    *seat = std::move(guest);
  }

  // Seated ranks have nothing to say, unless they give up; and they may end.
  void watch_seats() {
    for (std::size_t rank = 1; rank < seats_.size(); ++rank) {
      if (!seats_[rank]) continue;
      const std::optional<Frame> frame = seats_[rank]->take();
      if (frame && frame->kind == Kind::kFailure) {
        const Error error = failure_in(frame->payload);
        object(error.code(), fmt::format("{}; {}", error.what(), missing_text()));
      } else if (seats_[rank]->closed()) {
        object(Code::kPeerLost,
               fmt::format("rank {} (pid {}) ended or left while {} had not come", rank,
                           seats_[rank]->credentials().pid, rank_list(absent())));
      }
    }
  }

  // The first problem counts. Who is there hears it now, who comes within the linger hears it then.
  void object(Code code, const std::string& text) {
    if (problem_) return;
    problem_.emplace(code, text);
    linger_ = Deadline::after(std::min<std::chrono::nanoseconds>(
        kLinger, std::chrono::nanoseconds(std::max<std::int64_t>(deadline_.remaining_ns(), 0))));
    for (Connection* connection : connections()) {
      if (connection != nullptr) connection->send_failure(*problem_);
    }
  }

  std::vector<int> absent() const {
    std::vector<int> ranks;
    for (std::size_t rank = 1; rank < seats_.size(); ++rank) {
      if (!seats_[rank]) ranks.push_back(static_cast<int>(rank));
    }
    return ranks;
  }

  std::string missing_text() const {
    return fmt::format(
        "{} of {} did not come to @{} before the deadline; they must run on this host ({}) as uid "
        "{} "
        "and be told the same address and size{}{}",
        rank_list(absent()), self_.size, name_, self_.host, geteuid(),
        refused_.empty() ? "" : "; refused: ", refused_);
  }

  std::vector<Connection*> connections() const {
    std::vector<Connection*> all;
    for (const auto* group : {&guests_, &seats_, &misfits_}) {
      for (const auto& connection : *group) all.push_back(connection.get());
    }
    return all;
  }

  const Hello& self_;
  const Deadline deadline_;
  const std::string name_;
  Descriptor listener_;
  std::vector<std::unique_ptr<Connection>> guests_;   // no hello yet
  std::vector<std::unique_ptr<Connection>> seats_;    // by rank
  std::vector<std::unique_ptr<Connection>> misfits_;  // neither
  std::string refused_;                               // the last stranger
  std::optional<Error> problem_;
  std::optional<Deadline> linger_;
};

}  // namespace

std::vector<std::unique_ptr<Connection>> meet(const Hello& self, Deadline deadline) {
  return Meeting(self, deadline).run();
}

}  // namespace ferry::internal

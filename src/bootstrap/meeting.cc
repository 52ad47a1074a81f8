// The hub's side of finding each other: who arrives is seated by rank.
#include "bootstrap/meeting.h"

#include <fmt/format.h>

#include <optional>

#include "bootstrap/agree.h"
#include "bootstrap/entrance.h"

namespace ferry::internal {
namespace {

constexpr int kPollMs = 100;
// After a misfit, how long to wait for ranks that are on their way, so that they hear it too.
constexpr std::chrono::seconds kLinger{1};

class Meeting {
 public:
  Meeting(const Party& party, Deadline deadline)
      : party_(party), deadline_(deadline), entrance_(party, deadline), seats_(party.size()) {}

  std::vector<Member> run() {
    while (!absent().empty() && !until().passed()) {
      service(connections(), until().remaining_ms(kPollMs), entrance_.fd());
      std::optional<Error> problem;
      for (Entrance::Arrival& arrival : entrance_.arrivals(problem)) receive(std::move(arrival));
      if (problem) object(problem->code(), problem->what());
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

  // Groups of one job may come to one port at the same time; the other tries again later.
  void receive(Entrance::Arrival arrival) {
    if (!party_.door.secret || arrival.hello.address == party_.self.address) {
      seat(std::move(arrival.connection), arrival.hello);
      return;
    }
    arrival.connection->send(Kind::kElsewhere, 0, party_.self.address);
    misfits_.push_back(std::move(arrival.connection));
  }

  // A rank that does not fit gets its seat all the same, so that it counts as come.
  void seat(std::unique_ptr<Connection> guest, const Hello& hello) {
    const std::string problem = party_.door.secret ? disagreement(party_.self, hello)
                                                   : disagreement_on_host(party_.self, hello);
    const int place = hello.rank == party_.hub() ? -1 : party_.seat(hello.rank);
    Member* seat = place < 0 ? nullptr : &seats_[static_cast<std::size_t>(place)];
    if (!problem.empty()) {
      object(Code::kMismatch, problem);
    } else if (seat == nullptr) {
      object(Code::kInvalidArgument,
             fmt::format("{} says it is rank {}; rank {} of {} waits for {}", who(hello),
                         hello.rank, party_.hub(), party_.self.size, rank_list(others())));
    } else if (seat->connection) {
      object(Code::kInvalidArgument, fmt::format("two processes say they are rank {}: {} and {}",
                                                 hello.rank, seat->who, who(hello)));
    }
    if (problem_) guest->send_failure(*problem_);
    if (seat == nullptr || seat->connection) {
      misfits_.push_back(std::move(guest));
      return;
    }
    guest->trust();
    *seat = {std::move(guest), who(hello)};
  }

  // Seated ranks have nothing to say, unless they give up; and they may end.
  void watch_seats() {
    for (std::size_t seat = 1; seat < seats_.size(); ++seat) {
      const Member& member = seats_[seat];
      if (!member.connection) continue;
      const std::optional<Frame> frame = member.connection->take();
      if (frame && frame->kind == Kind::kFailure) {
        const Error error = failure_in(frame->payload);
        object(error.code(), fmt::format("{}; {}", error.what(), missing_text()));
      } else if (member.connection->closed()) {
        object(Code::kPeerLost, fmt::format("rank {} ({}) ended or left while {} had not come",
                                            party_.ranks[seat], member.who, rank_list(absent())));
      }
    }
  }

  // The first problem counts. Who is there hears it now, who comes within the linger hears it then.
  void object(Code code, const std::string& text) {
    if (problem_) return;
    problem_.emplace(code, text);
    linger_ = deadline_.sooner(kLinger);
    entrance_.send_failure(*problem_);
    for (const Member& member : seats_) {
      if (member.connection) member.connection->send_failure(*problem_);
    }
  }

  std::string who(const Hello& hello) const {
    return party_.door.secret ? fmt::format("pid {}, host {}", hello.pid, hello.host)
                              : fmt::format("pid {}", hello.pid);
  }

  std::vector<int> others() const { return {party_.ranks.begin() + 1, party_.ranks.end()}; }

  std::vector<int> absent() const {
    std::vector<int> ranks;
    for (std::size_t seat = 1; seat < seats_.size(); ++seat) {
      if (!seats_[seat].connection) ranks.push_back(party_.ranks[seat]);
    }
    return ranks;
  }

  std::string missing_text() const {
    return fmt::format("{} of {} did not come to {} before the deadline; they must run {}{}",
                       rank_list(absent()), party_.self.size, party_.door.name, party_.door.advice,
                       entrance_.refused());
  }

  std::vector<Connection*> connections() const {
    std::vector<Connection*> all = entrance_.connections();
    for (const Member& member : seats_) all.push_back(member.connection.get());
    for (const auto& misfit : misfits_) all.push_back(misfit.get());
    return all;
  }

  const Party& party_;
  const Deadline deadline_;
  Entrance entrance_;
  std::vector<Member> seats_;
  std::vector<std::unique_ptr<Connection>> misfits_;  // told why, and kept until they hear it
  std::optional<Error> problem_;
  std::optional<Deadline> linger_;
};

}  // namespace

std::vector<Member> meet(const Party& party, Deadline deadline) {
  return Meeting(party, deadline).run();
}

}  // namespace ferry::internal

// Rendezvous of processes of one host: every collective goes to rank 0 and back. Called by group
// creation; calls Hub or Spoke, Liveness and Segment.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <optional>

#include "ferry/status.h"
#include "transport/agree.h"
#include "transport/hub.h"
#include "transport/liveness.h"
#include "transport/rendezvous.h"
#include "transport/spoke.h"

namespace ferry::internal {
namespace {

using Texts = std::vector<std::string>;

// Lengths, then texts.
std::string pack(const Texts& texts) {
  std::string packed;
  for (const std::string& text : texts) {
    const std::uint64_t bytes = text.size();
    packed.append(reinterpret_cast<const char*>(&bytes), sizeof(bytes));
  }
  for (const std::string& text : texts) packed += text;
  return packed;
}

Texts unpack(const std::string& packed, int size) {
  Texts texts;
  std::size_t at = static_cast<std::size_t>(size) * sizeof(std::uint64_t);
  for (int rank = 0; rank < size; ++rank) {
    std::uint64_t bytes = 0;
    std::memcpy(&bytes, packed.data() + static_cast<std::size_t>(rank) * sizeof(bytes),
                sizeof(bytes));
    texts.push_back(packed.substr(at, bytes));
    at += bytes;
  }
  return texts;
}

class ProcessRendezvous final : public Rendezvous {
 public:
  ProcessRendezvous(const std::string& address, int rank, int size, Deadline deadline)
      : Rendezvous(rank, size) {
    if (size == 1) {
      liveness_ = Liveness({getpid()});
      return;
    }
    const Hello self = own_hello(address, rank, size);
    if (rank == 0) {
      hub_.emplace(self, deadline);
      hub_->answer(Kind::kWelcome, 0, fmt::format("{}", fmt::join(hub_->pids(), " ")), nullptr,
                   deadline);
    } else {
      spoke_.emplace(self, deadline);
    }
    liveness_ = Liveness(hub_ ? hub_->pids() : spoke_->pids());
    // Everybody still ran after everybody had opened the pidfds: none of them is of a reused pid.
    all_gather("", deadline);
  }

  Texts all_gather(std::string_view mine, Deadline deadline) override {
    return guarded([&]() -> Texts {
      if (size() == 1) return {std::string(mine)};
      const std::uint32_t call = ++num_calls_;
      if (spoke_) {
        spoke_->say(call, mine);
        return unpack(spoke_->await(Kind::kGathered, call, deadline).payload, size());
      }
      Texts texts = hub_->gather(call, std::string(mine), deadline);
      hub_->answer(Kind::kGathered, call, pack(texts), nullptr, deadline);
      return texts;
    });
  }

  std::shared_ptr<Segment> share_segment(std::size_t bytes, Deadline deadline) override {
    check_same_bytes(all_gather(std::to_string(bytes), deadline));
    std::shared_ptr<Segment> segment;
    std::string problem;
    try {
      segment = rank() == 0 ? offer_segment(bytes, deadline) : take_segment(bytes, deadline);
    } catch (const Error& error) {
      if (failure_) throw;
      problem = error.what();
    }
    check_no_problem(all_gather(problem, deadline));
    return segment;
  }

  bool alive(int peer) noexcept override { return liveness_.alive(peer); }
  int pid(int peer) const noexcept override { return liveness_.pid(peer); }

 private:
  // After a failure the ranks are no longer at the same call: it is thrown again and again.
  template <typename Call>
  auto guarded(const Call& call) -> decltype(call()) {
    if (failure_) throw *failure_;
    try {
      return call();
    } catch (const Error& error) {
      failure_ = error;
      throw;
    }
  }

  // Answers in any case; a refused segment is an answer without a descriptor.
  std::shared_ptr<Segment> offer_segment(std::size_t bytes, Deadline deadline) {
    std::shared_ptr<const Descriptor> passed;
    std::shared_ptr<Segment> segment;
    std::optional<Error> refused;
    try {
      segment = Segment::create(bytes);
      passed = duplicate(segment->fd());
    } catch (const Error& error) {
      refused = error;
    }
    if (size() > 1) {
      guarded([&] {
        hub_->answer(Kind::kSegment, num_calls_, passed ? "here" : "", passed, deadline);
      });
    }
    if (refused) throw *refused;
    return segment;
  }

  std::shared_ptr<Segment> take_segment(std::size_t bytes, Deadline deadline) {
    Frame frame = guarded([&] { return spoke_->await(Kind::kSegment, num_calls_, deadline); });
    if (frame.payload.empty()) return nullptr;  // rank 0 says why
    if (!frame.passed)
      throw Error(Code::kSystem, "no descriptor arrived with a shared segment (ulimit -n?)");
    return Segment::attach(frame.passed.release(), bytes);
  }

  // The queue of frames may outlive a segment whose creation failed half-way.
  static std::shared_ptr<const Descriptor> duplicate(int fd) {
    Descriptor copy(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (!copy) throw Error(Code::kSystem, fmt::format("no descriptor: {}", std::strerror(errno)));
    return std::make_shared<const Descriptor>(std::move(copy));
  }

  std::optional<Hub> hub_;      // rank 0
  std::optional<Spoke> spoke_;  // all others
  Liveness liveness_;
  std::uint32_t num_calls_ = 0;
  std::optional<Error> failure_;
};

}  // namespace

std::unique_ptr<Rendezvous> process_rendezvous(const std::string& address, int rank, int size,
                                               Deadline deadline) {
  check_rank(rank, size);
  return std::make_unique<ProcessRendezvous>(address, rank, size, deadline);
}

}  // namespace ferry::internal

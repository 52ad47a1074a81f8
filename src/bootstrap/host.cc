// Segments by descriptor, liveness by pid.
#include "bootstrap/host.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>

namespace ferry::internal {
namespace {

// The queue of frames may outlive a segment whose creation failed half-way.
std::shared_ptr<const Descriptor> duplicate(int fd) {
  Descriptor copy(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!copy) throw Error(Code::kSystem, fmt::format("no descriptor: {}", std::strerror(errno)));
  return std::make_shared<const Descriptor>(std::move(copy));
}

}  // namespace

Host::Host(Party party, const std::vector<int>& nodes, Deadline deadline)
    : party_(std::move(party)), star_(party_, deadline) {
  for (const int rank : party_.ranks) nodes_.push_back(nodes[static_cast<std::size_t>(rank)]);
  std::vector<pid_t> pids;
  for (const std::string& pid : star_.all_gather(std::to_string(getpid()), deadline))
    pids.push_back(std::atoi(pid.c_str()));
  liveness_ = Liveness(pids);
  // Everybody still ran after everybody had opened the pidfds: none of them is of a reused pid.
  star_.all_gather("", deadline);
}

std::shared_ptr<Segment> Host::share_segment(std::size_t bytes, Deadline deadline,
                                             std::string& problem) {
  try {
    return star_.is_hub() ? offer(bytes, deadline) : take(bytes, deadline);
  } catch (const Error& error) {
    problem = error.what();
    return nullptr;
  }
}

// Answers in any case; refused segments are an answer without a descriptor.
std::shared_ptr<Segment> Host::offer(std::size_t bytes, Deadline deadline) {
  std::map<int, std::shared_ptr<Segment>> segments;  // by node
  std::vector<std::shared_ptr<const Descriptor>> by_seat;
  std::optional<Error> refused;
  try {
    for (const int node : nodes_) {
      std::shared_ptr<Segment>& segment = segments[node];
      if (!segment) segment = Segment::create(bytes);
      by_seat.push_back(duplicate(segment->fd()));
    }
  } catch (const Error& error) {
    refused = error;
    by_seat.clear();
  }
  star_.hand_out(by_seat, deadline);
  if (refused) throw *refused;
  return segments[nodes_[0]];
}

std::shared_ptr<Segment> Host::take(std::size_t bytes, Deadline deadline) {
  std::optional<Descriptor> passed = star_.take(deadline);
  if (!passed) return nullptr;  // the hub says why
  if (!*passed)
    throw Error(Code::kSystem, "no descriptor arrived with a shared segment (ulimit -n?)");
  return Segment::attach(passed->release(), bytes);
}

}  // namespace ferry::internal

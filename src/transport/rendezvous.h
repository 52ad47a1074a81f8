// Rendezvous: how ranks find each other and agree, before they share memory. Control plane only:
// throws Error. Two ways in: threads of one process (threads.cc), processes of one host over an
// abstract Unix socket (processes.cc). Called by group creation and exchange creation; it is never
// on the path of a token.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "memory/segment.h"

namespace ferry::internal {

class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }

  // Collective. Every rank's text, in rank order; lengths may differ. Throws Error(kTimeout) naming
  // the ranks that did not come, Error(kPeerLost) naming a rank that went away.
  virtual std::vector<std::string> all_gather(std::string_view mine, Deadline deadline) = 0;

  // Collective. Rank 0 creates a segment, every rank gets a mapping of it (threads share one
  // mapping).
  virtual std::shared_ptr<Segment> share_segment(std::size_t bytes, Deadline deadline) = 0;

  // False once the process of `peer` has ended (pidfd). Cheap enough to call every few
  // milliseconds; never blocks. Thread ranks cannot die alone: always true.
  virtual bool alive(int peer) noexcept = 0;

  // The process id of `peer` as seen from here, 0 if unknown.
  virtual int pid(int peer) const noexcept = 0;

 protected:
  Rendezvous(int rank, int size) : rank_(rank), size_(size) {}

 private:
  int rank_;
  int size_;
};

// Element i is for the thread that plays rank i; all share one state.
std::vector<std::unique_ptr<Rendezvous>> thread_rendezvous(int size);

// Meets at the abstract Unix socket @ferry-<uid>-<address>-<size>. Rank 0 listens, peers are
// checked by SO_PEERCRED (same user), ferry's version and build are compared at hello, and ranks of
// different hosts or namespaces are named.
std::unique_ptr<Rendezvous> process_rendezvous(const std::string& address, int rank, int size,
                                               Deadline deadline);

}  // namespace ferry::internal

// Rendezvous: how ranks find each other and agree, before they share memory. Control plane only:
// throws Error, and is never on the path of a token. Three kinds: threads of one process
// (threads.cc), processes of one host over an abstract Unix socket, processes of several hosts over
// TCP (both processes.cc).
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "bootstrap/endpoint.h"
#include "bootstrap/local_ranks.h"
#include "memory/segment.h"

namespace ferry::internal {

class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  // [size]: the node of each rank, numbered by their lowest rank. Ranks of a node share memory.
  const std::vector<int>& nodes() const noexcept { return nodes_; }

  // Collective. Every rank's text, in rank order; lengths may differ. Throws Error(kTimeout) naming
  // the ranks that did not come, Error(kPeerLost) naming a rank that ended or left.
  virtual std::vector<std::string> all_gather(std::string_view mine, Deadline deadline) = 0;

  // Collective. Every node gets a segment of its own, every rank a mapping of its node's (threads
  // share one mapping).
  virtual std::shared_ptr<Segment> share_segment(std::size_t bytes, Deadline deadline) = 0;

  // False once the process of `peer` has ended (pidfd). Cheap enough to call every few
  // milliseconds; never blocks. Always true for threads, which cannot end alone.
  virtual bool alive(int peer) noexcept = 0;

  // The process id of `peer` in the pid namespace of this process, 0 if unknown.
  virtual int pid(int peer) const noexcept = 0;

 protected:
  Rendezvous(int rank, std::vector<int> nodes)
      : rank_(rank), size_(static_cast<int>(nodes.size())), nodes_(std::move(nodes)) {}

 private:
  int rank_;
  int size_;
  std::vector<int> nodes_;
};

// Element i is for the thread that is rank i, of node nodes[i]; all share one state.
std::vector<std::unique_ptr<Rendezvous>> thread_rendezvous(const std::vector<int>& nodes);

// Processes of one host. Meets at the abstract Unix socket @ferry-<uid>-<address>-<size>, where
// size is that of `nodes`. Rank 0 listens, peers are checked by SO_PEERCRED (same user), ferry's
// version and build are compared at hello, and ranks of different hosts or namespaces are named.
// `launch`: the ranks that were started on this host. All ranks get an Error at once when one of
// these ends before it joins.
std::unique_ptr<Rendezvous> process_rendezvous(const std::string& address, int rank,
                                               const std::vector<int>& nodes, Deadline deadline,
                                               const LocalLaunch& launch = {});

// Processes of any hosts. Rank 0 listens at a TCP port; both sides of each connection prove that
// they know the secret (handshake.h) before other bytes are trusted. Ranks that share memory (boot
// id and namespaces, hello.h) are a node, unless `split` [ranks], equal on all ranks, divides them.
// Ranks of one host then meet over a Unix socket too. alive() of ranks of other hosts is always
// true, pid() 0.
std::unique_ptr<Rendezvous> tcp_rendezvous(const TcpEndpoint& endpoint, int rank,
                                           const std::vector<int>& split, Deadline deadline,
                                           const LocalLaunch& launch = {});

}  // namespace ferry::internal

// Rendezvous: how ranks find each other and agree before they share memory. It belongs to the
// control plane: it throws Error, and no token passes through it. There are three kinds: threads of
// one process (threads.cc), processes of one host over an abstract Unix socket, and processes of
// several hosts over TCP (both in processes.cc).
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "bootstrap/admission.h"
#include "bootstrap/endpoint.h"
#include "bootstrap/local_ranks.h"
#include "memory/segment.h"

namespace ferry::internal {

// Where the members of a later view meet.
struct MeetingPlace {
  std::string name;  // that no other ranks of this host use
  // Collective among members of several hosts: the first of them listens at a port of its host and
  // gives a text that says where, of at most kMostBytes. Returns that text on all of them. Throws
  // Error.
  std::function<std::string(const std::string& mine)> pass_on;
  static constexpr std::size_t kMostBytes = 255;
};

// The ranks of a group.
struct GroupRanks {
  // Implicit: the nodes alone describe a group in which all ranks meet (no members are given).
  // NOLINTNEXTLINE(google-explicit-constructor)
  GroupRanks(std::vector<int> split_nodes, std::vector<int> first_members = {});

  std::vector<int> split;    // [ranks] the nodes of the topology; equal on all ranks
  std::vector<int> members;  // those that meet, ascending; the others may come later as newcomers
  int size() const noexcept { return static_cast<int>(split.size()); }
};

class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  // [size]: the node of each rank. Nodes are numbered in the order of their lowest ranks. Ranks of
  // a node share memory.
  const std::vector<int>& nodes() const noexcept { return nodes_; }
  // The ranks that meet here, ascending: GroupRanks::members, or those given to among().
  const std::vector<int>& ranks() const noexcept { return ranks_; }

  // Collective. Returns the text of each of ranks(), in this order; lengths may differ. Throws
  // Error(kTimeout) that names the missing ranks, or Error(kPeerLost) that names a rank that ended
  // or left.
  virtual std::vector<std::string> all_gather(std::string_view mine, Deadline deadline) = 0;

  // Collective. Every node gets a segment of its own. Every rank gets a mapping of the segment of
  // its node; threads share one mapping.
  virtual std::shared_ptr<Segment> share_segment(std::size_t bytes, Deadline deadline) = 0;

  // Returns false once the process of `peer` has ended (pidfd). It never blocks, and is fast enough
  // to be called every few milliseconds. It is always true for threads, which cannot end alone, and
  // for ranks of other hosts.
  virtual bool alive(int peer) noexcept = 0;

  // Sends SIGKILL to the process of `peer`, whose pid() is known. Returns 0, or the errno of the
  // kernel's refusal; ESRCH: the process has ended. EPERM for threads.
  virtual int kill(int peer) noexcept = 0;

  // Collective among `members`: ascending ranks, this rank among them. They meet anew, without the
  // other ranks. Throws the same errors as the call that made this rendezvous.
  virtual std::unique_ptr<Rendezvous> among(const std::vector<int>& members,
                                            const MeetingPlace& place, Deadline deadline) = 0;

  // Whether processes can take the places of lost ranks. Threads cannot.
  virtual bool admits() const noexcept = 0;
  // On the coordinator of an admission: waits for the newcomers at the address of the group
  // (admission.h). Between hosts it sets Admission::place.
  virtual std::unique_ptr<BootstrapCollectives> await_newcomers(Admission& admission,
                                                                Deadline deadline) = 0;
  // Collective among the ranks of an admission: they meet anew, and its coordinator coordinates
  // their collectives. Newcomers call newcomer_rendezvous() instead. `invited` is the result of
  // await_newcomers() on the coordinator, null on the other members.
  virtual std::unique_ptr<Rendezvous> among(const Admission& admission,
                                            BootstrapCollectives* invited, Deadline deadline) = 0;
  // Collective among those ranks: a member of each node passes on `mine`, the segment that all
  // members of the node have. Newcomers give null. Returns the segment, mapped. A node without
  // members gets a new segment.
  virtual std::shared_ptr<Segment> pass_on(std::shared_ptr<Segment> mine, std::size_t bytes,
                                           Deadline deadline) = 0;

  // The process id of `peer` in the pid namespace of this process. 0 if it is unknown.
  virtual int pid(int peer) const noexcept = 0;

 protected:
  // `ranks`: empty for all.
  Rendezvous(int rank, std::vector<int> nodes, std::vector<int> ranks = {})
      : rank_(rank),
        size_(static_cast<int>(nodes.size())),
        nodes_(std::move(nodes)),
        ranks_(std::move(ranks)) {
    if (!ranks_.empty()) return;
    for (int one = 0; one < size_; ++one) ranks_.push_back(one);
  }

 private:
  int rank_;
  int size_;
  std::vector<int> nodes_;
  std::vector<int> ranks_;
};

// Makes the rendezvous of threads. Element i is for the thread that is rank i, of node nodes[i].
// All of them share one state.
std::vector<std::unique_ptr<Rendezvous>> thread_rendezvous(const std::vector<int>& nodes);

// Makes the rendezvous of processes of one host. They meet at the abstract Unix socket
// @ferry-<uid>-<address>-<size>. The lowest of them listens. SO_PEERCRED shows whether a peer is of
// the same user. The hellos compare ferry's version and build, and an error
// names ranks of different hosts or namespaces. `launch` has the ranks that were started on this
// host. If one of them ends before it joins, all ranks get an Error at once.
std::unique_ptr<Rendezvous> process_rendezvous(const std::string& address, int rank,
                                               const GroupRanks& ranks, Deadline deadline,
                                               const LocalLaunch& launch = {});

// Makes the rendezvous of processes of any hosts. The lowest of them listens at a TCP port. Both
// sides of each connection prove that they know the secret (handshake.h) before other bytes are
// trusted. Ranks that share memory (equal boot id and namespaces, hello.h) are a node, unless the
// topology divides them. Ranks of one host then also meet over a Unix socket. For ranks of other
// hosts, alive() is always true and pid() is 0.
std::unique_ptr<Rendezvous> tcp_rendezvous(const TcpEndpoint& endpoint, int rank,
                                           const GroupRanks& ranks, Deadline deadline,
                                           const LocalLaunch& launch = {});

// Makes the rendezvous of a newcomer, which is rank `rank` of at.split.size(). Waits until members
// of a running group admit it, and meets all of them. Returns their admission, too.
std::pair<std::unique_ptr<Rendezvous>, Admission> newcomer_rendezvous(const AdmissionAddress& at,
                                                                      int rank, Deadline deadline);

}  // namespace ferry::internal

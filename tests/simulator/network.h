// Network: virtual transports between the ranks of a simulation. Packets are delayed, overtake each
// other, arrive twice and are of limited size; connections are lost, nodes are unreachable for a
// while, and strangers send bytes. Nothing is guaranteed but what network/transport.h promises.
// `rank` is the number of a process, which for the processes of the first view is their rank. A
// process that tries again to take a place then has another transport, at another address.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "network/transport.h"
#include "simulator/simulation.h"

namespace ferry::test {

class Network {
 public:
  Network(Simulation& simulation, std::vector<int> nodes);

  std::unique_ptr<internal::Transport> transport(int rank);
  int num_transports() const noexcept { return num_transports_; }  // that exist

  // The connection of two ranks is lost for good; both are told, at a time of their own.
  void cut(int rank, int peer);
  // Nothing comes in or out of `node` before `until_ns`; then it does.
  void part(int node, std::int64_t until_ns);
  // Nothing of `from` comes to `to` before `until_ns`.
  void hold_up(int from, int to, std::int64_t until_ns);
  // One end of a connection that is lost for good is told; the other end is told by another call.
  void cut_end(int rank, int peer);
  // The process dies: its connections are lost, and the others are told.
  void kill(int rank);
  // The process that `process` reaches as `peer`; -1: none.
  int reached(int process, int peer) const;
  // When a packet that leaves now arrives, and when a rank is told that a connection is lost.
  std::int64_t journey_ns(int from, int to);
  std::int64_t tell_ns();
  // Every message takes `ns` from now on.
  void fix_journey(std::int64_t ns) { fixed_journey_ns_ = ns; }
  // Called for each packet that a rank sends.
  std::function<void(int from, std::span<const std::byte> head, std::span<const std::byte> body)>
      on_send;
  int num_connected(int rank) const;
  // Bytes of a stranger, or a packet of this job with the number of another job.
  void send_strange(int rank);

 private:
  class SimulatedTransport;
  static constexpr int kNobody = -1;
  struct Packet {
    int from;  // the transport
    std::vector<std::byte> head, body;
    std::span<const std::byte> theirs;  // not copied yet: in the sender's memory
    void* ticket;
    bool gone = false;  // lost: the sender died or closed first
  };
  struct Loss {
    int peer;
    std::string why;
  };
  // The state of one transport. The first transport of each process has the process's number.
  struct Box {
    bool open = false;
    int process = 0;
    bool used = false;            // it is open, or was
    std::vector<int> peers;       // [transports] as which rank it is connected; or kNobody
    std::vector<bool> cut, lost;  // [transports] lost: cut, and told so
    std::deque<std::shared_ptr<Packet>> arrived;
    std::vector<void*> sent;
    std::vector<Loss> losses;
    std::vector<std::pair<int, std::shared_ptr<Packet>>> held;  // to whom; until it looks again
    std::vector<std::shared_ptr<Packet>> leaving;  // sent from here, their memory still ours

    bool empty() const { return arrived.empty() && sent.empty() && losses.empty(); }
  };

  Box& box(int transport) { return boxes_[static_cast<std::size_t>(transport)]; }
  const Box& box(int transport) const { return boxes_[static_cast<std::size_t>(transport)]; }
  bool dead(int transport) const { return simulation_.dead(box(transport).process); }
  void add_box(int process);
  int find(int transport, int peer) const;
  void disconnect(int transport, int peer);
  bool send(int from, int to, Packet packet);
  void depart(int to, const std::shared_ptr<Packet>& packet);
  void leave(int from, const std::shared_ptr<Packet>& packet);
  void arrive(int to, const std::shared_ptr<Packet>& packet);
  void lose(int transport, int peer, const std::string& why);
  void close(int transport);

  Simulation& simulation_;
  const std::vector<int> nodes_;
  std::deque<Box> boxes_;                                   // [transports]
  std::vector<int> last_;                                   // [processes] the last transport
  std::vector<std::int64_t> parted_ns_;                     // [nodes] until when
  std::map<std::pair<int, int>, std::int64_t> held_up_ns_;  // by sender and receiver, likewise
  std::vector<std::byte> overheard_;                        // the head of some packet
  int num_transports_ = 0;
  std::int64_t fixed_journey_ns_ = 0;  // 0: drawn
};

}  // namespace ferry::test

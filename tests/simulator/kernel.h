// Kernel: the processes, descriptors and sockets that the ranks of a simulation see. Each rank is a
// process of its own; each node is a host of its own, or all nodes are on one host. Connections
// deliver bytes in order, in pieces of any size, slowly; they may end, and strangers connect too.
// Host 0 has the address 10.77.0.1. The system calls that the engine makes while ranks meet come
// here, because the test programs are linked with --wrap (system_calls.cc). Memory (machine.h) is a
// File.
#pragma once

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "exchange/random.h"
#include "simulator/network.h"
#include "simulator/simulation.h"

namespace ferry::test {

class Kernel {
 public:
  static constexpr int kFirstDescriptor = 1 << 20;  // lower ones are of the real machine
  static constexpr int kFirstPid = 1 << 24;

  // What a descriptor stands for. Duplicates of a descriptor share one File.
  struct File {
    virtual ~File() = default;
    virtual short ready() const { return 0; }  // as poll()
  };

  // `hosts` [ranks].
  Kernel(Simulation& simulation, Network& network, std::vector<int> hosts);
  ~Kernel();
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;
  // Null unless a rank runs.
  static Kernel* of_running_rank();

  // ---- what happens to ranks
  void kill(int rank);
  // The connections of two ranks on different hosts are lost, now and later. Each end is told at a
  // time of its own.
  void cut(int rank, int peer);
  // `rank` may open this many more descriptors, then none.
  void leave_descriptors(int rank, int more);
  // A stranger connects, says something, or hangs up.
  void be_strange();
  int num_open() const;
  int num_open(int rank) const {
    return static_cast<int>(processes_[static_cast<std::size_t>(rank)].files.size());
  }
  // Called for each call that sends bytes; `local`: over a Unix socket.
  std::function<void(int rank, bool local, std::size_t bytes)> on_send;
  // Whether the ranks of some host have begun to meet there.
  bool meets_on_a_host() const { return meets_on_a_host_; }

  // ---- calls of the rank that runs: a result, or an errno below zero
  int rank() const { return simulation_.running(); }
  int host() const { return hosts_[static_cast<std::size_t>(rank())]; }
  Network& network() const { return network_; }
  int open(std::shared_ptr<File> file);
  std::shared_ptr<File> file(int descriptor);
  int duplicate(int descriptor);
  int close(int descriptor);
  int most_descriptors() { return mine().most; }

  int socket(int family);
  int bind(int descriptor, const sockaddr* address, socklen_t bytes);
  int listen(int descriptor);
  int accept(int descriptor);
  int connect(int descriptor, const sockaddr* address, socklen_t bytes);
  int name(int descriptor, sockaddr* address, socklen_t* bytes, bool of_peer);
  int option(int descriptor, int option, void* value, socklen_t* bytes);
  std::int64_t send(int descriptor, const msghdr& message);
  std::int64_t receive(int descriptor, msghdr& message);
  int poll(pollfd* polled, std::size_t count, int wait_ms);
  void sleep_us(std::int64_t us);
  sockaddr_in own_address() const;
  int open_pidfd(int pid);
  bool runs(int pid) const;
  void fill_at_random(void* bytes, std::size_t count);

 private:
  struct Process {
    std::map<int, std::shared_ptr<File>> files;
    int most = 1024;
  };
  struct Piece {
    std::string bytes;
    std::shared_ptr<File> passed;
  };
  struct Socket;
  struct Stream;
  struct Listener;
  struct PidFile;

  Process& mine() { return processes_[static_cast<std::size_t>(rank())]; }
  template <typename Kind>
  std::shared_ptr<Kind> find(int descriptor);
  void put(int descriptor, std::shared_ptr<File> file);
  static int port_in(const sockaddr* address);
  int host_in(const sockaddr* address) const;
  std::string key_of(const sockaddr* address, socklen_t bytes) const;
  static std::string key_of(int host, int port);
  std::shared_ptr<Listener> listener_at(const std::string& key) const;
  std::shared_ptr<Stream> join(Stream& from, Listener& listener);
  void connect_later(const std::shared_ptr<Stream>& stream, const std::string& key);
  void cut(Stream& one, Stream& other);
  void deliver(Stream& to, Piece piece);
  void hang_up(const Stream& stream, Stream& other);
  void end(Stream& stream, int error);
  std::int64_t arrival_ns(int from, int to);
  void wake(int rank);
  int look(pollfd* polled, std::size_t count);

  Simulation& simulation_;
  Network& network_;
  const std::vector<int> hosts_;
  std::vector<Process> processes_;                  // [ranks]
  std::vector<std::weak_ptr<Listener>> listeners_;  // in the order in which they were made
  std::vector<std::shared_ptr<Stream>> strangers_;
  std::set<std::pair<int, int>> cut_;
  std::string overheard_;  // the last bytes that crossed between hosts
  int num_streams_ = 0;
  int next_port_ = 40'000;  // of those that are free
  bool meets_on_a_host_ = false;
  Random random_{0, 7000};  // names of meeting points have a random part
};

}  // namespace ferry::test

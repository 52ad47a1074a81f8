// Transport: packets between this rank and ranks of other nodes, over any network. No packet to a
// live peer is lost, but packets may arrive in any order, and twice; MessageChannel restores the
// order and drops duplicates. Only sleep() blocks. Each rank has one, owned by its MessageChannel;
// one thread at a time calls it, except for sleep(). ucx_transport.cc implements it.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace ferry::internal {

class Transport {
 public:
  // A packet is a head of at most this many bytes, and a body.
  static constexpr std::size_t kMaxHeadBytes = 64;

  // A packet that has come: valid while it is read, at any address.
  struct Packet {
    std::span<const std::byte> head, body;
  };
  // Reads a packet where it lies, inside progress(). It must not call the transport.
  using PacketReader = std::function<void(const Packet&)>;
  struct Loss {
    int peer;
    std::string why;
  };
  // Events after the packets. `sent`: tickets of sends whose memory is the caller's again. `lost`:
  // peers to and from which no more packets pass; their sends under way end.
  struct Events {
    std::vector<void*> sent;
    std::vector<Loss> lost;

    void clear() noexcept {
      sent.clear();
      lost.clear();
    }
  };

  virtual ~Transport() = default;
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  // The bytes that a peer needs for connect().
  virtual std::string address() const = 0;
  // The addresses of all ranks that connect to this one, before any of them does: other hosts are
  // refused.
  virtual void let_in(const std::vector<std::string>& addresses) = 0;
  // Addresses by peer, before the first send to any of them. Starts the connections and does not
  // wait for them. Throws Error(kSystem).
  virtual void connect(const std::map<int, std::string>& addresses) = 0;
  // The peers that are not connected yet, and where they listen: "port 40123 of 10.77.0.2".
  virtual std::map<int, std::string> unconnected() const { return {}; }

  // The most bytes of the next packet's body; not always the same number.
  virtual std::size_t max_body_bytes() = 0;
  // Head and body stay untouched until the ticket is among Events::sent. True when the memory is
  // the caller's again at once, and the ticket does not come.
  virtual bool send(int peer, std::span<const std::byte> head, std::span<const std::byte> body,
                    void* ticket) = 0;
  // Sends and receives what is possible now, reads the packets that have come, and adds other
  // events. True when there was something to do.
  virtual bool progress(const PacketReader& read, Events& events) = 0;

  // Called before sleep(): every later event ends the sleep. False when there is something to do
  // already.
  virtual bool arm() = 0;
  // Sleeps until there is something to do, at most `wait_us`. Safe at the same time as any other
  // call.
  virtual void sleep(int wait_us) = 0;
  // Ends the sleeps of other threads.
  virtual void wake() = 0;

  // Such as "UCX 1.13 tcp".
  virtual std::string describe() const = 0;
  // Why hosts outside the job can connect, in spite of let_in(); empty: they cannot.
  virtual std::string exposed() const { return {}; }
};

// Over UCX. Throws Error(kSystem) when ferry was built without it, or it finds no network.
// FERRY_SOCKET_IFNAME chooses interfaces, comma-separated; UCX_NET_DEVICES, if set, overrides it.
std::unique_ptr<Transport> ucx_transport();

// The version and the file of the UCX that a transport would use; empty: there is none.
std::string ucx_found();

// Makes the transport of a group's rank: ucx_transport, or a test's.
using TransportFactory = std::function<std::unique_ptr<Transport>()>;

}  // namespace ferry::internal

// Transport: packets between this rank and ranks of other nodes, over whatever network there is.
// Nothing is lost before a peer is, but no order is promised, and a packet may come twice
// (MessageChannel mends both). Nothing here blocks but sleep(). One per rank, owned by its
// MessageChannel; one thread at a time is inside, except for sleep(). ucx_transport.cc is the real
// one.
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
  // What happened after the packets: the memory of some sends is the caller's again, by their
  // tickets, and nothing more will come from or go to some peers, whose sends under way end.
  struct Events {
    std::vector<void*> sent;
    std::vector<Loss> lost;
  };

  virtual ~Transport() = default;
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  // What a peer must know to connect(); any bytes.
  virtual std::string address() const = 0;
  // Of all ranks that connect to this one, before any of them does: others are kept out.
  virtual void let_in(const std::vector<std::string>& addresses) = 0;
  // By peer, before the first send to any of them. Asks for the connections and does not wait for
  // them. Throws Error(kSystem).
  virtual void connect(const std::map<int, std::string>& addresses) = 0;
  // The peers that do not answer yet, and where: "port 40123 of 10.77.0.2".
  virtual std::map<int, std::string> unconnected() const { return {}; }

  // Most bytes that the body of the next packet may have; need not be the same each time.
  virtual std::size_t max_body_bytes() = 0;
  // Head and body stay untouched until the ticket is among Events::sent. True when the memory is
  // the caller's again at once, and the ticket does not come.
  virtual bool send(int peer, std::span<const std::byte> head, std::span<const std::byte> body,
                    void* ticket) = 0;
  // Moves what can move now, reads the packets that have come, and adds what else happened. True
  // when something moved.
  virtual bool progress(const PacketReader& read, Events& events) = 0;

  // To be called before sleep(): whatever happens from here on ends it. False when something can
  // move already.
  virtual bool arm() = 0;
  // Sleeps until something can move, at most `wait_us`. Safe beside any other call.
  virtual void sleep(int wait_us) = 0;
  // Ends the sleeps of other threads.
  virtual void wake() = 0;

  // Such as "UCX 1.13 tcp".
  virtual std::string describe() const = 0;
  // Why hosts outside the job can connect, in spite of let_in(); empty: they cannot.
  virtual std::string exposed() const { return {}; }
};

// Over UCX. Throws Error(kSystem) when ferry was built without it, or it finds no network.
// FERRY_SOCKET_IFNAME chooses interfaces (several by comma), as UCX_NET_DEVICES does, which goes
// first.
std::unique_ptr<Transport> ucx_transport();

// The version of UCX that a transport would use, and where it is; empty: there is none.
std::string ucx_found();

// Makes the transport of a group's rank: ucx_transport, or a test's.
using TransportFactory = std::function<std::unique_ptr<Transport>()>;

}  // namespace ferry::internal

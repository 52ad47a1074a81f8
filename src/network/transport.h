// Transport: sends packets between this rank and ranks of other nodes, over any network. No packet
// to a live peer is lost, but packets may arrive in any order, and twice; MessageChannel restores
// the order and drops duplicates. Only sleep() blocks. Each rank has one transport, owned by its
// MessageChannel. One thread at a time calls it, except for sleep(). ucx_transport.cc implements
// it.
#pragma once

#include <chrono>
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
  // A packet has a head of at most this many bytes, and a body.
  static constexpr std::size_t kMaxHeadBytes = 64;

  // A packet that has arrived. It is valid while it is read, and can be at any address.
  struct Packet {
    std::span<const std::byte> head, body;
  };
  // Reads a packet in place, inside progress(). It must not call the transport.
  using PacketReader = std::function<void(const Packet&)>;
  struct Loss {
    int peer;
    std::string why;
  };
  // The events of progress(), after its packets. `sent` has the tickets of sends whose memory the
  // caller may use again. `lost` has the peers that can neither send nor receive packets any more;
  // sends to them end.
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
  // Must be called with the addresses of the ranks that connect to this rank, before any of them
  // connects. Other hosts are refused. A later call adds ranks.
  virtual void let_in(const std::vector<std::string>& addresses) = 0;
  // Starts the connections to all peers and does not wait for them. Must be called before the first
  // send. Throws Error(kSystem).
  virtual void connect(const std::map<int, std::string>& addresses) = 0;
  // Ends the connection to a peer, if there is one: no loss of it is reported any more, and sends
  // to it end. It may be connected again, at another address. Only for networks whose groups admit
  // processes.
  virtual void disconnect(int /*peer*/) {}
  // The peers that are not connected yet, with the endpoints at which they listen: "port 40123 of
  // 10.77.0.2".
  virtual std::map<int, std::string> unconnected() const { return {}; }
  // The peers on hosts that have acknowledged nothing for a time, though packets wait to be
  // acknowledged. Only some networks know that.
  virtual std::vector<int> silent(std::chrono::milliseconds) const { return {}; }

  // The most bytes of the next packet's body. The number may differ between calls.
  virtual std::size_t max_body_bytes() = 0;
  // Sends a packet. Head and body must not change until the ticket is among Events::sent. Returns
  // true if the caller may use the memory again at once; the ticket then does not appear.
  virtual bool send(int peer, std::span<const std::byte> head, std::span<const std::byte> body,
                    void* ticket) = 0;
  // Sends and receives without waiting, reads the packets that this call received, and adds other
  // events. Returns true if there was something to do; then there may be more.
  virtual bool progress(const PacketReader& read, Events& events) = 0;

  // Must be called before sleep(), so that every later event ends the sleep. Returns false if there
  // is already something to do.
  virtual bool arm() = 0;
  // Sleeps until there is something to do, but at most `wait_us`. May run at the same time as any
  // other call.
  virtual void sleep(int wait_us) = 0;
  // Ends the sleeps of other threads.
  virtual void wake() = 0;

  // A text such as "UCX 1.13 tcp".
  virtual std::string describe() const = 0;
  // The reason why hosts outside the job can connect in spite of let_in(). Empty if they cannot.
  virtual std::string exposed() const { return {}; }
};

// Makes a transport over UCX. Throws Error(kSystem) if ferry was built without UCX, or if UCX finds
// no network. FERRY_SOCKET_IFNAME chooses interfaces, comma-separated; UCX_NET_DEVICES, if set,
// overrides it.
std::unique_ptr<Transport> ucx_transport();

// The version and the file of the UCX that a transport would use. Empty if there is none.
std::string ucx_found();

// A function that makes the transport of a rank: ucx_transport, or one of a test.
using TransportFactory = std::function<std::unique_ptr<Transport>()>;

}  // namespace ferry::internal

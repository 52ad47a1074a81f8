#include "simulator/kernel.h"

#include <arpa/inet.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace ferry::test {

namespace {

constexpr std::size_t kBufferBytes = std::size_t{64} << 10;  // of a socket
constexpr std::int64_t kLoopbackNs = 30'000;
// The most bytes that one call moves: the first in the ordinary course, then the disturbances.
constexpr std::array<std::size_t, 4> kMoveBytes = {kBufferBytes, 1'000, 37, 1};
constexpr int kMoveRarity = 8, kSignalRarity = 24, kStrangeRarity = 2;
constexpr std::size_t kMostStrangers = 12;
constexpr uid_t kOtherUser = 54'321;
constexpr in_addr_t kFirstHost = 0x0a4d0001;  // 10.77.0.1
// What strangers send: two texts that are no frame, a hello of 4 GiB, and a hello that is
// malformed.
const std::array<std::string, 4> kStrange = {
    "GET / HTTP/1.0\r\n\r\n", std::string("ferry/u\n\1\0\0\0\0\0\0\0\377\377\377\377\0\0\0\0", 24),
    std::string("ferry/u\n\1\0\0\0\0\0\0\0\5\0\0\0\0\0\0\0rank=", 29), std::string(300, '\7')};

Kernel* the_kernel = nullptr;

}  // namespace

struct Kernel::Socket : File {
  bool local = false;
  std::string bound;  // where it will listen
  int port = 0;       // of a socket between hosts that is bound
};

// One end of a connection.
struct Kernel::Stream final : Socket {
  ~Stream() override {
    if (const auto other = peer.lock(); other && the_kernel != nullptr)
      the_kernel->hang_up(*this, *other);
  }
  short ready() const override {
    if (connecting) return 0;
    const auto other = peer.lock();
    const bool room = ended || !other || other->coming < kBufferBytes;
    return static_cast<short>((!arrived.empty() || ended ? POLLIN : 0) | (room ? POLLOUT : 0));
  }

  int rank = -1;  // whose it is; -1: a stranger's
  int number = 0;
  std::weak_ptr<Stream> peer;
  ucred peer_is = {};
  std::deque<Piece> arrived;
  std::size_t coming = 0;    // bytes that have arrived or will
  std::int64_t last_ns = 0;  // when the last of them do
  bool connecting = false;
  bool ended = false;  // nothing more comes or goes
  int error = 0;       // why
};

struct Kernel::Listener final : File {
  short ready() const override { return queue.empty() ? 0 : POLLIN; }

  std::string key;
  bool local = false;
  int port = 0;
  int rank = -1;
  std::deque<std::shared_ptr<Stream>> queue;
};

struct Kernel::PidFile final : File {
  short ready() const override { return the_kernel->runs(pid) ? 0 : POLLIN; }
  int pid = 0;
};

Kernel::Kernel(Simulation& simulation, Network& network, std::vector<int> hosts)
    : simulation_(simulation),
      network_(network),
      hosts_(std::move(hosts)),
      processes_(hosts_.size()) {
  the_kernel = this;
  setenv("FERRY_SECRET", "the secret of a simulation", 1);  // of all processes
}

Kernel::~Kernel() { the_kernel = nullptr; }

Kernel* Kernel::of_running_rank() {
  return the_kernel != nullptr && the_kernel->rank() >= 0 ? the_kernel : nullptr;
}

// ---- what happens to ranks

void Kernel::kill(int rank) {
  Process& process = processes_[static_cast<std::size_t>(rank)];
  process.most = 0;
  const auto files = std::move(process.files);
  process.files.clear();
}

void Kernel::cut(int rank, int peer) {
  if (hosts_[static_cast<std::size_t>(rank)] == hosts_[static_cast<std::size_t>(peer)]) return;
  cut_.insert(std::minmax(rank, peer));
  for (const auto& [one, other] : {std::pair(rank, peer), std::pair(peer, rank)}) {
    for (const auto& [descriptor, file] : processes_[static_cast<std::size_t>(one)].files) {
      const auto stream = std::dynamic_pointer_cast<Stream>(file);
      const auto theirs = stream ? stream->peer.lock() : nullptr;
      if (theirs && theirs->rank == other && !stream->local) cut(*stream, *theirs);
    }
  }
}

void Kernel::cut(Stream& one, Stream& other) {
  const auto far = one.peer, near = other.peer;
  one.peer.reset();
  other.peer.reset();
  for (const auto& weak : {near, far}) {
    simulation_.at(network_.tell_ns(), [this, weak] {
      if (const auto told = weak.lock()) end(*told, ETIMEDOUT);
    });
  }
}

void Kernel::leave_descriptors(int rank, int more) {
  Process& process = processes_[static_cast<std::size_t>(rank)];
  process.most = static_cast<int>(process.files.size()) + more;
}

void Kernel::be_strange() {
  std::erase_if(listeners_, [](const auto& listener) { return listener.expired(); });
  const int what = simulation_.choose(4, 1);
  if (what <= 1 && strangers_.size() < kMostStrangers && !listeners_.empty()) {
    const auto at = simulation_.choose(listeners_.size(), kStrangeRarity);
    const auto listener = listeners_[static_cast<std::size_t>(at)].lock();
    const auto stranger = std::make_shared<Stream>();
    stranger->local = listener->local;
    simulation_.note("a stranger connects to", static_cast<std::uint64_t>(listener->rank));
    join(*stranger, *listener)->peer = stranger;
    strangers_.push_back(stranger);
  } else if (!strangers_.empty()) {
    const auto at = strangers_.begin() + simulation_.choose(strangers_.size(), kStrangeRarity);
    if (what == 3) {
      strangers_.erase(at);
      return;
    }
    const int words = simulation_.choose(kStrange.size() + 1, 2);
    const auto other = (*at)->peer.lock();
    if (other)
      deliver(*other,
              {words == 0 ? overheard_ : kStrange[static_cast<std::size_t>(words - 1)], nullptr});
  }
}

int Kernel::num_open() const {
  std::size_t number = 0;
  for (const Process& process : processes_) number += process.files.size();
  return static_cast<int>(number);
}

// ---- descriptors

int Kernel::open(std::shared_ptr<File> file) {
  Process& process = mine();
  if (static_cast<int>(process.files.size()) >= process.most) return -EMFILE;
  int number = kFirstDescriptor;
  while (process.files.contains(number)) ++number;
  process.files[number] = std::move(file);
  return number;
}

std::shared_ptr<Kernel::File> Kernel::file(int descriptor) {
  const auto found = mine().files.find(descriptor);
  return found == mine().files.end() ? nullptr : found->second;
}

template <typename Kind>
std::shared_ptr<Kind> Kernel::find(int descriptor) {
  return std::dynamic_pointer_cast<Kind>(file(descriptor));
}

void Kernel::put(int descriptor, std::shared_ptr<File> file) {
  mine().files[descriptor] = std::move(file);
}

int Kernel::duplicate(int descriptor) {
  const auto same = file(descriptor);
  return same ? open(same) : -EBADF;
}

int Kernel::close(int descriptor) { return mine().files.erase(descriptor) > 0 ? 0 : -EBADF; }

// ---- sockets

int Kernel::socket(int family) {
  const auto made = std::make_shared<Socket>();
  made->local = family == AF_UNIX;
  return open(made);
}

int Kernel::port_in(const sockaddr* address) {
  if (address->sa_family == AF_UNIX) return 0;
  return ntohs(address->sa_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6*>(address)->sin6_port
                   : reinterpret_cast<const sockaddr_in*>(address)->sin_port);
}

// The loopback address, and the address of all interfaces, lead to the caller's own host.
int Kernel::host_in(const sockaddr* address) const {
  if (address->sa_family != AF_INET) return host();
  const in_addr_t ip = ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr);
  return ip < kFirstHost || ip >> 24 == IN_LOOPBACKNET ? host() : static_cast<int>(ip - kFirstHost);
}

sockaddr_in Kernel::own_address() const {
  sockaddr_in own{};
  own.sin_family = AF_INET;
  own.sin_addr.s_addr = htonl(kFirstHost + static_cast<in_addr_t>(host()));
  return own;
}

// Names of sockets, and ports, are each host's own.
std::string Kernel::key_of(const sockaddr* address, socklen_t bytes) const {
  if (address->sa_family != AF_UNIX) return key_of(host_in(address), port_in(address));
  const char* const name = reinterpret_cast<const sockaddr_un*>(address)->sun_path;
  return std::to_string(host()) + std::string(name, bytes - offsetof(sockaddr_un, sun_path));
}

std::string Kernel::key_of(int host, int port) {
  return "port " + std::to_string(port) + " of host " + std::to_string(host);
}

std::shared_ptr<Kernel::Listener> Kernel::listener_at(const std::string& key) const {
  for (const auto& listener : listeners_) {
    const auto there = listener.lock();
    if (there && there->key == key) return there;
  }
  return nullptr;
}

int Kernel::bind(int descriptor, const sockaddr* address, socklen_t bytes) {
  const auto socket = find<Socket>(descriptor);
  if (!socket) return -EBADF;
  const bool any_port = address->sa_family != AF_UNIX && port_in(address) == 0;
  socket->port = any_port ? next_port_++ : port_in(address);
  socket->bound = any_port ? key_of(host(), socket->port) : key_of(address, bytes);
  return listener_at(socket->bound) ? -EADDRINUSE : 0;
}

int Kernel::listen(int descriptor) {
  const auto socket = find<Socket>(descriptor);
  if (!socket) return -EBADF;
  if (listener_at(socket->bound)) return -EADDRINUSE;
  const auto listener = std::make_shared<Listener>();
  listener->key = socket->bound;
  listener->local = socket->local;
  listener->port = socket->port;
  listener->rank = rank();
  listeners_.push_back(listener);
  meets_on_a_host_ = meets_on_a_host_ || listener->local;
  put(descriptor, listener);
  simulation_.note("listens");
  return 0;
}

int Kernel::accept(int descriptor) {
  const auto listener = find<Listener>(descriptor);
  if (!listener) return -EBADF;
  if (listener->queue.empty()) return -EAGAIN;
  const int got = open(listener->queue.front());
  if (got >= 0) listener->queue.pop_front();
  return got;
}

// Makes the listener's end of the connection.
std::shared_ptr<Kernel::Stream> Kernel::join(Stream& from, Listener& listener) {
  auto theirs = std::make_shared<Stream>();
  theirs->local = listener.local;
  theirs->rank = listener.rank;
  theirs->number = ++num_streams_;
  const bool other_user = from.rank < 0 && simulation_.choose(2, 2) > 0;
  theirs->peer_is = {
      .pid = kFirstPid + from.rank, .uid = other_user ? kOtherUser : geteuid(), .gid = 0};
  from.peer_is = {.pid = kFirstPid + listener.rank, .uid = geteuid(), .gid = 0};
  from.peer = theirs;
  listener.queue.push_back(theirs);
  wake(listener.rank);
  return theirs;
}

int Kernel::connect(int descriptor, const sockaddr* address, socklen_t bytes) {
  const auto socket = find<Socket>(descriptor);
  if (!socket) return -EBADF;
  const auto stream = std::make_shared<Stream>();
  stream->local = socket->local;
  stream->rank = rank();
  stream->number = ++num_streams_;
  put(descriptor, stream);
  const std::string key = key_of(address, bytes);
  if (!stream->local) {
    stream->connecting = true;
    connect_later(stream, key);
    return -EINPROGRESS;
  }
  const auto listener = listener_at(key);
  if (!listener) return -ECONNREFUSED;
  join(*stream, *listener)->peer = stream;
  return 0;
}

void Kernel::connect_later(const std::shared_ptr<Stream>& stream, const std::string& key) {
  const auto there = listener_at(key);
  const int to = there ? there->rank : 0;
  if (cut_.contains(std::minmax(stream->rank, to))) return;  // no answer
  const std::weak_ptr weak(stream);
  simulation_.at(arrival_ns(stream->rank, to), [this, weak, key] {
    const auto from = weak.lock();
    if (!from) return;
    from->connecting = false;
    if (const auto listener = listener_at(key)) {
      join(*from, *listener)->peer = from;
    } else {
      end(*from, ECONNREFUSED);
    }
    wake(from->rank);
  });
}

int Kernel::name(int descriptor, sockaddr* address, socklen_t* bytes, bool of_peer) {
  const auto stream = find<Stream>(descriptor);
  const auto listener = find<Listener>(descriptor);
  const auto other = stream ? stream->peer.lock() : nullptr;
  sockaddr_in name{};
  name.sin_family = AF_INET;
  if (listener && !of_peer) name.sin_port = htons(static_cast<in_port_t>(listener->port));
  if (stream && !of_peer) name.sin_addr.s_addr = static_cast<in_addr_t>(stream->number);
  if (other && of_peer) name.sin_addr.s_addr = static_cast<in_addr_t>(other->number);
  *bytes = std::min<socklen_t>(*bytes, sizeof name);
  std::memcpy(address, &name, *bytes);
  return 0;
}

int Kernel::option(int descriptor, int option, void* value, socklen_t* bytes) {
  const auto stream = find<Stream>(descriptor);
  if (!stream) return -EBADF;
  if (option == SO_ERROR) {
    std::memcpy(value, &stream->error, std::min<std::size_t>(*bytes, sizeof stream->error));
  } else if (option == SO_PEERCRED) {
    std::memcpy(value, &stream->peer_is, std::min<std::size_t>(*bytes, sizeof(ucred)));
  } else {
    return -ENOPROTOOPT;
  }
  return 0;
}

// ---- bytes

std::int64_t Kernel::arrival_ns(int from, int to) {
  const auto on = [this](int rank) { return hosts_[static_cast<std::size_t>(rank)]; };
  const bool near = from < 0 || to < 0 || on(from) == on(to) || simulation_.enumerates();
  return near ? simulation_.time_ns() + kLoopbackNs : network_.journey_ns(from, to);
}

std::int64_t Kernel::send(int descriptor, const msghdr& message) {
  const auto stream = find<Stream>(descriptor);
  if (!stream || stream->ended) return -EPIPE;
  const auto other = stream->peer.lock();
  Piece piece;
  for (std::size_t i = 0; i < message.msg_iovlen; ++i)
    piece.bytes.append(static_cast<const char*>(message.msg_iov[i].iov_base),
                       message.msg_iov[i].iov_len);
  if (!other) return static_cast<std::int64_t>(piece.bytes.size());  // the bytes are lost
  if (other->coming >= kBufferBytes) return -EAGAIN;
  const int kind =
      simulation_.enumerates() ? 0 : simulation_.choose(kMoveBytes.size(), kMoveRarity);
  piece.bytes.resize(std::min({piece.bytes.size(), kBufferBytes - other->coming,
                               kMoveBytes[static_cast<std::size_t>(kind)]}));
  if (message.msg_controllen > 0 && CMSG_FIRSTHDR(&message) != nullptr) {
    int passed = -1;
    std::memcpy(&passed, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof passed);
    piece.passed = file(passed);
  }
  const auto bytes = static_cast<std::int64_t>(piece.bytes.size());
  if (on_send) on_send(rank(), stream->local, piece.bytes.size());
  if (!stream->local) overheard_ = piece.bytes;
  deliver(*other, std::move(piece));
  return bytes;
}

void Kernel::deliver(Stream& to, Piece piece) {
  to.coming += piece.bytes.size();
  const auto from = to.peer.lock();
  if (to.local) {
    to.arrived.push_back(std::move(piece));
    return wake(to.rank);
  }
  to.last_ns = std::max(to.last_ns, arrival_ns(from ? from->rank : -1, to.rank));
  // Descriptors are passed on one host only.
  std::weak_ptr<Stream> weak;
  if (from) weak = from->peer;
  simulation_.at(to.last_ns, [this, weak, bytes = std::move(piece.bytes)] {
    const auto stream = weak.lock();
    if (!stream || stream->ended) return;
    stream->arrived.push_back({bytes, nullptr});
    wake(stream->rank);
  });
}

// Bytes that were sent before the end arrive before it.
void Kernel::hang_up(const Stream& stream, Stream& other) {
  if (stream.local) return end(other, 0);
  other.last_ns = std::max(other.last_ns, arrival_ns(stream.rank, other.rank));
  simulation_.at(other.last_ns, [this, weak = stream.peer] {
    if (const auto told = weak.lock()) end(*told, 0);
  });
}

void Kernel::end(Stream& stream, int error) {
  stream.ended = true;
  stream.error = error;
  wake(stream.rank);
}

std::int64_t Kernel::receive(int descriptor, msghdr& message) {
  const auto stream = find<Stream>(descriptor);
  if (!stream) return -EBADF;
  if (stream->arrived.empty()) return !stream->ended ? -EAGAIN : -stream->error;
  Piece& piece = stream->arrived.front();
  const int kind =
      simulation_.enumerates() ? 0 : simulation_.choose(kMoveBytes.size(), kMoveRarity);
  const std::size_t bytes = std::min(
      {piece.bytes.size(), message.msg_iov->iov_len, kMoveBytes[static_cast<std::size_t>(kind)]});
  std::memcpy(message.msg_iov->iov_base, piece.bytes.data(), bytes);
  const int passed = piece.passed ? open(std::move(piece.passed)) : -1;
  if (passed >= 0) {
    cmsghdr* const head = CMSG_FIRSTHDR(&message);
    *head = {
        .cmsg_len = CMSG_LEN(sizeof passed), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    std::memcpy(CMSG_DATA(head), &passed, sizeof passed);
  } else {
    message.msg_controllen = 0;
  }
  piece.passed = nullptr;
  piece.bytes.erase(0, bytes);
  if (piece.bytes.empty()) stream->arrived.pop_front();
  stream->coming -= bytes;
  if (const auto other = stream->peer.lock()) wake(other->rank);
  return static_cast<std::int64_t>(bytes);
}

// ---- waiting

void Kernel::wake(int rank) {
  if (rank >= 0) simulation_.wake(&processes_[static_cast<std::size_t>(rank)]);
}

int Kernel::look(pollfd* polled, std::size_t count) {
  int ready = 0;
  for (std::size_t i = 0; i < count; ++i) {
    polled[i].revents = 0;
    if (polled[i].fd < 0) continue;
    const auto one = file(polled[i].fd);
    polled[i].revents = one ? static_cast<short>(one->ready() & polled[i].events) : POLLNVAL;
    ready += polled[i].revents != 0 ? 1 : 0;
  }
  return ready;
}

int Kernel::poll(pollfd* polled, std::size_t count, int wait_ms) {
  const std::int64_t end_ns = simulation_.time_ns() + wait_ms * 1'000'000LL;
  const bool dead = simulation_.dead(rank());  // a dead rank runs on to give back what it owns
  while (true) {
    const int ready = dead ? 0 : look(polled, count);
    if (ready > 0 || wait_ms == 0) return ready;
    const std::int64_t left_ns = end_ns - simulation_.time_ns();
    if (left_ns <= 0) return 0;
    if (!simulation_.enumerates() && simulation_.choose(2, kSignalRarity) > 0) return -EINTR;
    simulation_.sleep(&mine(), left_ns);
  }
}

void Kernel::sleep_us(std::int64_t us) { simulation_.sleep(nullptr, us * 1'000); }

int Kernel::open_pidfd(int pid) {
  if (!runs(pid)) return -ESRCH;
  const auto made = std::make_shared<PidFile>();
  made->pid = pid;
  return open(made);
}

void Kernel::fill_at_random(void* bytes, std::size_t count) {
  auto* const to = static_cast<unsigned char*>(bytes);
  std::generate_n(to, count, [this] { return static_cast<unsigned char>(random_.next()); });
}

bool Kernel::runs(int pid) const { return !simulation_.dead(pid - kFirstPid); }

}  // namespace ferry::test

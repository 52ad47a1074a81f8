#include "network/tcp_sockets.h"

#include <dirent.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <span>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/descriptor.h"
#include "base/environment.h"
#include "network/packet_filter.h"

namespace ferry::internal {

// All TcpSockets of this process, so that forked children can close them. Never destroyed, because
// transports may end after static objects.
struct OpenSockets {
  std::mutex mutex;  // locked while a TcpSockets changes, and while the process forks
  std::vector<const TcpSockets*> all;
  std::int64_t set_up_ns = 0;  // the time of the last set_up_connections()

  static OpenSockets& here() {
    static auto* const made = [] {
      pthread_atfork([] { here().mutex.lock(); }, [] { here().mutex.unlock(); },
                     [] {
                       for (const TcpSockets* sockets : here().all) sockets->close_in_child();
                       here().mutex.unlock();
                     });
      return new OpenSockets;
    }();
    return *made;
  }
};

namespace {

#ifndef TCP_RTO_MAX_MS
#define TCP_RTO_MAX_MS 44  // Linux 6.15
#endif
constexpr int kRetryMs = 1000;        // the least value that the kernel accepts
constexpr int kPatienceMs = INT_MAX;  // a wait ends by ferry's deadline and not by TCP's
constexpr int kSilentRetries = 4;     // they take two seconds or more
constexpr int kFirstBytesS = 1;       // a connection without bytes takes no descriptor

void set(int fd, int level, int name, int value) {
  setsockopt(fd, level, name, &value, sizeof value);
}

Ip ip_of(const sockaddr* address) {
  Ip ip{};
  if (address->sa_family == AF_INET6) {
    std::memcpy(ip.data(), &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, ip.size());
  } else {
    ip = kMappedIpv4;
    std::memcpy(&ip[12], &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, 4);
  }
  return ip;
}

bool is_inet(const sockaddr* address) {
  return address != nullptr && (address->sa_family == AF_INET || address->sa_family == AF_INET6);
}

// The same as getpeername(2), but also for a connection that is not established yet. The kernel
// refuses a buffer that is larger than the address.
int peer_asked_for(int fd, sockaddr* address, socklen_t* bytes) noexcept {
  for (const socklen_t most : {sizeof(sockaddr_in6), sizeof(sockaddr_in)}) {
    *bytes = most;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERNAME, address, bytes) == 0) return 0;
  }
  return -1;
}

// Returns one end of a connection. `name` is getsockname or peer_asked_for.
std::optional<IpEndpoint> end_of(int fd, decltype(&getsockname) name) {
  sockaddr_storage storage{};
  socklen_t bytes = sizeof storage;
  auto* address = reinterpret_cast<sockaddr*>(&storage);
  if (name(fd, address, &bytes) != 0 || !is_inet(address)) return std::nullopt;
  // Both families have the port at the same offset.
  return IpEndpoint{ip_of(address), ntohs(reinterpret_cast<sockaddr_in*>(address)->sin_port)};
}

bool has_option(int fd, int name, int wanted) {
  int value = 0;
  socklen_t bytes = sizeof value;
  return getsockopt(fd, SOL_SOCKET, name, &value, &bytes) == 0 && value == wanted;
}

std::optional<tcp_info> info_of(int fd) {
  tcp_info info{};
  socklen_t bytes = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return std::nullopt;
  return info;
}

// Whether a connection has no reply yet, or was refused.
bool is_unconnected(int fd) {
  const std::optional<tcp_info> info = info_of(fd);
  return info && (info->tcpi_state == TCP_SYN_SENT || info->tcpi_state == TCP_CLOSE);
}

std::vector<int> tcp_sockets() {
  std::vector<int> found;
  DIR* directory = opendir("/proc/self/fd");
  if (directory == nullptr) return found;
  while (const dirent* entry = readdir(directory)) {
    if (std::isdigit(static_cast<unsigned char>(entry->d_name[0])) == 0) continue;
    const int fd = std::atoi(entry->d_name);
    if (has_option(fd, SO_PROTOCOL, IPPROTO_TCP)) found.push_back(fd);
  }
  closedir(directory);
  return found;
}

// The name of a socket, "socket:[inode]". It is unique while the socket is open.
std::string name_of(int fd) {
  char name[64] = {};
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  return readlink(link.c_str(), name, sizeof name - 1) > 0 ? name : "";
}

std::vector<int> listening_sockets() {
  std::vector<int> found = tcp_sockets();
  std::erase_if(found, [](int fd) { return !has_option(fd, SO_ACCEPTCONN, 1); });
  return found;
}

// The addresses of this host without those of the loopback.
std::set<Ip> host_ips() {
  std::set<Ip> ips;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return ips;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next)
    if (is_inet(entry->ifa_addr)) ips.insert(ip_of(entry->ifa_addr));
  freeifaddrs(list);
  std::erase_if(ips, is_loopback);
  return ips;
}

void set_up(int fd) {
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  set(fd, IPPROTO_TCP, TCP_RTO_MAX_MS, kRetryMs);
  if (!environment("UCX_TCP_USER_TIMEOUT")) set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, kPatienceMs);
}

}  // namespace

// The local and the remote end of a connection.
struct TcpSockets::Ends {
  explicit Ends(int fd) : local(end_of(fd, getsockname)), peer(end_of(fd, peer_asked_for)) {}
  std::optional<IpEndpoint> local, peer;
};

TcpSockets::TcpSockets() {
  for (const int fd : listening_sockets()) not_ours_.insert(name_of(fd));
  const std::lock_guard lock(OpenSockets::here().mutex);
  OpenSockets::here().all.push_back(this);
}

TcpSockets::~TcpSockets() {
  const std::lock_guard lock(OpenSockets::here().mutex);
  std::erase(OpenSockets::here().all, this);
}

void TcpSockets::find(std::string_view ucx_address) {
  const std::lock_guard lock(OpenSockets::here().mutex);
  for (const int fd : listening_sockets()) {
    const auto local = end_of(fd, getsockname);
    if (!local || not_ours_.contains(name_of(fd))) continue;
    const std::uint16_t port = htons(local->port);
    if (ucx_address.find(as_text(bytes_of(port))) == std::string_view::npos) continue;
    ports_.insert(local->port);
    listens_.push_back(*local);
    set_up(fd);  // accepted connections inherit it
    set(fd, IPPROTO_TCP, TCP_DEFER_ACCEPT, kFirstBytesS);
  }
  guard();
}

std::string TcpSockets::address() const {
  const std::set<Ip> ips = host_ips();
  std::string text;
  append(text, static_cast<std::uint32_t>(ips.size()));
  for (const Ip& ip : ips) append(text, ip);
  for (const IpEndpoint& end : listens_) {
    append(text, end.ip);
    append(text, end.port);
  }
  return text;
}

TcpSockets::Place TcpSockets::place_of(std::string_view address) {
  ByteReader reader(address);
  Place place;
  for (auto count = reader.get<std::uint32_t>(); count > 0 && reader.ok(); --count)
    place.ips.insert(reader.get<Ip>());
  while (reader.remaining() > 0 && reader.ok()) {
    const Ip ip = reader.get<Ip>();
    place.listens.push_back({ip, reader.get<std::uint16_t>()});
  }
  return place;
}

void TcpSockets::let_in(const std::vector<std::string>& addresses) {
  const std::set<Ip> mine = host_ips();
  const std::lock_guard lock(OpenSockets::here().mutex);
  const bool first = peer_ips_.empty();
  for (const std::string& address : addresses) {
    Place place = place_of(address);
    // Ranks of one host may connect over the loopback of the host.
    if (place.ips == mine) place.ips.insert({kLoopback4, kLoopback6});
    peer_ips_.insert(place.ips.begin(), place.ips.end());
    for (const IpEndpoint& end : place.listens) peer_ports_.insert(end.port);
  }
  // No peer of the job connects before the first call, so existing connections are closed.
  for (const int fd : tcp_sockets())
    if (first && is_ours(Ends(fd)) && !has_option(fd, SO_ACCEPTCONN, 1)) shutdown(fd, SHUT_RDWR);
  guard();
}

void TcpSockets::guard() {
  exposed_.clear();
  for (const int fd : tcp_sockets()) {
    if (!has_option(fd, SO_ACCEPTCONN, 1) || !is_ours(Ends(fd))) continue;
    if (const std::string why = let_through_only(fd, peer_ips_); !why.empty()) exposed_ = why;
  }
}

std::vector<IpEndpoint> TcpSockets::unconnected() const {
  std::vector<IpEndpoint> found;
  for (const int fd : tcp_sockets()) {
    if (!is_unconnected(fd)) continue;
    const Ends ends(fd);
    if (ends.peer && is_ours(ends)) found.push_back(*ends.peer);
  }
  return found;
}

std::set<Ip> TcpSockets::silent(std::uint32_t ms) const {
  std::set<Ip> silent, heard;
  for (const int fd : tcp_sockets()) {
    const Ends ends(fd);
    const std::optional<tcp_info> info = info_of(fd);
    if (!info || info->tcpi_state != TCP_ESTABLISHED || !ends.peer || !is_ours(ends)) continue;
    if (info->tcpi_last_ack_recv < ms) heard.insert(ends.peer->ip);
    if (info->tcpi_last_ack_recv >= ms && info->tcpi_retransmits >= kSilentRetries)
      silent.insert(ends.peer->ip);
  }
  std::erase_if(silent, [&](const Ip& ip) { return heard.contains(ip); });
  return silent;
}

void TcpSockets::set_up_connections(std::int64_t every_ns) {
  OpenSockets& here = OpenSockets::here();
  const std::lock_guard lock(here.mutex);
  if (now_ns() - here.set_up_ns < every_ns) return;
  here.set_up_ns = now_ns();
  for (const int fd : tcp_sockets()) {
    const Ends ends(fd);
    if (std::ranges::any_of(here.all, [&](const auto* sockets) { return sockets->is_ours(ends); }))
      set_up(fd);
  }
}

bool TcpSockets::is_ours(const Ends& ends) const {
  if (ends.local && ports_.contains(ends.local->port)) return true;
  return ends.peer && peer_ports_.contains(ends.peer->port) && peer_ips_.contains(ends.peer->ip);
}

// Closes the sockets in a child. The descriptors stay open, on /dev/null, because UCX may close
// them in the child.
void TcpSockets::close_in_child() const {
  const Descriptor nothing(open("/dev/null", O_RDWR | O_CLOEXEC));
  for (const int fd : tcp_sockets())
    if (is_ours(Ends(fd))) dup3(nothing.fd(), fd, O_CLOEXEC);
}

}  // namespace ferry::internal

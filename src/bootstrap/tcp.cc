// Makes the system calls of TCP sockets. All descriptors are close-on-exec and non-blocking.
#include "bootstrap/tcp.h"

#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <future>
#include <memory>
#include <sstream>
#include <string_view>
#include <system_error>
#include <thread>

#include "base/check.h"
#include "ferry/status.h"

namespace ferry::internal {
namespace {

constexpr std::string_view kScheme = "tcp://";
constexpr int kBacklog = 4096;
// The limit for one address; the next address may reply. It is longer than the three seconds after
// which the kernel reports that no host of a local network has the address.
constexpr std::chrono::seconds kLongestConnect{4};

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t bytes = sizeof(storage);

  const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() noexcept { return reinterpret_cast<sockaddr*>(&storage); }
  in_port_t& port() noexcept {
    return storage.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port
                                         : reinterpret_cast<sockaddr_in*>(&storage)->sin_port;
  }
  bool operator==(const SocketAddress& other) const noexcept {
    return bytes == other.bytes && std::memcmp(&storage, &other.storage, bytes) == 0;
  }
};

SocketAddress made_of(const sockaddr* address, socklen_t bytes) {
  SocketAddress copy;
  FERRY_CHECK(bytes, <=, sizeof(copy.storage));
  std::memcpy(&copy.storage, address, bytes);
  copy.bytes = bytes;
  return copy;
}

std::string numeric(const sockaddr* address, socklen_t bytes) {
  char text[NI_MAXHOST] = {};
  getnameinfo(address, bytes, text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
  return text;
}

Error refused(const std::string& what) {
  return Error(Code::kSystem, fmt::format("{}: {}", what, std::strerror(errno)));
}

void set(const Descriptor& socket, int level, int option, int value) noexcept {
  setsockopt(socket.fd(), level, option, &value, sizeof(value));
}

// Sets a socket such that small messages are sent at once, and that the loss of a host is found
// within half a minute.
void tune(const Descriptor& socket) noexcept {
  set(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(socket, IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set(socket, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(socket, IPPROTO_TCP, TCP_KEEPCNT, 4);
  set(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, 30'000);
}

Descriptor new_socket(int family) {
  return Descriptor(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

struct Interface {
  std::string name;
  SocketAddress address;
};

// The interfaces that are up. The loopback is left out unless it is named. IPv4 comes first,
// because it needs no scope.
std::vector<Interface> interfaces_of(const std::string& names) {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) throw refused("cannot list the network interfaces");
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(first, freeifaddrs);
  std::vector<std::string> wanted;
  std::istringstream list(names);
  for (std::string name; std::getline(list, name, ',');) wanted.push_back(name);
  std::vector<Interface> found;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* one = first; one != nullptr; one = one->ifa_next) {
      if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != family) continue;
      const auto* ipv6 = reinterpret_cast<const sockaddr_in6*>(one->ifa_addr);
      if (family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&ipv6->sin6_addr)) continue;
      const bool named = std::find(wanted.begin(), wanted.end(), one->ifa_name) != wanted.end();
      const bool loopback = (one->ifa_flags & IFF_LOOPBACK) != 0;
      if ((one->ifa_flags & IFF_UP) == 0 || (wanted.empty() ? loopback : !named)) continue;
      const socklen_t bytes = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
      found.push_back({one->ifa_name, made_of(one->ifa_addr, bytes)});
    }
  }
  if (found.empty() && !wanted.empty())
    throw Error(
        Code::kInvalidArgument,
        fmt::format("FERRY_SOCKET_IFNAME=\"{}\" names no interface with an address", names));
  return found;
}

SocketAddress any_address(int family) {
  SocketAddress any;
  any.storage.ss_family = static_cast<sa_family_t>(family);
  any.bytes = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  return any;  // all zero: every interface, in both families
}

// Returns an empty descriptor if another socket holds the port, if this host lacks the address, or
// if the kernel does not support the family.
Descriptor listen_on(SocketAddress at, int port) {
  Descriptor socket = new_socket(at.storage.ss_family);
  if (!socket && errno == EAFNOSUPPORT) return {};
  if (!socket) throw refused("no TCP socket");
  set(socket, SOL_SOCKET, SO_REUSEADDR, 1);  // connections of an earlier group may still be closing
  tune(socket);                              // accepted connections inherit it
  if (at.storage.ss_family == AF_INET6) set(socket, IPPROTO_IPV6, IPV6_V6ONLY, 0);
  at.port() = htons(static_cast<in_port_t>(port));
  if (bind(socket.fd(), at.get(), at.bytes) == 0 && listen(socket.fd(), kBacklog) == 0)
    return socket;
  if (errno == EADDRINUSE || errno == EADDRNOTAVAIL) return {};
  throw refused(fmt::format("cannot listen at {} port {}", numeric(at.get(), at.bytes), port));
}

// Whether a socket is connected to itself. This can happen with a port at which no socket listens.
bool is_own_echo(const Descriptor& socket) noexcept {
  SocketAddress here, there;
  return getsockname(socket.fd(), here.get(), &here.bytes) == 0 &&
         getpeername(socket.fd(), there.get(), &there.bytes) == 0 && here == there;
}

void throw_it(const Error& why) { throw why; }

// Returns 0 or an errno.
int wait_connected(const Descriptor& socket, Deadline deadline) {
  pollfd ready{socket.fd(), POLLOUT, 0};
  while (poll(&ready, 1, deadline.remaining_ms()) <= 0) {
    if (deadline.passed()) return ETIMEDOUT;
    deadline.look(throw_it);
  }
  int error = 0;
  socklen_t bytes = sizeof(error);
  getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &bytes);
  return error == 0 && is_own_echo(socket) ? ECONNREFUSED : error;
}

// Names an address as "a (10.0.0.1)", or as the number alone if the host was given as a number.
std::string name_of(const std::string& host, const addrinfo& at) {
  const std::string number = numeric(at.ai_addr, at.ai_addrlen);
  return number == host ? number : fmt::format("{} ({})", host, number);
}

Attempt connect_to_one(const std::string& host, const addrinfo& at, Deadline deadline) {
  const std::string name = name_of(host, at);
  Descriptor socket = new_socket(at.ai_family);
  if (!socket && errno == EAFNOSUPPORT)
    return {{}, name + ": this host does not support such addresses"};
  if (!socket) throw refused("no TCP socket");
  tune(socket);
  const int begun = connect(socket.fd(), at.ai_addr, at.ai_addrlen);
  const int error = begun == 0 || errno == EINPROGRESS || errno == EINTR
                        ? wait_connected(socket, deadline.earlier(kLongestConnect))
                        : errno;
  if (error == 0) return {std::move(socket), ""};
  const bool cut = error == ETIMEDOUT && deadline.passed();
  const std::string why = cut ? "no reply before the deadline" : std::strerror(error);
  return {{}, fmt::format("{}: {}", name, why), cut, error == ETIMEDOUT};
}

struct Resolved {
  int failed;  // the result of getaddrinfo()
  std::shared_ptr<const addrinfo> first;
};

Resolved look_up(const std::string& host, int port, int flags) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_NUMERICSERV | flags;
  addrinfo* first = nullptr;
  const int failed = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wanted, &first);
  if (failed != 0) return {failed, nullptr};
  return {0, {first, freeaddrinfo}};
}

// Resolves a host. Returns null, and adds a reason to `why`, if there is no address. A detached
// thread resolves names, because getaddrinfo() has no deadline; a late result is dropped.
std::shared_ptr<const addrinfo> resolve(const std::string& host, int port, Deadline deadline,
                                        std::vector<std::string>& why) {
  if (const Resolved number = look_up(host, port, AI_NUMERICHOST); number.first)
    return number.first;
  std::packaged_task<Resolved()> task([host, port] { return look_up(host, port, 0); });
  std::future<Resolved> resolved = task.get_future();
  try {
    std::thread(std::move(task)).detach();
  } catch (const std::system_error& error) {
    throw Error(Code::kSystem, fmt::format("no thread to resolve {}: {}", host, error.what()));
  }
  while (resolved.wait_for(std::chrono::milliseconds(deadline.remaining_ms())) !=
         std::future_status::ready) {
    deadline.look(throw_it);
    if (!deadline.passed()) continue;
    why.push_back(fmt::format("cannot resolve {}: no answer before the deadline", host));
    return nullptr;
  }
  const Resolved name = resolved.get();
  if (!name.first)
    why.push_back(fmt::format("cannot resolve {}: {}", host, gai_strerror(name.failed)));
  return name.first;
}

}  // namespace

std::string TcpAddress::text() const {
  std::vector<std::string> names;
  for (const std::string& host : hosts)
    names.push_back(host.find(':') == std::string::npos ? host : '[' + host + ']');
  return fmt::format("{}{}:{}", kScheme, fmt::join(names, ","), port);
}

bool is_tcp(const std::string& text) { return text.starts_with(kScheme); }

namespace {

// The host that a name stands for; empty: none. Without brackets, the port behind an IPv6 address
// would be ambiguous.
std::string host_in(const std::string& name) {
  if (name.find_first_of("/ ") != std::string::npos) return {};
  if (name.size() >= 2 && name.front() == '[' && name.back() == ']')
    return name.substr(1, name.size() - 2);
  return name.find(':') == std::string::npos ? name : "";
}

}  // namespace

TcpAddress parse_tcp(const std::string& text) {
  const std::string rest = is_tcp(text) ? text.substr(kScheme.size()) : "";
  const std::size_t colon = rest.rfind(':');
  std::vector<std::string> hosts;
  std::istringstream names(rest.substr(0, colon) + ',');
  for (std::string name; std::getline(names, name, ',');) hosts.push_back(host_in(name));
  const std::string digits = colon == std::string::npos ? "" : rest.substr(colon + 1);
  int port = 0;
  const char* end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, port);
  const bool number = error == std::errc() && stop == end && port >= 1 && port <= kMostPort;
  if (number && std::ranges::count(hosts, "") == 0) return {hosts, port};
  throw Error(
      Code::kInvalidArgument,
      fmt::format("\"{}\" is not tcp://host:port or tcp://host,host:port, with a port from 1 "
                  "to 65535 and IPv6 addresses in brackets",
                  text));
}

Descriptor tcp_listen(const std::string& interfaces, int port) {
  if (!interfaces.empty()) return listen_on(interfaces_of(interfaces).front().address, port);
  if (Descriptor socket = listen_on(any_address(AF_INET6), port)) return socket;
  if (errno == EADDRINUSE) return {};
  return listen_on(any_address(AF_INET), port);  // for a host without IPv6
}

int port_of(const Descriptor& socket) noexcept {
  SocketAddress at;
  return getsockname(socket.fd(), at.get(), &at.bytes) == 0 ? ntohs(at.port()) : 0;
}

std::string local_address_of(const Descriptor& socket) {
  SocketAddress at;
  if (!socket || getsockname(socket.fd(), at.get(), &at.bytes) != 0) return "";
  if (at.storage.ss_family != AF_INET && at.storage.ss_family != AF_INET6) return "";
  const std::string text = numeric(at.get(), at.bytes);
  const std::string mapped = "::ffff:";  // IPv4, through a listener of both families
  const std::string plain = text.starts_with(mapped) ? text.substr(mapped.size()) : text;
  return plain.starts_with("127.") || plain == "::1" ? "" : plain;
}

Attempt tcp_connect(const TcpAddress& address, Deadline deadline) {
  std::vector<std::string> why;
  bool silent = false;
  for (const std::string& host : address.hosts) {
    if (deadline.passed()) break;
    const auto first = resolve(host, address.port, deadline, why);
    for (const addrinfo* one = first.get(); one && !deadline.passed(); one = one->ai_next) {
      Attempt attempt = connect_to_one(host, *one, deadline);
      if (attempt.socket) return attempt;
      why.push_back(std::move(attempt.why));
      silent = silent || attempt.silent;
    }
  }
  return {{}, fmt::format("{}", fmt::join(why, ", ")), deadline.passed(), silent};
}

std::vector<std::string> own_addresses(const std::string& interfaces) {
  std::vector<std::string> texts;
  for (const Interface& one : interfaces_of(interfaces))
    texts.push_back(numeric(one.address.get(), one.address.bytes));
  return texts;
}

}  // namespace ferry::internal

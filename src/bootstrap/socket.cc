// Makes the system calls of abstract Unix sockets. All descriptors are close-on-exec and
// non-blocking.
#include "bootstrap/socket.h"

#include <fmt/format.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>

#include "base/check.h"
#include "ferry/status.h"

namespace ferry::internal {
namespace {

constexpr std::size_t kMaxAddressBytes = 64;
constexpr int kBacklog =
    4096;  // the kernel cuts it to net.core.somaxconn; clients try again when it is full

struct SocketAddress {
  explicit SocketAddress(const std::string& name) {
    FERRY_CHECK(name.size(), <, sizeof(address.sun_path));
    address.sun_family = AF_UNIX;
    // sun_path[0] stays 0, which makes the name abstract.
    name.copy(address.sun_path + 1, sizeof(address.sun_path) - 1);
    bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
  const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&address); }

  sockaddr_un address{};
  socklen_t bytes;
};

std::uint64_t fnv1a(const std::string& text) noexcept {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

Descriptor new_socket() {
  Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) throw Error(Code::kSystem, fmt::format("no Unix socket: {}", std::strerror(errno)));
  return socket;
}

struct ListenersRequest {
  nlmsghdr head{.nlmsg_len = sizeof(ListenersRequest),
                .nlmsg_type = SOCK_DIAG_BY_FAMILY,
                .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP,
                .nlmsg_seq = 1,
                .nlmsg_pid = 0};
  unix_diag_req sockets{.sdiag_family = AF_UNIX,
                        .sdiag_protocol = 0,
                        .pad = 0,
                        .udiag_states = 1u << TCP_LISTEN,
                        .udiag_ino = 0,
                        .udiag_show = UDIAG_SHOW_NAME | UDIAG_SHOW_UID,
                        .udiag_cookie = {}};
};

// The abstract name in the kernel's description of a socket. nullopt if the socket is not of user
// `uid`.
std::optional<std::string> name_of_user(const nlmsghdr* message, uid_t uid) {
  std::string name;
  std::size_t bytes = message->nlmsg_len - NLMSG_LENGTH(sizeof(unix_diag_msg));
  const auto* described = static_cast<const unix_diag_msg*>(NLMSG_DATA(message));
  for (auto* one = reinterpret_cast<const rtattr*>(described + 1); RTA_OK(one, bytes);
       one = RTA_NEXT(one, bytes)) {
    const char* data = static_cast<const char*>(RTA_DATA(one));
    if (one->rta_type == UNIX_DIAG_NAME) name.assign(data, RTA_PAYLOAD(one));
    if (one->rta_type != UNIX_DIAG_UID || RTA_PAYLOAD(one) != sizeof(uid)) continue;
    if (std::memcmp(data, &uid, sizeof(uid)) != 0) return std::nullopt;
  }
  if (name.empty() || name[0] != '\0') return std::nullopt;  // the name is in the file system
  return name.substr(1);
}

}  // namespace

std::string socket_name(const std::string& address, int size) {
  std::string text = address;
  if (text.size() > kMaxAddressBytes) {
    text = fmt::format("{}-{:016x}", address.substr(0, kMaxAddressBytes - 17), fnv1a(address));
  }
  return fmt::format("ferry-{}-{}-{}", geteuid(), text, size);
}

Descriptor listen_at(const std::string& name) {
  Descriptor socket = new_socket();
  const SocketAddress address(name);
  if (bind(socket.fd(), address.get(), address.bytes) != 0) {
    if (errno == EADDRINUSE) return {};
    throw Error(Code::kSystem, fmt::format("cannot bind @{}: {}", name, std::strerror(errno)));
  }
  if (listen(socket.fd(), kBacklog) != 0) {
    throw Error(Code::kSystem, fmt::format("cannot listen at @{}: {}", name, std::strerror(errno)));
  }
  return socket;
}

Descriptor connect_to(const std::string& name) {
  Descriptor socket = new_socket();
  const SocketAddress address(name);
  if (connect(socket.fd(), address.get(), address.bytes) == 0) return socket;
  if (errno == ECONNREFUSED || errno == EAGAIN || errno == EINTR) return {};
  throw Error(Code::kSystem, fmt::format("cannot connect to @{}: {}", name, std::strerror(errno)));
}

Descriptor accept_from(const Descriptor& listener) noexcept {
  int fd;
  do {
    fd = accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  } while (fd < 0 && (errno == EINTR || errno == ECONNABORTED));
  return Descriptor(fd);
}

Credentials credentials_of(const Descriptor& socket) noexcept {
  ucred who{};
  socklen_t bytes = sizeof(who);
  if (getsockopt(socket.fd(), SOL_SOCKET, SO_PEERCRED, &who, &bytes) != 0)
    return {0, static_cast<uid_t>(-1)};
  return {who.pid, who.uid};
}

std::vector<std::string> abstract_listeners(uid_t uid) {
  std::vector<std::string> names;
  const Descriptor kernel(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  const ListenersRequest request;
  if (!kernel || send(kernel.fd(), &request, sizeof(request), 0) < 0) return names;
  alignas(nlmsghdr) char replies[32 << 10];
  while (true) {
    auto bytes = recv(kernel.fd(), replies, sizeof(replies), 0);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) return names;
    for (auto* one = reinterpret_cast<const nlmsghdr*>(replies); NLMSG_OK(one, bytes);
         one = NLMSG_NEXT(one, bytes)) {
      if (one->nlmsg_type != SOCK_DIAG_BY_FAMILY) return names;  // the end of the list, or an error
      if (auto name = name_of_user(one, uid)) names.push_back(*std::move(name));
    }
  }
}

}  // namespace ferry::internal

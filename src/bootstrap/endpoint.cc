// Implements the two kinds of endpoint.
#include "bootstrap/endpoint.h"

#include <fmt/format.h>
#include <unistd.h>

#include <vector>

#include "base/check.h"
#include "bootstrap/connection.h"
#include "bootstrap/hello.h"
#include "bootstrap/socket.h"

namespace ferry::internal {
namespace {

constexpr std::size_t kRandomDigits = 16;

std::string unix_name(const Endpoint& endpoint) {
  FERRY_CHECK(endpoint.name.front(), ==, '@');
  return endpoint.name.substr(1);
}

// Listens at a name that begins with `name`, which a process of another user holds. Members search
// for such names.
Descriptor listen_beside(const std::string& name) {
  return listen_at(name + '-' + hex(fresh_nonce()).substr(0, kRandomDigits));
}

// Lists the listeners of this user whose names begin with `name`. Another user may have any number
// of such names.
std::vector<std::string> names_beside(const std::string& name) {
  std::vector<std::string> names = abstract_listeners(geteuid());
  std::erase_if(names, [&](const std::string& one) {
    return one.size() != name.size() + 1 + kRandomDigits || !one.starts_with(name + '-');
  });
  return names;
}

// Connects to a listener of this user. A process of another user is not a rank of the group, even
// if it holds the name.
Attempt connect_on_host(const std::string& name) {
  Attempt attempt{connect_to(name), "no socket listens there"};
  const auto is_ours = [&] {
    const Credentials who = attempt.socket ? credentials_of(attempt.socket) : Credentials{};
    if (!attempt.socket || who.uid == geteuid()) return bool(attempt.socket);
    attempt.why = fmt::format(
        "pid {} of uid {} holds that name, ranks of one group share their "
        "user, uid {}",
        who.pid, who.uid, geteuid());
    return false;
  };
  if (is_ours()) return attempt;
  for (const std::string& beside : names_beside(name)) {
    attempt.socket = connect_to(beside);
    if (is_ours()) return attempt;
  }
  attempt.socket = {};
  return attempt;
}

}  // namespace

std::chrono::milliseconds Endpoint::longest_pause() const noexcept {
  return std::chrono::milliseconds(local() ? 20 : Deadline::kLongestSleepMs);
}

Endpoint unix_endpoint(const std::string& address, int num_ranks) {
  return {
      .name = '@' + socket_name(address, num_ranks),
      .advice = fmt::format("on this host ({}) as uid {} with the same address and size, in the "
                            "same network namespace ({}); containers with networks of their "
                            "own meet at tcp://host:port",
                            host_name(), geteuid(), net_namespace()),
      .tcp = {},
      .secret = nullptr};
}

Endpoint tcp_endpoint(const TcpEndpoint& tcp) {
  return {.name = tcp.address.text(),
          .advice = "with the same FERRY_SECRET, address and size",
          .tcp = tcp,
          .secret = std::make_shared<const Secret>(tcp.secret)};
}

Descriptor listen_at(const Endpoint& endpoint) {
  if (!endpoint.local()) {
    const TcpEndpoint& tcp = endpoint.tcp;
    return tcp.listener ? std::move(*tcp.listener) : tcp_listen(tcp.interfaces, tcp.address.port);
  }
  const std::string name = unix_name(endpoint);
  if (Descriptor listener = listen_at(name)) return listener;
  const Descriptor holder = connect_to(name);
  const bool ours = holder && credentials_of(holder).uid == geteuid();
  return ours ? Descriptor() : listen_beside(name);
}

Attempt connect_to(const Endpoint& endpoint, Deadline deadline) {
  return endpoint.local() ? connect_on_host(unix_name(endpoint))
                          : tcp_connect(endpoint.tcp.address, deadline);
}

std::string holder_of(const Endpoint& endpoint) {
  const Deadline deadline = Deadline::after(std::chrono::seconds(1));
  Attempt attempt = connect_to(endpoint, deadline);
  if (!attempt.socket) return "a socket that accepts no connection";
  Connection connection(std::move(attempt.socket));
  if (endpoint.local()) return fmt::format("pid {}", connection.credentials().pid);
  std::optional<Frame> frame;
  while (!(frame = connection.take()) && !connection.closed() && !deadline.passed())
    service({&connection}, deadline.remaining_ms());
  return frame && frame->kind == FrameKind::kChallenge
             ? "rank 0 of another job, or of another group of this one,"
             : "a program that is not rank 0 of a group of ferry";
}

}  // namespace ferry::internal

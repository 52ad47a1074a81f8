// The two kinds of endpoint.
#include "bootstrap/endpoint.h"

#include <fmt/format.h>
#include <unistd.h>

#include "bootstrap/connection.h"
#include "bootstrap/hello.h"
#include "bootstrap/socket.h"

namespace ferry::internal {
namespace {

std::string unix_name(const Endpoint& endpoint) { return endpoint.name.substr(1); }

// Connects as a rank would, and leaves.
Holder holder_of_port(const TcpAddress& address, const Secret& secret) {
  const Deadline deadline = Deadline::after(std::chrono::seconds(1));
  Attempt attempt = tcp_connect(address, deadline);
  if (!attempt.socket) return {"a socket that accepts no connection"};
  Connection connection(std::move(attempt.socket));
  std::optional<Frame> frame;
  while (!(frame = connection.take()) && !connection.closed() && !deadline.passed())
    service({&connection}, deadline.remaining_ms(100));
  const auto job = frame && frame->kind == FrameKind::kChallenge
                       ? Handshake().challenged(frame->payload)
                       : std::nullopt;
  if (!job) return {"a program that is not rank 0 of a group of ferry"};
  if (*job == secret.digest()) return {"another group of this job"};
  return {fmt::format("another job (its secret has the digest {}, this one's {})", *job,
                      secret.digest()),
          true};
}

}  // namespace

std::chrono::milliseconds Endpoint::longest_pause() const noexcept {
  return std::chrono::milliseconds(local() ? 20 : 200);
}

Endpoint unix_endpoint(const std::string& address, int num_ranks) {
  return {.name = '@' + socket_name(address, num_ranks),
          .advice = fmt::format("on this host ({}) as uid {} and be told the same address and size",
                                host_name(), geteuid()),
          .tcp = {},
          .secret = nullptr};
}

Endpoint tcp_endpoint(const TcpEndpoint& tcp) {
  return {.name = tcp.address.text(),
          .advice = "and be told the same FERRY_SECRET, address and size",
          .tcp = tcp,
          .secret = std::make_shared<const Secret>(tcp.secret)};
}

Descriptor listen_at(const Endpoint& endpoint) {
  if (endpoint.local()) return listen_at(unix_name(endpoint));
  const TcpEndpoint& tcp = endpoint.tcp;
  return tcp.listener ? std::move(*tcp.listener) : tcp_listen(tcp.interfaces, tcp.address.port);
}

Attempt connect_to(const Endpoint& endpoint, Deadline deadline) {
  if (!endpoint.local()) return tcp_connect(endpoint.tcp.address, deadline);
  return {connect_to(unix_name(endpoint)), "nobody listens there"};
}

Holder holder_of(const Endpoint& endpoint) {
  if (!endpoint.local()) return holder_of_port(endpoint.tcp.address, *endpoint.secret);
  const Descriptor socket = connect_to(unix_name(endpoint));
  const Credentials who = socket ? credentials_of(socket) : Credentials{};
  return {fmt::format("pid {} (uid {})", who.pid, who.uid)};
}

}  // namespace ferry::internal

// The two doors, and who stands in them.
#include "bootstrap/door.h"

#include <fmt/format.h>
#include <unistd.h>

#include "bootstrap/connection.h"
#include "bootstrap/hello.h"

namespace ferry::internal {
namespace {

Door::Holder holder_of_name(const std::string& name) {
  const Descriptor socket = connect_to(name);
  const Credentials who = socket ? credentials_of(socket) : Credentials{};
  return {fmt::format("pid {} (uid {})", who.pid, who.uid)};
}

// Asks as a rank would, and leaves.
Door::Holder holder_of_port(const TcpAddress& address, const Secret& secret) {
  const Deadline deadline = Deadline::after(std::chrono::seconds(1));
  Attempt attempt = tcp_connect(address, deadline);
  if (!attempt.socket) return {"a socket that accepts no connection"};
  Connection connection(std::move(attempt.socket));
  std::optional<Frame> frame;
  while (!(frame = connection.take()) && !connection.closed() && !deadline.passed())
    service({&connection}, deadline.remaining_ms(100));
  const auto job = frame && frame->kind == Kind::kChallenge ? Handshake().challenged(frame->payload)
                                                            : std::nullopt;
  if (!job) return {"a program that is not rank 0 of a group of ferry"};
  if (*job == secret.digest()) return {"another group of this job"};
  return {fmt::format("another job (its secret has the digest {}, this one's {})", *job,
                      secret.digest()),
          true};
}

}  // namespace

Door unix_door(const std::string& address, int num_ranks) {
  const std::string name = socket_name(address, num_ranks);
  return {.name = '@' + name,
          .advice = fmt::format("on this host ({}) as uid {} and be told the same address and size",
                                host_name(), geteuid()),
          .secret = std::nullopt,
          .listen = [name] { return listen_at(name); },
          .connect =
              [name](Deadline) {
                return Attempt{connect_to(name), "nobody listens there"};
              },
          .holder = [name] { return holder_of_name(name); }};
}

Door tcp_door(const TcpMeeting& meeting) {
  const Secret secret(meeting.secret);
  const TcpAddress& address = meeting.address;
  return {.name = address.text(),
          .advice = "and be told the same FERRY_SECRET, address and size",
          .secret = secret,
          .longest_pause = std::chrono::milliseconds(200),
          .listen =
              [meeting] {
                return meeting.listener ? std::move(*meeting.listener)
                                        : tcp_listen(meeting.interfaces, meeting.address.port);
              },
          .connect = [address](Deadline deadline) { return tcp_connect(address, deadline); },
          .holder = [address, secret] { return holder_of_port(address, secret); }};
}

}  // namespace ferry::internal

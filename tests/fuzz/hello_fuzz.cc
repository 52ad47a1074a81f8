// The bytes that a stranger may send to the port where ranks meet: frames, hellos, failures, and
// the parts of a handshake.
#include <sys/socket.h>

#include <cstdint>
#include <cstdlib>

#include "bootstrap/connection.h"
#include "bootstrap/handshake.h"
#include "bootstrap/hello.h"

namespace {

using namespace ferry::internal;

void read_payload(const std::string& payload) {
  if (const auto hello = decode_hello(payload)) {
    const auto again = decode_hello(encode(*hello));
    if (!again || encode(*again) != encode(*hello)) std::abort();
    disagreement(*hello, *again);
    disagreement_on_host(*hello, *again);
  }
  ferry::internal::failure_in(payload);
  static const Secret secret("a secret of the fuzzer");
  static Handshake handshake(secret, Handshake::Side::kCoordinator);
  static const std::string share = Handshake(secret, Handshake::Side::kMember).share();
  static const bool taken = handshake.take_share(share);
  if (!taken || handshake.open(payload)) std::abort();  // nobody knows the secret
  if (payload.size() == Handshake::kShareBytes)
    Handshake(secret, Handshake::Side::kMember).take_share(payload);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) != 0) std::abort();
  const Descriptor stranger(ends[0]);
  Connection connection{Descriptor(ends[1])};
  if (size % 2 == 1) connection.trust();
  if (send(stranger.fd(), data, size, MSG_NOSIGNAL) < 0 && size > 0) return -1;
  connection.advance();
  while (const auto frame = connection.take()) read_payload(frame->payload);
  read_payload({reinterpret_cast<const char*>(data), size});
  return 0;
}

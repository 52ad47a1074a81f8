// The texts that ranks receive while they meet: replies of collectives, places of ranks, process
// ids, sizes, problems, descriptions of objects. Also the frames around them, sealed or not, from a
// peer that sends anything at any time. Input: texts, each after two bytes with its length.
#include <sys/socket.h>

#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <thread>

#include "base/bytes.h"
#include "bootstrap/agree.h"
#include "bootstrap/collectives.h"
#include "bootstrap/connection.h"
#include "bootstrap/endpoint.h"
#include "bootstrap/places.h"
#include "exchange/setup/replies.h"

namespace {

using namespace ferry::internal;
using Texts = std::vector<std::string>;

constexpr int kRank = 1;

Texts texts_in(const std::uint8_t* data, std::size_t size) {
  ByteReader reader(std::as_bytes(std::span(data, size)));
  Texts texts;
  while (reader.remaining() > 0 && reader.ok()) {
    const auto bytes = reader.get<std::uint16_t>();
    texts.emplace_back(as_text(reader.take(std::min<std::size_t>(bytes, reader.remaining()))));
  }
  return texts;
}

// Errors of ferry are what a reader may answer; anything else ends the program.
template <typename Read>
void reads(const Read& read) {
  try {
    read();
  } catch (const ferry::Error&) {
  }
}

void read_places(Texts places) {
  if (places.size() <= kRank) return;
  static const std::string mine = own_place(own_hello("a group", kRank, {0, 0}), kRank == 0);
  if (places[kRank].empty()) places[kRank] = mine;
  for (const std::size_t absent : {0, 1}) {
    std::vector<int> members(places.size());
    std::iota(members.begin(), members.end(), 0);
    const GroupRanks ranks(std::vector<int>(places.size() + absent), members);
    reads([&] {
      const HostMeeting here = host_meeting(places, kRank, mine, ranks);
      if (here.nodes.size() != places.size() + absent) std::abort();
      Roster roster{.endpoint = {}, .self = {}, .ranks = here.ranks};
      if (roster.place(kRank) < 0 || roster.coordinator() > kRank) std::abort();
      for (const char c : here.address)
        if (c == 0) std::abort();
    });
  }
}

void read_texts(const Texts& texts) {
  reads([&] { check_same_bytes(texts); });
  reads([&] { check_no_problem(texts); });
  reads([&] { check_shared(texts); });
  reads([&] { require_agreement(texts); });
  read_places(texts);
  for (const std::string& text : texts) {
    reads([&] {
      if (pid_in(text, 0) <= 0) std::abort();
    });
    reads([&] { number_in(text, 0); });
    const ferry::Error told = failure_in(text);
    if (*ferry::code_name(told.code()) == 'u') std::abort();  // "unknown"
    given_up(told, 0, {1, 2}, "ranks 1 and 2");
    reads([&] {
      const Texts inside = unpack(text, 3);
      if (inside.size() != 3 || unpack(pack(inside), 3) != inside) std::abort();
    });
  }
}

// The same bytes sealed by the peer, with the header of a frame in front or as they are, and not
// sealed.
void read_stream(const std::string& bytes, bool sealed) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) != 0) std::abort();
  const Descriptor peer(ends[0]);
  Connection connection{Descriptor(ends[1])};
  connection.trust();
  const std::string here(RecordCipher::kKeyBytes, 'h'), there(RecordCipher::kKeyBytes, 't');
  connection.protect({.seal = here, .open = there});
  std::string records = sealed ? "" : bytes;
  if (sealed) RecordCipher(there, RecordCipher::Use::kSeal).seal(bytes, records);
  if (send(peer.fd(), records.data(), records.size(), MSG_NOSIGNAL) < 0) return;
  connection.advance();
  const auto frame = connection.take();
  if (frame && !sealed) std::abort();
  if (!sealed && records.size() >= 24 + RecordCipher::kTagBytes && !connection.tampered())
    std::abort();
  service({&connection}, 0);
}

// The frames that the texts say: kind, call, payload.
void send_frames(Connection& connection, const Texts& texts) {
  for (const std::string& text : texts) {
    if (text.size() < 2) continue;
    connection.send(static_cast<FrameKind>(text[0]), static_cast<std::uint32_t>(text[1]),
                    text.substr(2));
  }
  flush_all({&connection}, Deadline::after(std::chrono::seconds(1)));
}

// One rank of two of one host; the other lets it in, or comes, and then says what the texts say.
void meet(int rank, const Texts& texts) {
  static const std::string address = "fuzz-" + std::to_string(getpid());
  Roster roster{.endpoint = unix_endpoint(address, 2),
                .self = own_hello(address, rank, {0, 0}),
                .ranks = {0, 1}};
  const Deadline deadline = Deadline::after(std::chrono::seconds(5));
  Descriptor listener = rank == 0 ? Descriptor() : listen_at(roster.endpoint);
  std::thread other([&] {
    Attempt attempt;
    while (!attempt.socket && !deadline.passed()) {
      if (rank == 0) attempt = connect_to(roster.endpoint, deadline);
      if (rank == 1) attempt.socket = accept_from(listener);
      if (!attempt.socket) std::this_thread::yield();
    }
    Connection connection(std::move(attempt.socket));
    if (rank == 0) connection.send(FrameKind::kHello, 0, encode(own_hello(address, 1, {0, 0})));
    if (rank == 1) connection.send(FrameKind::kAccepted, 0, std::string());
    if (rank == 1) connection.send(FrameKind::kWelcome, 0, std::string());
    send_frames(connection, texts);
  });
  reads([&] {
    const auto collectives = join(roster, deadline);
    if (collectives->all_gather("mine", deadline).size() != 2) std::abort();
    collectives->hand_out({}, deadline);
    collectives->look();
    collectives->all_gather("mine", deadline);
  });
  other.join();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const Texts texts = texts_in(data, size);
  read_texts(texts);
  meet(static_cast<int>(size % 2), texts);
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  read_stream(bytes.substr(0, 24), true);
  read_stream(bytes, false);
  return 0;
}

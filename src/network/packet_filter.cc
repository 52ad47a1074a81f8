// Sets a classic BPF program on the socket. It first compares the IP version, and then one address
// after the other.
#include "network/packet_filter.h"

#include <linux/filter.h>
#include <sys/socket.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/check.h"

namespace ferry::internal {
namespace {

using Program = std::vector<sock_filter>;

constexpr unsigned kVersionAt = static_cast<unsigned>(SKF_NET_OFF);
constexpr unsigned kSource4At = kVersionAt + 12, kSource6At = kVersionAt + 8;
constexpr unsigned kPass = 0xffffffff, kDrop = 0;

void add(Program& program, int code, unsigned value, int if_true = 0, int if_false = 0) {
  FERRY_CHECK(if_true, <=, 255);  // a comparison can skip at most 255 instructions
  FERRY_CHECK(if_false, <=, 255);
  program.push_back({static_cast<std::uint16_t>(code), static_cast<std::uint8_t>(if_true),
                     static_cast<std::uint8_t>(if_false), value});
}

// Adds the comparison of a packet's source with `ip`, and the return that lets the packet through.
// For an IPv4 address, the last `ignored` bytes are not compared. For an IPv6 address, the first 16
// >> ignored bytes are compared.
void add_source(Program& program, const Ip& ip, int ignored) {
  const bool four = is_ipv4(ip);
  const int bytes = four ? 4 - ignored : 16 >> ignored;
  for (int at = 0; at < bytes; at += 4) {
    std::uint32_t word = 0;
    std::memcpy(&word, &ip[(four ? 12 : 0) + at], 4);
    word = std::endian::native == std::endian::little ? __builtin_bswap32(word) : word;
    const std::uint32_t mask = bytes - at >= 4 ? ~0u : ~0u << 8 * (4 - (bytes - at));
    add(program, BPF_LD | BPF_W | BPF_ABS, (four ? kSource4At : kSource6At) + at);
    add(program, BPF_ALU | BPF_AND | BPF_K, mask);
    // If the word differs, jump over the other words of this address and its return.
    add(program, BPF_JMP | BPF_JEQ | BPF_K, word & mask, 0, (bytes - at - 1) / 4 * 3 + 1);
  }
  add(program, BPF_RET | BPF_K, kPass);
}

Program program_of(const std::set<Ip>& sources, int ignored) {
  Program four, six, program;
  for (const Ip& ip : sources) add_source(is_ipv4(ip) ? four : six, ip, ignored);
  add(four, BPF_RET | BPF_K, kDrop);
  add(six, BPF_RET | BPF_K, kDrop);
  add(program, BPF_LD | BPF_B | BPF_ABS, kVersionAt);
  add(program, BPF_ALU | BPF_AND | BPF_K, 0xf0);
  add(program, BPF_JMP | BPF_JEQ | BPF_K, 0x40, 1, 0);
  add(program, BPF_JMP | BPF_JA, four.size());
  program.insert(program.end(), four.begin(), four.end());
  program.insert(program.end(), six.begin(), six.end());
  return program;
}

}  // namespace

std::string let_through_only(int fd, const std::set<Ip>& sources) {
  int error = E2BIG;
  // Tries whole addresses first, then networks of /24 and /64, then networks of /16 and /32.
  for (int ignored = 0; ignored <= 2; ++ignored) {
    std::set<Ip> networks;
    for (Ip ip : sources) {
      const int kept = is_ipv4(ip) ? 16 - ignored : 16 >> ignored;
      std::fill(ip.begin() + kept, ip.end(), std::uint8_t{0});
      networks.insert(ip);
    }
    Program program = program_of(networks, ignored);
    if (program.size() > BPF_MAXINSNS) continue;
    const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
    if (setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter) == 0) return {};
    error = errno;
  }
  return std::strerror(error);
}

}  // namespace ferry::internal

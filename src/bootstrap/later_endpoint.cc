#include "bootstrap/later_endpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <memory>
#include <sstream>
#include <utility>
#include <vector>

#include "base/environment.h"
#include "ferry/status.h"

namespace ferry::internal {
namespace {

constexpr const char* kPorts = "UCX_TCP_PORT_RANGE";

// Begins the text of a member that cannot listen.
constexpr char kRefused = '!';

// The first and the last port; {0, 0}: any free port.
std::pair<int, int> ports() {
  const std::string text = environment_or_empty(kPorts);
  int first = 0, last = 0, end = 0;
  if (std::sscanf(text.c_str(), "%d-%d%n", &first, &last, &end) != 2 ||
      end != static_cast<int>(text.size()) || first < 1 || last < first || last > kMostPort)
    return {0, 0};
  return {first, last};
}

// UCX takes the first free ports of the range, so the search begins at its end.
Descriptor listen_at_free_port(const std::string& interfaces) {
  const auto [first, last] = ports();
  for (int port = last; port >= first; --port)
    if (Descriptor listener = tcp_listen(interfaces, port)) return listener;
  throw Error(Code::kSystem, first == 0
                                 ? "no port is free"
                                 : fmt::format("no port of {}={}-{} is free", kPorts, first, last));
}

}  // namespace

// A container may share only the loopback with others, so it comes last.
TcpAddress own_address(const std::string& interfaces, const std::string& reached, int port) {
  TcpAddress at{own_addresses(interfaces), port};
  std::vector<std::string>& hosts = at.hosts;
  if (interfaces.empty()) hosts.push_back("127.0.0.1");
  const auto found = std::ranges::find(hosts, reached);
  if (found != hosts.end()) std::rotate(hosts.begin(), found, found + 1);
  while (hosts.size() > 1 && meeting_text(at).size() > MeetingPlace::kMostBytes)
    hosts.erase(hosts.end() - (hosts.size() > 2 ? 2 : 1));
  return at;
}

std::string meeting_text(const TcpAddress& address) {
  return fmt::format("{} {}", address.port, fmt::join(address.hosts, ","));
}

TcpAddress meeting_address_in(const std::string& text, int lowest) {
  if (text.starts_with(kRefused)) {
    throw Error(Code::kSystem,
                fmt::format("rank {} cannot listen for the others: {}", lowest, text.substr(1)),
                lowest);
  }
  TcpAddress address;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, address.port);
  const bool number = error == std::errc() && address.port >= 1 && address.port <= kMostPort;
  std::istringstream hosts(number && stop != end && *stop == ' ' ? std::string(stop + 1, end) : "");
  for (std::string host; std::getline(hosts, host, ',');) address.hosts.push_back(host);
  if (!address.hosts.empty()) return address;
  throw Error(Code::kMismatch, fmt::format("rank {} says that it listens at \"{}\"", lowest, text),
              lowest);
}

Endpoint later_endpoint(const TcpEndpoint& first, int lowest, int rank, const std::string& reached,
                        const MeetingPlace& place) {
  TcpEndpoint tcp = first;
  tcp.group = place.name;
  std::string mine;
  if (rank == lowest) {
    try {
      Descriptor listener = listen_at_free_port(tcp.interfaces);
      mine = meeting_text(own_address(tcp.interfaces, reached, port_of(listener)));
      tcp.listener = std::make_shared<Descriptor>(std::move(listener));
    } catch (const Error& error) {
      mine = (kRefused + std::string(error.what())).substr(0, MeetingPlace::kMostBytes);
    }
  }
  tcp.address = meeting_address_in(place.pass_on(mine), lowest);
  Endpoint endpoint = tcp_endpoint(tcp);
  endpoint.advice = fmt::format("in this view and reach that port ({} limits it)", kPorts);
  return endpoint;
}

Endpoint admission_endpoint(const TcpEndpoint& first, const Admission& admission) {
  TcpEndpoint tcp = first;
  tcp.group = admission.name;
  tcp.address = meeting_address_in(admission.place, admission.coordinator);
  return tcp_endpoint(tcp);
}

}  // namespace ferry::internal

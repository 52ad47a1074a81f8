#include "bootstrap/admission.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <sstream>
#include <utility>

#include "bootstrap/coordinator.h"
#include "bootstrap/member.h"
#include "ferry/status.h"

namespace ferry::internal {
namespace {

// Added to the address at which a new group with the same name would meet, so that newcomers and
// the ranks of such a group do not meet each other.
constexpr const char* kBeside = "//admit";

bool is_ranks(const std::vector<int>& ranks, int size) {
  return !ranks.empty() && ranks.front() >= 0 && ranks.back() < size &&
         std::ranges::adjacent_find(ranks, std::greater_equal<>()) == ranks.end();
}

std::vector<int> ranks_in(const std::string& text) {
  std::istringstream numbers(text);
  std::vector<int> ranks;
  for (std::string number; std::getline(numbers, number, ',');)
    ranks.push_back(std::atoi(number.c_str()));
  return ranks;
}

}  // namespace

std::vector<int> Admission::ranks() const {
  std::vector<int> all;
  std::ranges::merge(members, newcomers, std::back_inserter(all));
  return all;
}

bool Admission::has_member(int rank) const { return std::ranges::binary_search(members, rank); }
bool Admission::has_newcomer(int rank) const { return std::ranges::binary_search(newcomers, rank); }

std::vector<int> Admission::node_ranks(int rank) const {
  std::vector<int> here = ranks();
  std::erase_if(here, [&](int one) { return nodes[one] != nodes[rank]; });
  return here;
}

std::vector<int> Admission::led_node_ranks(int rank) const {
  std::vector<int> led = node_ranks(rank);
  const auto leader = std::ranges::find_if(led, [&](int one) { return has_member(one); });
  if (leader != led.end()) std::rotate(led.begin(), leader, leader + 1);
  return led;
}

bool Admission::is_new_node(int rank) const {
  return std::ranges::none_of(members, [&](int one) { return nodes[one] == nodes[rank]; });
}

std::string Admission::text() const {
  return fmt::format("{} {} {} {} {} {} {} {} {} {}", name, view, number, group, num_offers,
                     coordinator, fmt::join(members, ","), fmt::join(newcomers, ","),
                     fmt::join(nodes, ","), place);
}

Admission admission_in(const std::string& text, int rank, int size) {
  Admission admission;
  std::string members, newcomers, nodes;
  std::istringstream words(text);
  words >> admission.name >> admission.view >> admission.number >> admission.group >>
      admission.num_offers >> admission.coordinator >> members >> newcomers >> nodes;
  std::getline(words >> std::ws, admission.place);
  admission.members = ranks_in(members);
  admission.newcomers = ranks_in(newcomers);
  admission.nodes = ranks_in(nodes);
  if (admission.view > 1 && admission.num_offers >= 0 && is_ranks(admission.members, size) &&
      is_ranks(admission.newcomers, size) && is_ranks(admission.ranks(), size) &&
      std::ssize(admission.nodes) == size && admission.has_member(admission.coordinator) &&
      admission.has_newcomer(rank))
    return admission;
  throw Error(Code::kMismatch, fmt::format("rank {} of {} got \"{}\", which is not its admission",
                                           rank, size, text));
}

AdmissionAddress unix_admission_address(const std::string& address, const std::vector<int>& split) {
  return {unix_endpoint(address + kBeside, static_cast<int>(split.size())), address + kBeside,
          split};
}

AdmissionAddress tcp_admission_address(Endpoint endpoint, const std::vector<int>& split) {
  endpoint.tcp.listener = nullptr;  // that of the first meeting
  endpoint.tcp.group += kBeside;
  std::string address = endpoint.tcp.group;
  return {std::move(endpoint), std::move(address), split};
}

std::unique_ptr<BootstrapCollectives> await_newcomers(const AdmissionAddress& at,
                                                      const Admission& admission,
                                                      Deadline deadline) {
  Roster roster{.endpoint = at.endpoint,
                .self = own_hello(at.address, admission.coordinator, at.split),
                .ranks = {admission.coordinator}};
  std::ranges::copy(admission.newcomers, std::back_inserter(roster.ranks));
  roster.welcome = admission.text();
  return std::make_unique<Coordinator>(roster, deadline);
}

std::unique_ptr<BootstrapCollectives> await_admission(const AdmissionAddress& at, int rank,
                                                      Deadline deadline) {
  const Roster roster{.endpoint = at.endpoint,
                      .self = own_hello(at.address, rank, at.split),
                      .ranks = {Roster::kUnknown, rank}};
  return std::make_unique<Member>(roster, deadline);
}

}  // namespace ferry::internal

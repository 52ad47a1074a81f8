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

// Newcomers meet beside the address where a new group with the same name would meet, so that
// neither takes the other for its own.
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

std::string Admission::text() const {
  return fmt::format("{} {} {} {} {} {}", name, view, number, num_offers, fmt::join(members, ","),
                     fmt::join(newcomers, ","));
}

Admission admission_in(const std::string& text, int rank, int size) {
  Admission admission;
  std::string members, newcomers;
  std::istringstream(text) >> admission.name >> admission.view >> admission.number >>
      admission.num_offers >> members >> newcomers;
  admission.members = ranks_in(members);
  admission.newcomers = ranks_in(newcomers);
  if (admission.view > 1 && admission.num_offers >= 0 && is_ranks(admission.members, size) &&
      is_ranks(admission.newcomers, size) && is_ranks(admission.ranks(), size) &&
      std::ranges::binary_search(admission.newcomers, rank))
    return admission;
  throw Error(Code::kMismatch, fmt::format("rank {} of {} got \"{}\", which is not its admission",
                                           rank, size, text));
}

AdmissionAddress unix_admission_address(const std::string& address, int size) {
  return {unix_endpoint(address + kBeside, size), address + kBeside};
}

AdmissionAddress tcp_admission_address(Endpoint endpoint) {
  endpoint.tcp.listener = nullptr;  // that of the first meeting
  endpoint.tcp.group += kBeside;
  std::string address = endpoint.tcp.group;
  return {std::move(endpoint), std::move(address)};
}

std::unique_ptr<BootstrapCollectives> await_newcomers(const AdmissionAddress& at,
                                                      const Admission& admission,
                                                      const std::vector<int>& nodes,
                                                      Deadline deadline) {
  Roster roster{.endpoint = at.endpoint,
                .self = own_hello(at.address, admission.coordinator(), nodes),
                .ranks = {admission.coordinator()}};
  std::ranges::copy(admission.newcomers, std::back_inserter(roster.ranks));
  roster.welcome = admission.text();
  return std::make_unique<Coordinator>(roster, deadline);
}

std::unique_ptr<BootstrapCollectives> await_admission(const AdmissionAddress& at, int rank,
                                                      const std::vector<int>& nodes,
                                                      Deadline deadline) {
  const Roster roster{.endpoint = at.endpoint,
                      .self = own_hello(at.address, rank, nodes),
                      .ranks = {Roster::kUnknown, rank}};
  return std::make_unique<Member>(roster, deadline);
}

}  // namespace ferry::internal

// Admission: one attempt of a group to let processes take the places of ranks that its view lacks.
// One member, the coordinator, waits for these processes at the address of the group, and sends
// them the text of this object.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bootstrap/collectives.h"
#include "bootstrap/endpoint.h"

namespace ferry::internal {

struct Admission {
  std::uint64_t view = 0;      // the view that begins
  std::uint64_t number = 0;    // greater than that of its coordinator's last admission
  std::uint64_t group = 0;     // SharedFlags::group()
  int coordinator = 0;         // the member that waits for the newcomers
  std::vector<int> members;    // the ranks of the view before, ascending
  std::vector<int> newcomers;  // the ranks whose places are taken, ascending
  std::vector<int> nodes;      // [ranks of the group] Rendezvous::nodes()
  int num_offers = 0;          // objects of the members that newcomers may join
  std::string name;            // under which all of them meet; it cannot be guessed
  std::string place;           // between hosts: where they meet (meeting_text)

  bool has_member(int rank) const;
  bool has_newcomer(int rank) const;
  // Ascending.
  std::vector<int> ranks() const;
  // The ranks() of the node of `rank`.
  std::vector<int> node_ranks(int rank) const;
  // The same, with a member first if the node has one. The first rank has the memory of the node,
  // or makes it.
  std::vector<int> led_node_ranks(int rank) const;
  // Whether no member is of the node of `rank`.
  bool is_new_node(int rank) const;
  std::string text() const;
};

// Throws Error(kMismatch) if the text is not an admission of `rank` into a group of `size`.
Admission admission_in(const std::string& text, int rank, int size);

// The address of a group, at which newcomers ask for admission. Between hosts the coordinator
// listens at the port at which the ranks met first, on its own host.
struct AdmissionAddress {
  Endpoint endpoint;
  std::string address;     // of the hello
  std::vector<int> split;  // [ranks] the nodes of the topology, likewise
};
AdmissionAddress unix_admission_address(const std::string& address, const std::vector<int>& split);
AdmissionAddress tcp_admission_address(Endpoint endpoint, const std::vector<int>& split);

// On the coordinator: returns when a process has come for each of the newcomers and has got
// the admission. The connections to them live as long as the result; if one is lost, look() throws.
std::unique_ptr<BootstrapCollectives> await_newcomers(const AdmissionAddress& at,
                                                      const Admission& admission,
                                                      Deadline deadline);

// On the newcomer `rank`: waits until a member admits it.
std::unique_ptr<BootstrapCollectives> await_admission(const AdmissionAddress& at, int rank,
                                                      Deadline deadline);

}  // namespace ferry::internal

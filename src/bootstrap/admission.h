// Admission: one attempt of a group to let processes take the places of lost ranks. A member of the
// group waits for them at the address where the ranks met first, and sends them this.
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
  std::vector<int> members;    // the ranks of the view before, ascending; the first one coordinates
  std::vector<int> newcomers;  // the lost ranks that come back, ascending
  int num_offers = 0;          // objects of the members that newcomers may join
  std::string name;            // where all of them meet; it cannot be guessed

  int coordinator() const { return members.front(); }
  // Ascending.
  std::vector<int> ranks() const;
  std::string text() const;
};

// Throws Error(kMismatch) if the text is not an admission of `rank` into a group of `size`.
Admission admission_in(const std::string& text, int rank, int size);

// The address of a group, at which newcomers ask for admission.
struct AdmissionAddress {
  Endpoint endpoint;
  std::string address;  // of the hello
};
AdmissionAddress unix_admission_address(const std::string& address, int size);
AdmissionAddress tcp_admission_address(Endpoint endpoint);  // where they met first, between hosts

// On the coordinator: returns when a process has come for each of the newcomers and has got
// the admission. The connections to them live as long as the result; if one is lost, look() throws.
std::unique_ptr<BootstrapCollectives> await_newcomers(const AdmissionAddress& at,
                                                      const Admission& admission,
                                                      const std::vector<int>& nodes,
                                                      Deadline deadline);

// On the newcomer `rank`: waits until a member admits it.
std::unique_ptr<BootstrapCollectives> await_admission(const AdmissionAddress& at, int rank,
                                                      const std::vector<int>& nodes,
                                                      Deadline deadline);

}  // namespace ferry::internal

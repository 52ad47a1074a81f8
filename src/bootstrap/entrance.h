// Entrance: rank 0's listener and the connections that have not yet shown who they are. Nothing
// that one of them sends is believed, takes memory or holds up the others before that. Called by
// meeting.cc; calls Door, Connection and Handshake.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bootstrap/connection.h"
#include "bootstrap/party.h"

namespace ferry::internal {

class Entrance {
 public:
  // Listens. An earlier group may still be closing its listener: it is waited for until the
  // deadline.
  Entrance(const Party& party, Deadline deadline);

  struct Arrival {
    std::unique_ptr<Connection> connection;
    Hello hello;
  };

  // Takes who connected and hears who speaks; those that are ranks of this job by now. `problem` is
  // set when the kernel refuses connections.
  std::vector<Arrival> arrivals(std::optional<Error>& problem);

  int fd() const noexcept { return listener_.fd(); }
  std::vector<Connection*> connections() const;
  // To those of this user that have not said who they are.
  void send_failure(const Error& error);

  // Why somebody was turned away, if anybody was: for the message of a deadline.
  std::string refused() const;

 private:
  struct Guest {
    std::unique_ptr<Connection> connection;
    Handshake handshake;
  };

  void accept(std::optional<Error>& problem);
  bool is_other_user(Connection& connection);
  // The hello, or nullopt, when it is not what a rank of this job sends.
  std::optional<Hello> hello_in(Guest& guest, const Frame& frame);

  const Party& party_;
  Descriptor listener_;
  std::vector<Guest> guests_;
  std::string refused_;  // the last one, on this host
  int num_failed_ = 0;   // proofs, between hosts
};

}  // namespace ferry::internal

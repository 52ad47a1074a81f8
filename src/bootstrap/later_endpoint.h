// The endpoint at which the members of a later view of several hosts meet. The host of the first
// meeting may be lost, so the lowest member of the view listens at a port of its own host. The
// other nodes get the address in messages (MeetingPlace::pass_on).
#pragma once

#include <string>

#include "bootstrap/endpoint.h"
#include "bootstrap/rendezvous.h"

namespace ferry::internal {

// Collective. `first`: the endpoint of the first meeting, for its secret and interfaces. `lowest`:
// the member that listens. If UCX_TCP_PORT_RANGE is set, the port is one of that range, because the
// ports of the range must be open between the hosts. `reached`: the address of this host by which
// it is connected to other ranks; the others try it first. Throws Error that names `lowest` if it
// cannot listen.
Endpoint later_endpoint(const TcpEndpoint& first, int lowest, int rank, const std::string& reached,
                        const MeetingPlace& place);

// Where the ranks of an admission between hosts meet: at the port of the first meeting, on the host
// of the coordinator.
Endpoint admission_endpoint(const TcpEndpoint& first, const Admission& admission);

// The addresses of this host, as many as fit into a meeting text. `reached`: as above.
TcpAddress own_address(const std::string& interfaces, const std::string& reached, int port);

// The text that the lowest member passes on, such as "40123 10.0.0.1,10.1.0.1". If it cannot
// listen, later_endpoint() passes on the reason instead.
std::string meeting_text(const TcpAddress& address);
// Throws Error: kSystem with the reason of `lowest`, or kMismatch if the text is no address.
TcpAddress meeting_address_in(const std::string& text, int lowest);

}  // namespace ferry::internal

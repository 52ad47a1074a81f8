// A build without UCX has no transport.
#include "ferry/status.h"
#include "network/transport.h"

namespace ferry::internal {

std::unique_ptr<Transport> ucx_transport() {
  throw Error(Code::kSystem,
              "this group spans hosts, and this ferry was built without UCX: install libucx-dev "
              "(Debian) and build ferry again");
}

std::string ucx_found() { return {}; }

}  // namespace ferry::internal

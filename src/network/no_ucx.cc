// The link of a build without UCX: there is none.
#include "ferry/status.h"
#include "network/link.h"

namespace ferry::internal {

std::unique_ptr<Link> ucx_link() {
  throw Error(Code::kSystem,
              "this group spans hosts, and this ferry was built without UCX: install libucx-dev "
              "(Debian) and build ferry again");
}

std::string ucx_found() { return {}; }

}  // namespace ferry::internal

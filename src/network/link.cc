// Which link groups use.
#include "network/link.h"

namespace ferry::internal {

LinkFactory& link_factory() {
  static LinkFactory factory = ucx_link;
  return factory;
}

}  // namespace ferry::internal

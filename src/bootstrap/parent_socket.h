// ParentSocket: a socket that forked children of this process do not keep. A child that kept it,
// such as a data loader, would hold the connection of a dead rank open, or the endpoint of a dead
// rank 0.
#pragma once

#include <utility>

#include "base/descriptor.h"

namespace ferry::internal {

class ParentSocket {
 public:
  explicit ParentSocket(Descriptor socket);
  ParentSocket(ParentSocket&& other) noexcept = default;
  ParentSocket& operator=(ParentSocket&& other) noexcept = default;
  ~ParentSocket();

  int fd() const noexcept { return socket_.fd(); }
  const Descriptor& descriptor() const noexcept { return socket_; }

 private:
  Descriptor socket_;
};

}  // namespace ferry::internal

#include "ferry/status.h"

namespace ferry {

const char* code_name(Code code) noexcept {
  switch (code) {
    case Code::kOk: return "ok";
    case Code::kInvalidArgument: return "invalid_argument";
    case Code::kPeerRejected: return "peer_rejected";
    case Code::kMismatch: return "mismatch";
    case Code::kCapacity: return "capacity";
    case Code::kPeerLost: return "peer_lost";
    case Code::kTimeout: return "timeout";
    case Code::kBroken: return "broken";
    case Code::kClosed: return "closed";
    case Code::kSystem: return "system";
    case Code::kInterrupted: return "interrupted";
  }
  return "unknown";
}

void require_ok(const Status& status) {
  if (!status.ok()) throw Error(status.code(), status.message(), status.culprit());
}

}  // namespace ferry

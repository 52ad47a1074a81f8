// Status and Error: the errors of ferry. The control plane (create, connect, plan) throws Error;
// the data plane (dispatch, combine) returns Status.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

#include "ferry/cplusplus.h"
#include "ferry/export.h"

namespace ferry {

enum class Code : std::uint8_t {
  kOk = 0,
  kInvalidArgument,  // this rank's call was refused; nothing was sent; the group is usable
  kPeerRejected,     // another rank's call was refused; nothing was sent; the group is usable
  kMismatch,  // ranks called different operations, or with different settings; the group is usable
  kCapacity,  // more rows than the caller's fixed capacity, or memory was refused; the group is
              // usable
  kPeerLost,  // a rank died or departed; the group is broken
  kTimeout,   // a rank did not arrive before the deadline; the group is broken
  kBroken,    // the group broke earlier, or in this call, which failed inside ferry
  kClosed,    // the group or exchange was destroyed
  kSystem,    // the operating system refused something, or a call failed inside ferry
  kInterrupted,  // GroupOptions::interrupted ended a wait of the culprit; the group is broken
};

// A stable lower-case name, such as "peer_rejected".
FERRY_EXPORT const char* code_name(Code code) noexcept;

// The outcome of a data-plane call. `message` names the values, the limit and, after a wait, the
// missing ranks.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message, int culprit = -1)
      : code_(code), culprit_(culprit), message_(std::move(message)) {}

  bool ok() const noexcept { return code_ == Code::kOk; }
  Code code() const noexcept { return code_; }
  const std::string& message() const noexcept { return message_; }

  // The rank that caused the error, or -1 when none can be named.
  int culprit() const noexcept { return culprit_; }

  // True when the next call on the group can succeed.
  bool group_usable() const noexcept {
    return code_ != Code::kPeerLost && code_ != Code::kTimeout && code_ != Code::kBroken &&
           code_ != Code::kClosed && code_ != Code::kInterrupted;
  }

 private:
  Code code_ = Code::kOk;
  int culprit_ = -1;
  std::string message_;
};

// Thrown by the control plane.
class FERRY_EXPORT Error : public std::runtime_error {
 public:
  Error(Code code, const std::string& message, int culprit = -1)
      : std::runtime_error(message), code_(code), culprit_(culprit) {}
  Code code() const noexcept { return code_; }
  int culprit() const noexcept { return culprit_; }  // as of Status

 private:
  Code code_;
  int culprit_;
};

// Throws an Error of this status unless it is ok.
FERRY_EXPORT void require_ok(const Status& status);

}  // namespace ferry

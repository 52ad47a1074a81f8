#include "aclnn/environment.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <limits>
#include <system_error>

#include "ferry/status.h"

namespace ferry::aclnn {

namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kDefaultBuffer = 200 * kMiB;  // HCCL's

std::string value_or_empty(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

std::uint64_t buffer_bytes_in_environment() {
  const char* const name = "HCCL_BUFFSIZE";
  const std::string text = value_or_empty(name);
  if (text.empty()) return kDefaultBuffer;
  constexpr int kLeast = 2, kMost = std::numeric_limits<int>::max();
  int megabytes = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, megabytes);
  if (error != std::errc() || stop != end || megabytes < kLeast)
    throw Error(Code::kInvalidArgument, fmt::format("{}=\"{}\" is not a whole number from {} to {}",
                                                    name, text, kLeast, kMost));
  return kMiB * megabytes;
}

IntraSwitches intra_switches_in_environment() {
  return {.pcie = value_or_empty("HCCL_INTRA_PCIE_ENABLE"),
          .roce = value_or_empty("HCCL_INTRA_ROCE_ENABLE")};
}

}  // namespace ferry::aclnn

#include "capi/boundary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>

#include "base/check.h"

namespace ferry::capi {

namespace {

struct Header {
  std::uint32_t struct_size;
  std::uint32_t version;
};

// The header and the first field; no version of a struct was shorter.
constexpr std::size_t kMinStructBytes = 16;
// A longer struct_size is refused: the caller did not initialise the struct.
constexpr std::size_t kMaxStructBytes = 4096;

Header header_of(const void* given) noexcept {
  Header header;
  std::memcpy(&header, given, sizeof header);
  return header;
}

}  // namespace

ferry_code failed(Code code, const char* message, int culprit) noexcept {
  return ferry_set_last_error(static_cast<ferry_code>(code), message, culprit);
}

ferry_code failed_by_exception() noexcept {
  try {
    throw;
  } catch (const Error& error) {
    return failed(error.code(), error.what(), error.culprit());
  } catch (const std::bad_alloc&) {
    return failed(Code::kCapacity, kOutOfMemory, -1);
  } catch (const std::exception& error) {
    return failed(Code::kSystem, error.what(), -1);
  } catch (...) {
    return failed(Code::kSystem, "an exception of unknown type, from a callback", -1);
  }
}

void refuse_null(const char* name) {
  throw Error(Code::kInvalidArgument, fmt::format("{} is NULL", name));
}

void check_struct(const void* given, const char* name) {
  const auto [struct_size, version] = header_of(&required(static_cast<const char*>(given), name));
  if (struct_size < kMinStructBytes || struct_size > kMaxStructBytes || struct_size % 8 != 0) {
    throw Error(Code::kInvalidArgument,
                fmt::format("{}: struct_size is {}, need a multiple of 8 from {} to {}; begin with "
                            "FERRY_INIT({})",
                            name, struct_size, kMinStructBytes, kMaxStructBytes, name));
  }
  if (version != FERRY_ABI_VERSION) {
    throw Error(Code::kInvalidArgument, fmt::format("{}: version is {}, this library has {}", name,
                                                    version, FERRY_ABI_VERSION));
  }
}

void read_struct(const void* given, void* known, std::size_t known_bytes, const char* name) {
  check_struct(given, name);
  FERRY_CHECK(known_bytes, >=, kMinStructBytes);
  FERRY_CHECK(known_bytes % 8, ==, 0U);
  const std::size_t given_bytes = header_of(given).struct_size;
  const auto* bytes = static_cast<const std::uint8_t*>(given);
  for (std::size_t i = known_bytes; i < given_bytes; ++i) {
    if (bytes[i] == 0) continue;
    throw Error(
        Code::kInvalidArgument,
        fmt::format("{}: struct_size is {}, this library knows the first {} bytes, and byte "
                    "{} is {}: a field of a newer header is used",
                    name, given_bytes, known_bytes, i, bytes[i]));
  }
  std::memcpy(known, given, std::min(given_bytes, known_bytes));
}

void write_struct(const void* known, std::size_t known_bytes, void* given) {
  const std::size_t given_bytes = header_of(given).struct_size;
  FERRY_CHECK(given_bytes, >=, kMinStructBytes);
  FERRY_CHECK(given_bytes, <=, kMaxStructBytes);
  const std::size_t shared = std::min(given_bytes, known_bytes);
  auto* bytes = static_cast<std::uint8_t*>(given);
  std::memcpy(bytes + sizeof(Header), static_cast<const std::uint8_t*>(known) + sizeof(Header),
              shared - sizeof(Header));
  std::memset(bytes + shared, 0, given_bytes - shared);
}

}  // namespace ferry::capi

// The boundary between C and C++: exceptions become codes, and structs of callers that were
// compiled with older or newer headers are read and written. No exception leaves a function of the
// C ABI, and no byte beyond the caller's struct_size is touched.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <new>
#include <span>
#include <type_traits>

#include "ferry/ferry.h"
#include "ferry/status.h"

namespace ferry::capi {

inline constexpr const char* kOutOfMemory = "out of memory";

// Keeps the error for ferry_last_error_message() and returns its code.
ferry_code failed(Code code, const char* message, int culprit) noexcept;
// The same for the exception being handled.
ferry_code failed_by_exception() noexcept;

// Runs the body of a C function, which returns a Status or nothing.
template <typename Call>
ferry_code guarded(const Call& call) noexcept {
  try {
    if constexpr (std::is_void_v<decltype(call())>) {
      call();
      return FERRY_OK;
    } else {
      const Status status = call();
      if (status.ok()) return FERRY_OK;
      return failed(status.code(), status.message().c_str(), status.culprit());
    }
  } catch (...) {
    return failed_by_exception();
  }
}

// Runs the preparation of a call. An exception of it becomes a refusal by `rank`.
template <typename Prepare>
Status attempt(int rank, const Prepare& prepare) {
  try {
    prepare();
    return {};
  } catch (const Error& error) {
    return {error.code(), error.what(), rank};
  } catch (const std::bad_alloc&) {
    return {Code::kCapacity, kOutOfMemory, rank};
  } catch (const std::exception& error) {
    return {Code::kSystem, error.what(), rank};
  }
}

[[noreturn]] void refuse_null(const char* name);

// Dereferences a pointer; throws Error when it is NULL.
template <typename T>
T& required(T* pointer, const char* name) {
  if (!pointer) refuse_null(name);
  return *pointer;
}

// 0 stands for the default.
template <typename Number>
Number or_default(Number given, Number otherwise) noexcept {
  return given != 0 ? given : otherwise;
}

// Throws Error for a negative length, and for elements without an array.
template <typename Element>
std::span<const Element> array_of(const Element* data, std::int64_t length, const char* name) {
  if (length < 0 || (length > 0 && data == nullptr)) {
    throw Error(Code::kInvalidArgument,
                fmt::format("{} is {} of {} elements", name, data ? "an array" : "NULL", length));
  }
  return {data, static_cast<std::size_t>(length)};
}

// A value outside any enumeration becomes 255, which the engine refuses.
template <typename Enum>
Enum enum_of(std::int64_t value) noexcept {
  return static_cast<Enum>(value < 0 || value > 255 ? 255 : value);
}

// Both throw Error(kInvalidArgument) for a struct_size or version that no caller can have, and
// read_struct also where a field that this library does not know is not zero. `name` is that of the
// struct.
void check_struct(const void* given, const char* name);
void read_struct(const void* given, void* known, std::size_t known_bytes, const char* name);
// `given` was checked before. Keeps its struct_size and version.
void write_struct(const void* known, std::size_t known_bytes, void* given);

// Reads a struct of the caller; fields that the caller's struct lacks are zero.
template <typename Struct>
Struct read(const Struct* given, const char* name) {
  static_assert(std::is_trivially_copyable_v<Struct>);
  Struct known = {};
  read_struct(given, &known, sizeof known, name);
  return known;
}

// Fills a struct of the caller, which was checked before, except its struct_size and version.
// Fields that this library does not know become zero.
template <typename Struct>
void write(const Struct& known, Struct* given) {
  write_struct(&known, sizeof known, given);
}

}  // namespace ferry::capi

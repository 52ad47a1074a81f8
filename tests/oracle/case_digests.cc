#include "oracle/case_digests.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "kernels/kernels.h"

namespace ferry::test {

namespace {

// FNV-1a of 64 bits.
constexpr std::uint64_t kBasis = 0xcbf29ce484222325, kPrime = 0x100000001b3;

void mix(std::uint64_t& digest, std::span<const std::byte> bytes) {
  for (const std::byte byte : bytes)
    digest = (digest ^ std::to_integer<std::uint64_t>(byte)) * kPrime;
}

bool is_float(DataType type) {
  return type == DataType::kBf16 || type == DataType::kFp16 || type == DataType::kFp32;
}

}  // namespace

void CaseDigests::begin_case(std::string_view kind) {
  cases_.push_back({std::string(kind), kBasis});
}

void CaseDigests::add(std::span<const std::byte> elements, DataType type) {
  std::uint64_t& digest = cases_.back().digest;
  const std::uint64_t size = elements.size();
  mix(digest, std::as_bytes(std::span(&size, 1)));  // so that numbers cannot move between arrays
  if (!is_float(type)) return mix(digest, elements);
  const std::size_t bytes = element_bytes(type);
  for (std::size_t at = 0; at < elements.size(); at += bytes) {
    const std::byte nan[4] = {};
    const bool is_nan = std::isnan(internal::to_float(elements.data() + at, type));
    mix(digest, is_nan ? std::span(nan).first(bytes - 1) : elements.subspan(at, bytes));
  }
}

std::vector<std::string> CaseDigests::lines() const {
  std::vector<std::string> lines;
  for (const auto& [kind, digest] : cases_)
    lines.push_back(fmt::format("{} {:016x}", kind, digest));
  return lines;
}

}  // namespace ferry::test

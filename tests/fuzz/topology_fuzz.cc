// The text of a topology: a topology that was read is written as a text that gives the same
// topology.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "ferry/status.h"
#include "ferry/topology.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const auto topology = ferry::Topology::parse({reinterpret_cast<const char*>(data), size});
    const std::string text = topology.to_text();
    if (ferry::Topology::parse(text).to_text() != text) std::abort();
  } catch (const ferry::Error& error) {
    if (error.code() != ferry::Code::kInvalidArgument) std::abort();
  }
  return 0;
}

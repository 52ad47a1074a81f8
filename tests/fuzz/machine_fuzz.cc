// The text of a machine: a machine that was read is written as a text that gives the same machine.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "ferry/plan.h"
#include "ferry/status.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const auto machine = ferry::Machine::parse({reinterpret_cast<const char*>(data), size});
    const std::string text = machine.to_text();
    if (ferry::Machine::parse(text).to_text() != text) std::abort();
  } catch (const ferry::Error& error) {
    if (error.code() != ferry::Code::kInvalidArgument) std::abort();
  }
  return 0;
}

// Files of expert loads (`ferry bench --routing load:FILE`).
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "tools/bench/routing.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const int file = memfd_create("load", 0);
  static const std::string name = "/proc/self/fd/" + std::to_string(file);
  if (ftruncate(file, 0) != 0 || pwrite(file, data, size, 0) != static_cast<ssize_t>(size))
    std::abort();
  for (const int layer : {-1, 1}) {
    try {
      if (ferry::bench::recorded_shares(name, layer, 2).size() != 2) std::abort();
    } catch (const std::invalid_argument&) {
    }
  }
  return 0;
}

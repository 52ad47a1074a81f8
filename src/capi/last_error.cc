// The last error of each thread in the C ABI.
#include <cstdint>
#include <cstdio>

#include "ferry/ferry.h"

namespace {

// A buffer of fixed size, so that an error is stored without an allocation.
struct LastError {
  char message[2048] = "";
  std::int32_t rank = -1;
};
thread_local LastError last_error;

}  // namespace

ferry_code ferry_set_last_error(ferry_code code, const char* message, int32_t rank) {
  std::snprintf(last_error.message, sizeof last_error.message, "%s", message);
  last_error.rank = rank;
  return code;
}

const char* ferry_last_error_message(void) { return last_error.message; }
int32_t ferry_last_error_rank(void) { return last_error.rank; }

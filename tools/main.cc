// Runs the ferry command (commands.h).
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iostream>
#include <string>

#include "tools/commands.h"

namespace {

// Flushes the output and returns whether it was written. A full device causes an error only here.
bool output_is_written() {
  return std::cout.flush() && std::fflush(stdout) == 0 && !ferror(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const int exit_code = ferry::tools::run_command_line(argc, argv);
    errno = 0;
    if (output_is_written()) return exit_code;
    std::cerr << "ferry: cannot write its output"
              << (errno == 0 ? "" : std::string(": ") + std::strerror(errno)) << '\n';
    return exit_code == 0 ? 1 : exit_code;
  } catch (const std::exception& error) {
    std::cerr << "ferry: " << error.what() << '\n';
    return 1;
  }
}

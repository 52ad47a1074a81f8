// The ferry command (commands.h).
#include <exception>
#include <iostream>

#include "tools/commands.h"

int main(int argc, char** argv) {
  try {
    return ferry::tools::run_command_line(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "ferry: " << error.what() << '\n';
    return 1;
  }
}

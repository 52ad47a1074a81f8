// The ferry command: parses the line and runs one subcommand (commands.h). What `ferry launch` has
// after its first `--` is a program and its arguments, and is not parsed.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <exception>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "commands.h"

namespace {

constexpr int kUsageError = 2;

int run(int argc, char** argv) {
  const bool launch = argc > 1 && std::string_view(argv[1]) == "launch";
  char** const split = launch ? std::find(argv, argv + argc, std::string_view("--")) : argv + argc;
  const std::vector<std::string> program(split == argv + argc ? split : split + 1, argv + argc);

  CLI::App app("ferry: Mixture-of-Experts dispatch and combine over shared memory", "ferry");
  app.set_version_flag("--version", "ferry " FERRY_VERSION);
  app.require_subcommand(1);
  int exit_code = 0;
  ferry::tools::add_bench(app, exit_code);
  ferry::tools::add_launch(app, program, exit_code);
  ferry::tools::add_doctor(app, exit_code);
  ferry::tools::add_topology(app, exit_code);
  ferry::tools::add_plan(app, exit_code);
  ferry::tools::add_top(app, exit_code);
  try {
    app.parse(static_cast<int>(split - argv), argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsageError;
  }
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "ferry: " << error.what() << '\n';
    return 1;
  }
}

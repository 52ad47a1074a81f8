// Parses the command line of the ferry command and runs one subcommand. The words after the first
// `--` of `ferry launch` and `ferry trace record` are a program and its arguments, and are not
// parsed.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "tools/commands.h"

namespace ferry::tools {

int run_command_line(int argc, char** argv) {
  const std::string_view verb = argc > 1 ? argv[1] : "";
  const bool runs = verb == "launch" || verb == "trace";
  char** const split = runs ? std::find(argv, argv + argc, std::string_view("--")) : argv + argc;
  const std::vector<std::string> program(split == argv + argc ? split : split + 1, argv + argc);

  CLI::App app("ferry: Mixture-of-Experts dispatch and combine over shared memory", "ferry");
  app.set_version_flag("--version", "ferry " FERRY_VERSION);
  app.require_subcommand(1);
  int exit_code = 0;
  add_bench(app, exit_code);
  add_launch(app, program, exit_code);
  add_doctor(app, exit_code);
  add_topology(app, exit_code);
  add_plan(app, exit_code);
  add_top(app, exit_code);
  add_trace(app, program, exit_code);
  try {
    app.parse(static_cast<int>(split - argv), argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsageError;
  }
  return exit_code;
}

}  // namespace ferry::tools

// The ferry command and its subcommands. The callback of each sets `exit_code`: 0 when all is well,
// kUsageError for a wrong command line, 1 for everything else unless its footer says more.
#pragma once

#include <string>
#include <vector>

#include "tools/cli.h"

namespace ferry::tools {

inline constexpr int kUsageError = 2;  // the exit code of a wrong command line

// The exit code of the command; errors that its subcommand does not handle are thrown.
int run_command_line(int argc, char** argv);

// Measures dispatch and combine on this machine beside the same traffic with places known.
void add_bench(CLI::App& app, int& exit_code);

// Starts ranks. `program` holds the words after `--`, a program and its arguments, taken as they
// are; it must outlive the parsing.
void add_launch(CLI::App& app, const std::vector<std::string>& program, int& exit_code);

// What this machine offers, and what to change for speed.
void add_doctor(CLI::App& app, int& exit_code);

// The tree of ranks, and what each algorithm puts on each link.
void add_topology(CLI::App& app, int& exit_code);

// How long dispatch and combine take on a machine, and what limits them.
void add_plan(CLI::App& app, int& exit_code);

// What the ranks of running programs do.
void add_top(CLI::App& app, int& exit_code);

}  // namespace ferry::tools

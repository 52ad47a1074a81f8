// The ferry command and its subcommands. The callback of a subcommand sets `exit_code`: 0 for
// success, kUsageError for a wrong command line, and 1 for all other errors, unless its footer
// lists more codes.
#pragma once

#include <string>
#include <vector>

#include "tools/cli.h"

namespace ferry::tools {

inline constexpr int kUsageError = 2;  // the exit code of a wrong command line

// Runs the command and returns its exit code. Throws errors that the subcommand does not handle.
int run_command_line(int argc, char** argv);

// Measures dispatch and combine on this machine, and the same traffic with known slots.
void add_bench(CLI::App& app, int& exit_code);

// Starts ranks. `program` has the words after `--`: a program and its arguments, which are not
// parsed. The vector must outlive the parsing.
void add_launch(CLI::App& app, const std::vector<std::string>& program, int& exit_code);

// Shows the features of this machine, and what to change for speed.
void add_doctor(CLI::App& app, int& exit_code);

// Shows the tree of ranks, and the bytes that each algorithm sends over each link.
void add_topology(CLI::App& app, int& exit_code);

// Predicts how long dispatch and combine take on a machine, and what limits them.
void add_plan(CLI::App& app, int& exit_code);

// Records the operations of a program, compares two such runs, and writes the router trace of a
// run. `program` as for add_launch.
void add_trace(CLI::App& app, const std::vector<std::string>& program, int& exit_code);

// Shows the rates and waits of the ranks of running programs.
void add_top(CLI::App& app, int& exit_code);

}  // namespace ferry::tools

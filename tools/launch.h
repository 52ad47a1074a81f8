// The verb `ferry launch`: starts n ranks of a program on this host. Called by main.cc.
#pragma once

#include <string>
#include <vector>

#include "cli.h"

namespace ferry::tools {

// Registers the subcommand; its callback sets exit_code. `program` is what stood after `--`: a
// program and its arguments, taken as they are; it must outlive the parsing.
void add_launch(CLI::App& app, const std::vector<std::string>& program, int& exit_code);

}  // namespace ferry::tools

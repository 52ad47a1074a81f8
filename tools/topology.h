// The verb `ferry topology`: the tree of ranks, who serves whom, and what each algorithm puts on
// each link. Called by main.cc.
#pragma once

#include "cli.h"

namespace ferry::tools {

// Registers the subcommand; its callback sets exit_code.
void add_topology(CLI::App& app, int& exit_code);

}  // namespace ferry::tools

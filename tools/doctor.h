// The verb `ferry doctor`: what this machine offers, and what to change for speed. Called by
// main.cc.
#pragma once

#include "cli.h"

namespace ferry::tools {

// Registers the subcommand; its callback sets exit_code.
void add_doctor(CLI::App& app, int& exit_code);

}  // namespace ferry::tools

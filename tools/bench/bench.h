// `ferry bench`: measures dispatch and combine on this machine and compares them with the memory
// traffic alone. Called by tools/main.cc.
#pragma once

#include "cli.h"

namespace ferry::tools {

// Adds the command to `app`. When it is chosen, parsing runs it and sets `exit_code`: 0 only if
// nothing was wrong, 2 for options that do not fit together, 1 for everything else.
void add_bench(CLI::App& app, int& exit_code);

}  // namespace ferry::tools

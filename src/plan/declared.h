// The names, rates and uses that a machine declares: what is wrong in them, and which of them no
// strategy uses.
#pragma once

#include <string>
#include <vector>

#include "ferry/plan.h"

namespace ferry::internal {

// Throws for a name that is used twice or does not exist, a rate that is missing, and a port or an
// engine that nothing uses. The error names the line.
void check_declared(const Machine& machine);

// One note for each thing that no byte of these predictions uses. `used_links`: [links of the
// machine].
std::vector<std::string> unused_notes(const Machine& machine, const std::vector<bool>& used_links,
                                      const std::vector<Prediction>& predictions);

}  // namespace ferry::internal

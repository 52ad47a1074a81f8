// Checks the names, rates and uses that a machine declares, and finds those that no strategy uses.
#pragma once

#include <string>
#include <vector>

#include "ferry/plan.h"

namespace ferry::internal {

// Throws for a name that is used twice or does not exist, for a missing rate, and for a port or an
// engine that nothing uses. The error names the line.
void check_declared(const Machine& machine);

// Returns a note for each declared property over which these predictions send no bytes.
// `used_links` is [links of the machine].
std::vector<std::string> unused_notes(const Machine& machine, const std::vector<bool>& used_links,
                                      const std::vector<Prediction>& predictions);

}  // namespace ferry::internal

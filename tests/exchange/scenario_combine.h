// The combines of a scenario, drawn from its seed.
#pragma once

#include "random.h"
#include "scenario.h"

namespace ferry::test {

CombineCase draw_combine(const Scenario& scenario, const Round& round, const ScenarioLimits& limits,
                         Random& random);

}  // namespace ferry::test

// What `ferry doctor` knows before it says anything, and the advice that follows from it. Filled by
// doctor.cc, read by doctor_advice.cc (pure, tested with invented machines) and doctor_report.cc.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bootstrap/environment.h"
#include "doctor_kernel.h"
#include "doctor_network.h"
#include "doctor_speed.h"
#include "machine.h"

namespace ferry::tools {

struct Findings {
  Machine machine;
  std::vector<Trial> trials;
  std::optional<Speed> speed;     // none where a needed trial failed
  std::vector<std::string> simd;  // best first; the first is in use
  Network network;
  std::optional<internal::Launch> launch;  // the launcher in the environment
  std::string no_launch;                   // why there is none
};

struct Advice {
  std::string finding, consequence, remedy;
};

// What keeps ferry from working here; empty when it can.
std::vector<Advice> problems(const Findings& findings);

// What to change for speed: only what applies.
std::vector<Advice> advise(const Findings& findings);

}  // namespace ferry::tools

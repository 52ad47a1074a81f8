// How `ferry doctor` shows its findings: text for people, JSON for programs. Called by doctor.cc.
#pragma once

#include <string>

#include "doctor_findings.h"

namespace ferry::tools {

std::string doctor_text(const Findings& findings);
std::string doctor_json(const Findings& findings);  // one object, indented

// "1.5 GiB"; "unlimited" for kUnlimited.
std::string bytes_text(std::uint64_t bytes);
// "0-3,8".
std::string cpus_text(const std::vector<int>& cpus);

}  // namespace ferry::tools

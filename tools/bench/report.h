// What a bench prints: a table for people, one JSON object for programs. Called by bench.cc.
#pragma once

#include <string>
#include <vector>

#include "bench/measure.h"
#include "bench/options.h"

namespace ferry::bench {

// Machine, shape and units; then a line per measurement; then what the columns mean.
std::string table_header(const Options& options);
std::string table_line(const Options& options, const Measurement& measurement);
std::string table_footer(const Options& options, const std::vector<Measurement>& measurements);

// One line. With a sweep, the measurements are under "points"; otherwise they are fields of the
// object itself.
std::string to_json(const Options& options, const std::vector<Measurement>& measurements);

}  // namespace ferry::bench

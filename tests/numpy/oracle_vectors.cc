// oracle_vectors FOLDER SEED: random cases and what the oracle says to them, for check.py, which
// recomputes all of it with NumPy. The same cases for a seed on every machine.
#include "numpy/oracle_vectors.h"

#include <cstdio>
#include <exception>
#include <string>

namespace ferry::test {
namespace {

void write_all(const std::string& folder, std::uint64_t seed) {
  VectorFile file(folder, seed);
  Random random(seed);
  write_dispatch_wires(file, random);
  write_combine_wires(file, random);
  write_constant_terms(file, random);
  write_norms(file, random);
  write_exchanges(file, seed);
  write_cann_golden(file);
  file.finish();
}

}  // namespace
}  // namespace ferry::test

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: oracle_vectors FOLDER SEED\n");
    return 2;
  }
  try {
    ferry::test::write_all(argv[1], std::stoull(argv[2]));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "oracle_vectors: %s\n", error.what());
    return 1;
  }
  return 0;
}

// The oracle gives the same numbers as when an independent implementation in NumPy, written from
// docs/numerics.md alone, agreed with it bit for bit (6,097 cases, 43 million numbers). Its cases
// are drawn again from the same seed, on every machine alike, and compared with frozen digests.
// When the contract changes on purpose: FERRY_WRITE_VECTORS=tests/oracle/vectors.txt writes them.
#include "oracle/vectors.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>

namespace ferry::test {
namespace {

constexpr std::uint64_t kSeed = 1;

std::vector<std::string> drawn_again() {
  CaseDigests cases;
  Random random(kSeed);
  add_dispatch_wires(cases, random);
  add_combine_wires(cases, random);
  add_constant_terms(cases, random);
  add_norms(cases, random);
  add_exchanges(cases, kSeed);
  add_cann_golden(cases);
  return cases.lines();
}

std::vector<std::string> frozen() {
  std::vector<std::string> lines;
  std::ifstream file(FERRY_ORACLE_VECTORS);
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

TEST(Oracle, EqualsTheFrozenVectors) {
  const std::vector<std::string> now = drawn_again();
  if (const char* path = std::getenv("FERRY_WRITE_VECTORS")) {
    std::ofstream file(path);
    for (const std::string& line : now) file << line << '\n';
  }
  const std::vector<std::string> then = frozen();
  ASSERT_EQ(now.size(), then.size());
  int differing = 0;
  for (std::size_t i = 0; i < now.size(); ++i) {
    if (now[i] == then[i]) continue;
    if (++differing <= 5)
      ADD_FAILURE() << "case " << i << ": now " << now[i] << ", then " << then[i];
  }
  EXPECT_EQ(differing, 0);
}

}  // namespace
}  // namespace ferry::test

// Cases of single rows: wire formats, terms of constant experts, norms. Part of vectors_test.cc.
#include <array>
#include <cmath>
#include <numeric>

#include "oracle/random_rows.h"
#include "oracle/vectors.h"
#include "oracle/wire.h"

namespace ferry::test {
namespace {

using Bytes = std::vector<std::byte>;

constexpr std::array kTypes = {DataType::kBf16, DataType::kFp16, DataType::kFp32};
constexpr std::array kWires = {Wire::kInt8, Wire::kInt8Static, Wire::kFp8, Wire::kFp8Pow2,
                               Wire::kFp8Ue8m0};
constexpr std::array kCombineWires = {CombineWire::kInt8Block8, CombineWire::kInt8Block128,
                                      CombineWire::kLogfmt10};
constexpr int kCasesOfAWire = 60;

// Rows [num_rows, hidden] of one type.
struct Matrix {
  DataType type = DataType::kBf16;
  std::int64_t num_rows = 0, hidden = 0;
  Bytes elements = {};

  std::span<const std::byte> row(std::int64_t i) const {
    const std::size_t bytes = static_cast<std::size_t>(hidden) * element_bytes(type);
    return std::span(elements).subspan(static_cast<std::size_t>(i) * bytes, bytes);
  }
};

Matrix random_matrix(Random& random) {
  Matrix matrix{random.pick(kTypes), random.between(1, 6), random_hidden(random)};
  matrix.elements = random_rows(matrix.num_rows, matrix.hidden, matrix.type, random);
  return matrix;
}

// Every number of a 16-bit type, once in order of its bits.
Matrix every_number(DataType type) {
  std::vector<std::uint16_t> numbers(1 << 16);
  std::iota(numbers.begin(), numbers.end(), 0);
  const auto bytes = std::as_bytes(std::span(numbers));
  return {type, 16, 1 << 12, Bytes(bytes.begin(), bytes.end())};
}

Matrix ordinary_matrix(const Matrix& like, float factor, Random& random) {
  std::vector<float> values = random_floats(like.num_rows * like.hidden, random);
  for (float& value : values) value = value * factor;
  return {like.type, like.num_rows, like.hidden, elements_of(values, like.type)};
}

template <typename T>
void append(std::vector<T>& all, const std::vector<T>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

void add_matrix(CaseDigests& cases, const Matrix& matrix) {
  cases.add(matrix.elements, matrix.type);
}

std::vector<float> random_factors(std::int64_t size, Random& random) {
  std::vector<float> factors = random_floats(size, random);
  for (float& factor : factors) {
    if (random.one_in(50)) factor = std::ldexp(factor, static_cast<int>(random.between(-120, 120)));
  }
  return factors;
}

void add_dispatch_wire(CaseDigests& cases, Wire wire, const Matrix& x,
                       const std::vector<float>& factors) {
  cases.begin_case(std::string("dispatch wire ") + wire_name(wire));
  Bytes elements, scales;
  std::vector<float> decoded;
  for (std::int64_t i = 0; i < x.num_rows; ++i) {
    const internal::ReferenceEncoded encoded =
        internal::reference_encode(wire, x.row(i), x.type, factors);
    append(elements, encoded.row);
    append(scales, encoded.scales);
    append(decoded, internal::reference_decode(wire, encoded));
  }
  add_matrix(cases, x);
  cases.add(factors);
  cases.add(elements, DataType::kBytes);
  cases.add(scales, DataType::kFp32);
  cases.add(decoded);
}

void add_combine_wire(CaseDigests& cases, CombineWire wire, const Matrix& x) {
  cases.begin_case(std::string("combine wire ") + wire_name(wire));
  Bytes encoded, travelled;
  std::vector<std::int64_t> encoded_bytes;
  for (std::int64_t i = 0; i < x.num_rows; ++i) {
    const Bytes row = internal::reference_encode(wire, x.row(i), x.type);
    append(encoded, row);
    encoded_bytes.push_back(static_cast<std::int64_t>(row.size()));
    append(travelled, internal::reference_travel(wire, x.row(i), x.type));
  }
  add_matrix(cases, x);
  cases.add(encoded, DataType::kBytes);
  cases.add(encoded_bytes);
  cases.add(travelled, x.type);
}

}  // namespace

void add_dispatch_wires(CaseDigests& cases, Random& random) {
  for (const Wire wire : kWires) {
    for (const DataType type : {DataType::kBf16, DataType::kFp16})
      add_dispatch_wire(cases, wire, every_number(type), {});
    const bool takes_factors = wire == Wire::kInt8 || wire == Wire::kInt8Static;
    for (int i = 0; i < kCasesOfAWire; ++i) {
      const Matrix x = random_matrix(random);
      std::vector<float> factors;
      if (takes_factors && random.one_in(2))
        factors = random_factors(random.one_in(3) ? 1 : x.hidden, random);
      add_dispatch_wire(cases, wire, x, factors);
    }
  }
}

void add_combine_wires(CaseDigests& cases, Random& random) {
  for (const CombineWire wire : kCombineWires) {
    for (const DataType type : {DataType::kBf16, DataType::kFp16})
      add_combine_wire(cases, wire, every_number(type));
    for (int i = 0; i < kCasesOfAWire; ++i) add_combine_wire(cases, wire, random_matrix(random));
  }
}

void add_constant_terms(CaseDigests& cases, Random& random) {
  for (int i = 0; i < kCasesOfAWire; ++i) {
    Matrix x = random_matrix(random);
    if (!random.one_in(3)) x = ordinary_matrix(x, 1.0F, random);
    // Dots of about one, so that neither share vanishes.
    const float factor = 1.0F / std::sqrt(static_cast<float>(x.hidden));
    const Matrix alpha1 = ordinary_matrix(x, factor, random);
    const Matrix alpha2 = ordinary_matrix(x, factor, random);
    const Matrix v = ordinary_matrix(x, 1.0F, random);
    std::vector<float> terms;
    for (std::int64_t row = 0; row < x.num_rows; ++row)
      append(terms, internal::reference_constant_term(x.row(row), alpha1.row(row), alpha2.row(row),
                                                      v.row(row), x.type));
    cases.begin_case("constant term");
    add_matrix(cases, x);
    add_matrix(cases, alpha1);
    add_matrix(cases, alpha2);
    add_matrix(cases, v);
    cases.add(terms);
  }
}

void add_norms(CaseDigests& cases, Random& random) {
  constexpr std::array kEpsilons = {1e-6F, 1e-5F, 0.0F, 1.0F};
  for (int i = 0; i < kCasesOfAWire; ++i) {
    Matrix gamma = random_matrix(random);
    gamma.num_rows = 1;
    gamma = ordinary_matrix(gamma, 1.0F, random);
    const std::int64_t num_rows = random.between(1, 6);
    const float epsilon = random.pick(kEpsilons);
    const float factor = std::ldexp(1.0F, static_cast<int>(random.between(-20, 20)));
    std::vector<float> z, rstd;
    Bytes out, y;
    for (std::int64_t row = 0; row < num_rows; ++row) {
      std::vector<float> values = random_floats(gamma.hidden, random);
      for (float& value : values) value = value * factor;
      if (random.one_in(10)) values[0] = random.one_in(2) ? INFINITY : NAN;
      const internal::ReferenceNorm norm =
          internal::reference_norm(values, gamma.elements, epsilon, gamma.type);
      append(z, values);
      append(out, norm.out);
      append(y, norm.y);
      rstd.push_back(norm.rstd);
    }
    cases.begin_case("norm");
    cases.add(gamma.elements, gamma.type);
    cases.add(z);
    cases.add(out, gamma.type);
    cases.add(y, gamma.type);
    cases.add(rstd);
  }
}

}  // namespace ferry::test

// The oracle's terms of constant experts and its fused RMSNorm: docs/numerics.md, one element after
// the other, with the scalar conversions of kernels.h.
#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/kernels.h"
#include "oracle/wire.h"

namespace ferry::internal {
namespace {

float element(std::span<const std::byte> row, std::size_t h, DataType type) {
  return to_float(&row[h * element_bytes(type)], type);
}

// The sum of a row's products, which are added in this object's order.
class RowSum {
 public:
  void add(std::size_t h, float product) { sums_[h % 16] = sums_[h % 16] + product; }

  float total() const {
    std::array<float, 16> sums = sums_;
    for (std::size_t distance = 8; distance > 0; distance /= 2) {
      for (std::size_t j = 0; j < distance; ++j) sums[j] = sums[j] + sums[j + distance];
    }
    return sums[0];
  }

 private:
  std::array<float, 16> sums_ = {};
};

float dot(std::span<const std::byte> a, std::span<const std::byte> b, DataType type) {
  RowSum sum;
  for (std::size_t h = 0; h * element_bytes(type) < a.size(); ++h)
    sum.add(h, element(a, h, type) * element(b, h, type));
  return sum.total();
}

float exponential(float value) { return static_cast<float>(std::exp(static_cast<double>(value))); }

}  // namespace

std::vector<float> reference_constant_term(std::span<const std::byte> x,
                                           std::span<const std::byte> alpha1,
                                           std::span<const std::byte> alpha2,
                                           std::span<const std::byte> v, DataType type) {
  const float d1 = dot(alpha1, x, type);
  const float d2 = dot(alpha2, x, type);
  const float e1 = exponential(d1 - std::max(d1, d2));
  const float e2 = exponential(d2 - std::max(d1, d2));
  const float share1 = e1 / (e1 + e2);
  const float share2 = e2 / (e1 + e2);
  std::vector<float> term;
  for (std::size_t h = 0; h * element_bytes(type) < x.size(); ++h)
    term.push_back(share1 * element(x, h, type) + share2 * element(v, h, type));
  return term;
}

ReferenceNorm reference_norm(std::span<const float> z, std::span<const std::byte> gamma,
                             float epsilon, DataType type) {
  const std::size_t bytes = element_bytes(type);
  const float share = 1.0F / static_cast<float>(z.size());
  ReferenceNorm norm{.out = std::vector<std::byte>(z.size() * bytes),
                     .y = std::vector<std::byte>(z.size() * bytes)};
  RowSum sum;
  for (std::size_t h = 0; h < z.size(); ++h) sum.add(h, z[h] * z[h] * share);
  norm.rstd = 1.0F / std::sqrt(sum.total() + epsilon);
  for (std::size_t h = 0; h < z.size(); ++h) {
    from_float(z[h], &norm.out[h * bytes], type);
    std::byte* const y = &norm.y[h * bytes];
    from_float(z[h] * norm.rstd, y, type);
    from_float(to_float(y, type) * element(gamma, h, type), y, type);
  }
  return norm;
}

}  // namespace ferry::internal

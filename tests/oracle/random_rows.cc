#include "oracle/random_rows.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/kernels.h"

namespace ferry::test {
namespace {

enum class Character : std::uint8_t {
  kOrdinary,
  kTies,      // multiples of a quarter up to 127 or 448, so that scales are powers of two
  kOctaves,   // exponents that spread over 1 to 32 octaves
  kSixteen,   // as many octaves as a block of logfmt10 may span
  kWide,      // all exponents
  kBits,      // any bits at all
  kSparse,    // mostly zeros of either sign
  kConstant,  // one magnitude
  kTiny,      // a few times the smallest number
  kHuge,      // close to the largest
};
constexpr std::array kCharacters = {Character::kOrdinary, Character::kOrdinary, Character::kTies,
                                    Character::kTies,     Character::kOctaves,  Character::kOctaves,
                                    Character::kSixteen,  Character::kWide,     Character::kBits,
                                    Character::kSparse,   Character::kConstant, Character::kTiny,
                                    Character::kHuge};

struct TypeLimits {
  int min_exponent, max_exponent;  // of the smallest subnormal, of the largest number
};
TypeLimits limits_of(DataType type) {
  if (type == DataType::kFp16) return {-24, 15};
  return {type == DataType::kBf16 ? -133 : -149, 127};
}

float sign(Random& random) { return random.one_in(2) ? 1.0F : -1.0F; }

float power(int exponent) { return std::ldexp(1.0F, exponent); }

// In [1, 2) with either sign.
float mantissa(Random& random) {
  return sign(random) * (1.0F + static_cast<float>(random.below(1 << 23)) * 0x1p-23F);
}

int exponent_in(int low, int high, Random& random) {
  return static_cast<int>(random.between(low, high));
}

// One row's character, and the exponents that its values have.
struct RowSource {
  Character character;
  TypeLimits limits;
  int low, high;

  float draw(Random& random) const {
    switch (character) {
      case Character::kOrdinary: return random.value() * power(low);
      case Character::kTies:
        return static_cast<float>(random.between(-1792, 1792)) * 0.25F * power(low);
      case Character::kOctaves:
      case Character::kSixteen:
      case Character::kWide: return mantissa(random) * power(exponent_in(low, high, random));
      case Character::kBits: return std::bit_cast<float>(static_cast<std::uint32_t>(random.next()));
      case Character::kSparse:
        return random.one_in(5) ? random.value() * power(low) : 0.0F * sign(random);
      case Character::kConstant: return sign(random) * power(low) * 1.25F;
      case Character::kTiny:
        return static_cast<float>(random.between(-300, 300)) * power(limits.min_exponent);
      case Character::kHuge: return mantissa(random) * power(limits.max_exponent);
    }
    return 0.0F;
  }
};

RowSource draw_source(DataType type, Random& random) {
  RowSource source{random.pick(kCharacters), limits_of(type), 0, 0};
  const auto [least, most] = source.limits;
  const bool moderate = random.one_in(2);
  source.low = moderate ? exponent_in(-6, 6, random) : exponent_in(least + 1, most - 1, random);
  if (source.character == Character::kWide) source.low = least;
  if (source.character == Character::kSixteen) {
    source.low = std::min(source.low, most - 16);
    source.high = source.low + 15;
    return source;
  }
  const int octaves = source.character == Character::kWide ? most - least : 32;
  source.high = std::min(most, source.low + exponent_in(0, octaves, random));
  return source;
}

// Numbers whose largest gives a scale of a power of two, and a few that are no numbers.
void poke(std::vector<float>& row, const RowSource& source, Random& random) {
  const auto anywhere = [&]() -> float& {
    return row[random.below(static_cast<std::int64_t>(row.size()))];
  };
  if (source.character == Character::kTies)
    anywhere() = (random.one_in(2) ? 127.0F : 448.0F) * power(source.low);
  if (source.character == Character::kSixteen) {
    anywhere() = power(source.low);
    anywhere() = power(source.low + 16);
  }
  if (random.one_in(12)) anywhere() = std::numeric_limits<float>::infinity() * sign(random);
  if (random.one_in(12)) anywhere() = std::bit_cast<float>(0x7f800001U + 0x123 * 8192);
  if (random.one_in(12)) anywhere() = std::numeric_limits<float>::quiet_NaN() * sign(random);
}

}  // namespace

std::int64_t random_hidden(Random& random) {
  constexpr std::array kLengths = {1,  2,  5,   7,   8,   9,   15,  16,  17,  31,  32,   33,
                                   63, 64, 127, 128, 129, 130, 255, 256, 384, 513, 1000, 7168};
  return random.one_in(4) ? random.between(1, 600) : random.pick(kLengths);
}

std::vector<std::byte> random_rows(std::int64_t num_rows, std::int64_t hidden, DataType type,
                                   Random& random) {
  std::vector<float> rows;
  for (std::int64_t i = 0; i < num_rows; ++i) {
    const RowSource source = draw_source(type, random);
    std::vector<float> row(hidden);
    for (float& value : row) value = source.draw(random);
    poke(row, source, random);
    rows.insert(rows.end(), row.begin(), row.end());
  }
  return elements_of(rows, type);
}

std::vector<float> random_floats(std::int64_t size, Random& random) {
  std::vector<float> values(size);
  for (float& value : values) value = random.value();
  return values;
}

std::vector<std::byte> elements_of(const std::vector<float>& values, DataType type) {
  const std::size_t bytes = element_bytes(type);
  std::vector<std::byte> elements(values.size() * bytes);
  for (std::size_t i = 0; i < values.size(); ++i)
    internal::from_float(values[i], &elements[i * bytes], type);
  return elements;
}

}  // namespace ferry::test

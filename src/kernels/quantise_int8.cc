// The wires int8 and int8_static: a byte per element. int8 first finds the largest magnitude of the
// row.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/quantise_int8.cc"
#include "hwy/foreach_target.h"
// foreach_target.h comes first: it includes this file again for each target.
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/wire_kernels.h"
#include "kernels/wire_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ferry::internal::HWY_NAMESPACE {

// y: the row times the caller's factors; without any, times 1.
template <DataType type, bool per_channel>
class ScaledRow {
 public:
  explicit ScaledRow(const EncodeRow& row)
      : args_(row), hidden_(static_cast<std::size_t>(row.hidden)) {
    if constexpr (per_channel) {
      whole_ = hidden_ - hidden_ % (2 * hn::Lanes(FloatTag()));
      std::memcpy(last_factors_, row.factors.data + whole_, (hidden_ - whole_) * sizeof(float));
    } else if (row.factors.data != nullptr) {
      factor_ = *row.factors.data;
    }
  }

  // The bits of max abs y. Rounded products have the order of their factors, so one common factor
  // is multiplied with the maximum only. If any product is infinity or NaN, that of the maximum is.
  HWY_INLINE std::uint32_t max_bits() const {
    if constexpr (per_channel) return max_bits_of_products();
    const auto most = std::bit_cast<float>(max_magnitude<type>(elements(), hidden_));
    return std::bit_cast<std::uint32_t>(most * factor_) & kFloatMagnitude;
  }

  // out[h] = the lowest byte of code(y[h]).
  template <class Code>
  HWY_INLINE void store_codes(Code code) const {
    const auto convert = [&](const std::byte* from, std::byte* to, std::size_t h) FERRY_LAMBDA {
      fetch_next(args_, h * kElement<type>, 2 * hn::Lanes(FloatTag()) * kElement<type>);
      Floats even, odd;
      load(from, h, even, odd);
      store_code_pairs(code(even), code(odd), to);
    };
    for_each_chunk<kElement<type>, 1>(elements(), static_cast<std::byte*>(args_.out), hidden_,
                                      convert);
  }

 private:
  const std::byte* elements() const { return static_cast<const std::byte*>(args_.row); }

  HWY_INLINE void load(const std::byte* from, std::size_t h, Floats& even, Floats& odd) const {
    load_pairs<type>(from, even, odd);
    Floats even_factor = hn::Set(FloatTag(), factor_), odd_factor = even_factor;
    if constexpr (per_channel) {
      const float* channels = h < whole_ ? args_.factors.data + h : last_factors_;
      load_pairs<DataType::kFp32>(reinterpret_cast<const std::byte*>(channels), even_factor,
                                  odd_factor);
    }
    even = hn::Mul(even, even_factor);
    odd = hn::Mul(odd, odd_factor);
  }

  HWY_INLINE std::uint32_t max_bits_of_products() const {
    Ints most = hn::Zero(IntTag());
    const auto compare = [&](const std::byte* from, std::byte*, std::size_t h) FERRY_LAMBDA {
      Floats even, odd;
      load(from, h, even, odd);
      most = hn::Max(most, hn::Max(magnitude_bits(even), magnitude_bits(odd)));
    };
    for_each_chunk<kElement<type>, 0>(elements(), nullptr, hidden_, compare);
    return static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(IntTag(), most)));
  }

  const EncodeRow args_;
  std::size_t hidden_;
  float factor_ = 1.0F;
  std::size_t whole_ = 0;  // channels in whole chunks; the factors of the others are below
  float last_factors_[per_channel ? kMaxChunk : 1] = {};
};

struct Int8 {
  template <DataType type, bool per_channel>
  static void encode(const EncodeRow& row) {
    const ScaledRow<type, per_channel> y(row);
    const std::uint32_t max_bits = y.max_bits();
    const float factor = 127.0F / std::bit_cast<float>(max_bits);
    if (max_bits >= kFloatInfinity || factor > std::numeric_limits<float>::max()) {
      std::memset(row.out, 0, static_cast<std::size_t>(row.hidden));
      put(row.scales, 0, max_bits >= kFloatInfinity ? kFloatNan : std::uint32_t{0});
      return;
    }
    y.store_codes([factor](Floats value) FERRY_LAMBDA {
      return nearest_in_low_bits(hn::Mul(value, hn::Set(FloatTag(), factor)));
    });
    put(row.scales, 0, 1.0F / factor);
  }
};

struct Int8Static {
  template <DataType type, bool per_channel>
  static void encode(const EncodeRow& row) {
    ScaledRow<type, per_channel>(row).store_codes([](Floats value) FERRY_LAMBDA {
      const FloatTag floats;
      const Floats number = hn::IfThenZeroElse(hn::IsNaN(value), value);
      return nearest_in_low_bits(
          hn::Max(hn::Min(number, hn::Set(floats, 127.0F)), hn::Set(floats, -128.0F)));
    });
  }
};

template <class Format>
HWY_INLINE void encode_any(const EncodeRow& row) {
  with_type(row.row_type, [&row]<DataType type>() FERRY_LAMBDA {
    if (row.factors.data != nullptr && row.factors.per_channel) {
      Format::template encode<type, true>(row);
    } else {
      Format::template encode<type, false>(row);
    }
  });
}

void int8_from_row(const EncodeRow& row) { encode_any<Int8>(row); }
void int8_static_from_row(const EncodeRow& row) { encode_any<Int8Static>(row); }

void row_from_int8(const DecodeRow& row, float scale) {
  with_type(row.row_type, [&row, scale]<DataType type>() FERRY_LAMBDA {
    scale_int8<type>(static_cast<const std::byte*>(row.encoded),
                     static_cast<std::size_t>(row.hidden), scale, static_cast<std::byte*>(row.out));
  });
}

}  // namespace ferry::internal::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ferry::internal {

HWY_EXPORT(int8_from_row);
HWY_EXPORT(int8_static_from_row);
HWY_EXPORT(row_from_int8);

void encode_int8(const EncodeRow& row) noexcept { HWY_DYNAMIC_DISPATCH(int8_from_row)(row); }
void encode_int8_static(const EncodeRow& row) noexcept {
  HWY_DYNAMIC_DISPATCH(int8_static_from_row)(row);
}
void decode_int8(const DecodeRow& row) noexcept {
  HWY_DYNAMIC_DISPATCH(row_from_int8)(row, at<float>(row.scales, 0));
}
void decode_int8_static(const DecodeRow& row) noexcept {
  HWY_DYNAMIC_DISPATCH(row_from_int8)(row, 1.0F);
}

}  // namespace ferry::internal
#endif

// The elementwise kernels: conversions against an independent reference, order,
// NaN, and aliasing.

#include <array>
#include <bit>
#include <cmath>
#include <complex>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include <doctest/doctest.h>

#include "half.h"
#include "reduce.h"

using namespace jlaunch;

namespace {

/** A small float format's value, from its definition. */
double decode(std::uint16_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = (bits >> 15) != 0 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa != 0 ? std::nan("")
                         : sign * std::numeric_limits<double>::infinity();
  }
  return exponent == 0 ? sign * std::ldexp(mantissa, 1 - bias - mantissa_bits)
                       : sign *
          std::ldexp((1 << mantissa_bits) + mantissa,
                     exponent - bias - mantissa_bits);
}

template <class T>
std::vector<T> reduced(
    ReduceOp op,
    Dtype dtype,
    const std::vector<std::vector<T>>& inputs) {
  std::vector<const std::byte*> pointers;
  for (const auto& input : inputs) {
    pointers.push_back(reinterpret_cast<const std::byte*>(input.data()));
  }
  std::vector<T> out(inputs[0].size());
  reduce(op, dtype, out.data(), pointers, out.size());
  return out;
}

} // namespace

TEST_CASE("every float16 and bfloat16 is read as what it means") {
  for (std::uint32_t i = 0; i < 65536; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    const double half = decode(bits, 5, 10);
    const double bfloat = decode(bits, 8, 7);
    if (std::isnan(half)) {
      REQUIRE(std::isnan(half_to_float(bits)));
    } else {
      REQUIRE(static_cast<double>(half_to_float(bits)) == half);
      REQUIRE(std::signbit(half_to_float(bits)) == std::signbit(half));
      REQUIRE(float_to_half(half_to_float(bits)) == bits);
    }
    if (std::isnan(bfloat)) {
      REQUIRE(std::isnan(bfloat_to_float(bits)));
      REQUIRE(
          std::isnan(bfloat_to_float(float_to_bfloat(bfloat_to_float(bits)))));
    } else {
      REQUIRE(static_cast<double>(bfloat_to_float(bits)) == bfloat);
      REQUIRE(float_to_bfloat(bfloat_to_float(bits)) == bits);
    }
  }
}

TEST_CASE("narrowing rounds to nearest, ties to even") {
  // Between two neighbours: below the middle, the middle, above it.
  for (std::uint32_t i = 0; i < 0x7BFF; ++i) {
    const auto low = static_cast<std::uint16_t>(i);
    const auto high = static_cast<std::uint16_t>(i + 1);
    const float middle = (half_to_float(low) + half_to_float(high)) / 2;
    REQUIRE(float_to_half(middle) == ((low & 1) == 0 ? low : high));
    REQUIRE(float_to_half(std::nextafter(middle, 0.0F)) == low);
    REQUIRE(float_to_half(std::nextafter(middle, 1e9F)) == high);
  }
  CHECK(float_to_half(65519.0F) == 0x7BFF);
  CHECK(float_to_half(65520.0F) == 0x7C00);
  CHECK(float_to_half(-1e30F) == 0xFC00);
  CHECK(float_to_half(1e-30F) == 0);
  CHECK(float_to_bfloat(std::bit_cast<float>(0x3F808000U)) == 0x3F80);
  CHECK(float_to_bfloat(std::bit_cast<float>(0x3F818000U)) == 0x3F82);
  CHECK(float_to_bfloat(std::bit_cast<float>(0x3F808001U)) == 0x3F81);
}

TEST_CASE("half sums are rounded once, not at each step") {
  // 2048 + 1 + 1: each step alone would be rounded away.
  const std::vector<std::uint16_t> big{float_to_half(2048.0F)};
  const std::vector<std::uint16_t> one{float_to_half(1.0F)};
  const auto sum =
      reduced<std::uint16_t>(ReduceOp::sum, Dtype::float16, {big, one, one});
  CHECK(half_to_float(sum[0]) == 2050.0F);
}

TEST_CASE("inputs are combined in order") {
  const std::vector<float> big{1e8F};
  const std::vector<float> minus{-1e8F};
  const std::vector<float> one{1.0F};
  CHECK(
      reduced<float>(ReduceOp::sum, Dtype::float32, {big, minus, one})[0] == 1);
  CHECK(
      reduced<float>(ReduceOp::sum, Dtype::float32, {one, big, minus})[0] == 0);
}

TEST_CASE("NaN wins max and min, whoever has it") {
  const float nan = std::nanf("");
  for (const auto op : {ReduceOp::max, ReduceOp::min}) {
    for (std::size_t who = 0; who < 3; ++who) {
      std::vector<std::vector<float>> inputs(3, {1.0F, 2.0F});
      inputs[who][1] = nan;
      const auto out = reduced<float>(op, Dtype::float32, inputs);
      CHECK(out[0] == 1);
      CHECK(std::isnan(out[1]));
      std::vector<std::vector<std::uint16_t>> halves(
          3, {float_to_half(1.0F), float_to_half(2.0F)});
      halves[who][1] = 0x7E01;
      CHECK(
          std::isnan(half_to_float(
              reduced<std::uint16_t>(op, Dtype::float16, halves)[1])));
    }
  }
}

TEST_CASE("complex compares real, then imaginary; NaN in either part wins") {
  using Complex = std::complex<float>;
  const std::vector<Complex> a{{1, 5}, {2, 1}, {0, 0}};
  const std::vector<Complex> b{{1, 6}, {1, 9}, {7, std::nanf("")}};
  const auto most = reduced<Complex>(ReduceOp::max, Dtype::complex64, {a, b});
  CHECK(most[0] == Complex(1, 6));
  CHECK(most[1] == Complex(2, 1));
  CHECK(std::isnan(most[2].imag()));
  const auto least = reduced<Complex>(ReduceOp::min, Dtype::complex64, {b, a});
  CHECK(least[0] == Complex(1, 5));
  CHECK(least[1] == Complex(1, 9));
  CHECK(std::isnan(least[2].imag()));
}

TEST_CASE("bool: sum and max are OR, min is AND, and any non-zero is true") {
  const std::vector<std::uint8_t> a{0, 0, 1, 2};
  const std::vector<std::uint8_t> b{0, 1, 0, 255};
  using Bytes = std::vector<std::uint8_t>;
  CHECK(
      reduced<std::uint8_t>(ReduceOp::sum, Dtype::bool_, {a, b}) ==
      Bytes{0, 1, 1, 1});
  CHECK(
      reduced<std::uint8_t>(ReduceOp::max, Dtype::bool_, {a, b}) ==
      Bytes{0, 1, 1, 1});
  CHECK(
      reduced<std::uint8_t>(ReduceOp::min, Dtype::bool_, {a, b}) ==
      Bytes{0, 0, 0, 1});
}

TEST_CASE("integers wrap around") {
  CHECK(
      reduced<std::int32_t>(
          ReduceOp::sum, Dtype::int32, {{INT32_MAX}, {1}})[0] == INT32_MIN);
  CHECK(
      reduced<std::int8_t>(ReduceOp::sum, Dtype::int8, {{127}, {1}})[0] ==
      -128);
  CHECK(
      reduced<std::int64_t>(
          ReduceOp::sum, Dtype::int64, {{INT64_MIN}, {-1}})[0] == INT64_MAX);
  CHECK(
      reduced<std::uint16_t>(ReduceOp::sum, Dtype::uint16, {{65535}, {2}})[0] ==
      1);
  CHECK(
      reduced<std::int64_t>(ReduceOp::max, Dtype::int64, {{-5}, {3}})[0] == 3);
  CHECK(
      reduced<std::uint64_t>(
          ReduceOp::min, Dtype::uint64, {{UINT64_MAX}, {3}})[0] == 3);
}

TEST_CASE("the output may be one of the inputs") {
  std::vector<float> a(1500, 1.0F);
  std::vector<float> b(1500, 2.0F);
  for (auto* out : {&a, &b}) {
    const std::vector<float> first = a;
    const std::vector<float> second = b;
    const std::array<const std::byte*, 2> inputs{
        reinterpret_cast<const std::byte*>(a.data()),
        reinterpret_cast<const std::byte*>(b.data())};
    reduce(ReduceOp::sum, Dtype::float32, out->data(), inputs, out->size());
    for (std::size_t i = 0; i < out->size(); ++i) {
      REQUIRE((*out)[i] == first[i] + second[i]);
    }
  }
}

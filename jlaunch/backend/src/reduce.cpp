#include "reduce.h"

#include <algorithm>
#include <complex>
#include <cstdint>
#include <type_traits>

#include "half.h"

namespace jlaunch {

namespace {

/** Elements accumulated at a time: fits the first-level cache. */
constexpr std::size_t kBlock = 512;

/** Stored and computed in the same type. */
template <class T>
struct Plain {
  using Stored = T;
  using Computed = T;
  static T load(T value) {
    return value;
  }
  static T store(T value) {
    return value;
  }
};

struct Bool {
  using Stored = std::uint8_t;
  using Computed = std::uint8_t;
  static std::uint8_t load(std::uint8_t value) {
    return value != 0 ? 1 : 0;
  }
  static std::uint8_t store(std::uint8_t value) {
    return value;
  }
};

template <float (*kLoad)(std::uint16_t), std::uint16_t (*kStore)(float)>
struct Narrow {
  using Stored = std::uint16_t;
  using Computed = float;
  static float load(std::uint16_t value) {
    return kLoad(value);
  }
  static std::uint16_t store(float value) {
    return kStore(value);
  }
};

using Half = Narrow<half_to_float, float_to_half>;
using Bfloat = Narrow<bfloat_to_float, float_to_bfloat>;
using Complex = std::complex<float>;

template <class T>
bool is_nan(const T& value) {
  if constexpr (std::is_same_v<T, Complex>) {
    return is_nan(value.real()) || is_nan(value.imag());
  } else {
    return value != value; // false for integers, and known to the compiler
  }
}

template <class T>
bool is_above(const T& a, const T& b) {
  if constexpr (std::is_same_v<T, Complex>) {
    return a.real() > b.real() || (a.real() == b.real() && a.imag() > b.imag());
  } else {
    return a > b;
  }
}

struct Sum {
  template <class T>
  static T combine(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      // Wraps around: unsigned, and wide enough not to be promoted to int.
      using Wide = std::conditional_t<
          (sizeof(T) < sizeof(unsigned)),
          unsigned,
          std::make_unsigned_t<T>>;
      return static_cast<T>(static_cast<Wide>(a) + static_cast<Wide>(b));
    } else {
      return a + b;
    }
  }
};

struct Or {
  static std::uint8_t combine(std::uint8_t a, std::uint8_t b) {
    return a | b;
  }
};

struct Max {
  template <class T>
  static T combine(T a, T b) {
    return is_above(a, b) || is_nan(a) ? a : b;
  }
};

struct Min {
  template <class T>
  static T combine(T a, T b) {
    return is_above(b, a) || is_nan(a) ? a : b;
  }
};

template <class Type, class Op>
void reduce_as(
    void* out,
    std::span<const std::byte* const> inputs,
    std::size_t count) {
  using Stored = typename Type::Stored;
  using Computed = typename Type::Computed;
  // The block is ours alone: no input can overlap it, so the loops vectorise
  // even where `out` is one of the inputs.
  Computed block[kBlock];
  auto* results = static_cast<Stored*>(out);
  for (std::size_t base = 0; base < count; base += kBlock) {
    const std::size_t n = std::min(kBlock, count - base);
    const auto* first = reinterpret_cast<const Stored*>(inputs[0]) + base;
    for (std::size_t i = 0; i < n; ++i) {
      block[i] = Type::load(first[i]);
    }
    for (const std::byte* input : inputs.subspan(1)) {
      const auto* next = reinterpret_cast<const Stored*>(input) + base;
      for (std::size_t i = 0; i < n; ++i) {
        block[i] = Op::combine(block[i], Type::load(next[i]));
      }
    }
    for (std::size_t i = 0; i < n; ++i) {
      results[base + i] = Type::store(block[i]);
    }
  }
}

using Kernel = void (*)(void*, std::span<const std::byte* const>, std::size_t);

template <class Type, class SumOp = Sum>
Kernel kernel_for(ReduceOp op) {
  switch (op) {
    case ReduceOp::max:
      return reduce_as<Type, Max>;
    case ReduceOp::min:
      return reduce_as<Type, Min>;
    case ReduceOp::sum:
      break;
  }
  return reduce_as<Type, SumOp>;
}

Kernel kernel_for(ReduceOp op, Dtype dtype) {
  switch (dtype) {
    case Dtype::bool_:
      return kernel_for<Bool, Or>(op);
    case Dtype::uint8:
      return kernel_for<Plain<std::uint8_t>>(op);
    case Dtype::uint16:
      return kernel_for<Plain<std::uint16_t>>(op);
    case Dtype::uint32:
      return kernel_for<Plain<std::uint32_t>>(op);
    case Dtype::uint64:
      return kernel_for<Plain<std::uint64_t>>(op);
    case Dtype::int8:
      return kernel_for<Plain<std::int8_t>>(op);
    case Dtype::int16:
      return kernel_for<Plain<std::int16_t>>(op);
    case Dtype::int32:
      return kernel_for<Plain<std::int32_t>>(op);
    case Dtype::int64:
      return kernel_for<Plain<std::int64_t>>(op);
    case Dtype::float16:
      return kernel_for<Half>(op);
    case Dtype::float32:
      return kernel_for<Plain<float>>(op);
    case Dtype::float64:
      return kernel_for<Plain<double>>(op);
    case Dtype::bfloat16:
      return kernel_for<Bfloat>(op);
    case Dtype::complex64:
      break;
  }
  return kernel_for<Plain<Complex>>(op);
}

} // namespace

void reduce(
    ReduceOp op,
    Dtype dtype,
    void* out,
    std::span<const std::byte* const> inputs,
    std::size_t count) {
  kernel_for(op, dtype)(out, inputs, count);
}

} // namespace jlaunch

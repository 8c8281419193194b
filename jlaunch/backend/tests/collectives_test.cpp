// Every collective, dtype and size over the real soft provider, in processes and
// in threads, bit for bit against a reference written as plainly as can be.

#include <algorithm>
#include <array>
#include <cmath>
#include <complex>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <stdexcept>
#include <vector>

#include <doctest/doctest.h>

#include "dtype.h"
#include "half.h"
#include "support.h"

using namespace jlaunch;
using namespace jlaunch::test;

namespace {

using Bytes = std::vector<std::byte>;
using Complex = std::complex<float>;

[[maybe_unused]] constexpr std::array kAllDtypes{
    Dtype::bool_,
    Dtype::uint8,
    Dtype::uint16,
    Dtype::uint32,
    Dtype::uint64,
    Dtype::int8,
    Dtype::int16,
    Dtype::int32,
    Dtype::int64,
    Dtype::float16,
    Dtype::float32,
    Dtype::float64,
    Dtype::bfloat16,
    Dtype::complex64};

#if defined(__SANITIZE_THREAD__)
#define JLAUNCH_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define JLAUNCH_THREAD_SANITIZER 1
#endif
#endif

/** What is tried in processes. A thread sanitizer cannot see into other
 *  processes: there a few are enough, and the threads below are what counts. */
#if defined(JLAUNCH_THREAD_SANITIZER)
constexpr std::array kTriedDtypes{
    Dtype::float16,
    Dtype::float32,
    Dtype::complex64};
#else
constexpr std::array kTriedDtypes = kAllDtypes;
#endif

/** Numbers that look random and are the same in every process. */
class Numbers {
 public:
  explicit Numbers(std::uint64_t seed)
      : state_(seed * 2654435761U + 88172645) {}
  std::uint64_t next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_;
  }

 private:
  std::uint64_t state_;
};

/** Small numbers of the dtype, a NaN now and then where there is one. */
Bytes input_of(int rank, Dtype dtype, std::size_t count, std::uint64_t salt) {
  Numbers numbers(salt * 64 + static_cast<std::uint64_t>(rank) + 1);
  Bytes out(count * size_of(dtype));
  for (std::size_t i = 0; i < count; ++i) {
    const auto raw = numbers.next();
    const bool nan = raw % 97 == 0;
    const float value = nan
        ? std::nanf("")
        : static_cast<float>(static_cast<int>(raw % 2000) - 1000) / 8;
    std::byte* at = out.data() + i * size_of(dtype);
    const auto put = [at](auto v) { std::memcpy(at, &v, sizeof(v)); };
    switch (dtype) {
      case Dtype::bool_:
        put(static_cast<std::uint8_t>(raw >> 8 & 1));
        break;
      case Dtype::float16:
        put(float_to_half(value));
        break;
      case Dtype::bfloat16:
        put(float_to_bfloat(value));
        break;
      case Dtype::float32:
        put(value);
        break;
      case Dtype::float64:
        put(static_cast<double>(value) / 3);
        break;
      case Dtype::complex64:
        put(Complex(value, static_cast<float>(raw >> 40 & 7)));
        break;
      default:
        std::memcpy(at, &raw, size_of(dtype));
    }
  }
  return out;
}

template <class T>
T get(const Bytes& bytes, std::size_t i) {
  T value;
  std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
  return value;
}

template <class T>
bool nan_in(T value) {
  if constexpr (std::is_same_v<T, Complex>) {
    return std::isnan(value.real()) || std::isnan(value.imag());
  } else if constexpr (std::is_floating_point_v<T>) {
    return std::isnan(value);
  } else {
    return false;
  }
}

template <class T>
bool less(T a, T b) {
  if constexpr (std::is_same_v<T, Complex>) {
    return a.real() != b.real() ? a.real() < b.real() : a.imag() < b.imag();
  } else {
    return a < b;
  }
}

template <class T>
T combine(Collective kind, T a, T b) {
  if (kind == Collective::all_max || kind == Collective::all_min) {
    if (nan_in(a) || nan_in(b)) {
      return nan_in(a) ? a : b;
    }
    return (kind == Collective::all_max) == less(a, b) ? b : a;
  }
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(
        static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  } else {
    return a + b;
  }
}

/** Checks element i of `out` against the inputs of all ranks. */
template <class T, class Load, class Store>
bool element_is_right(
    Collective kind,
    const std::vector<Bytes>& inputs,
    const Bytes& out,
    std::size_t i,
    std::size_t out_i,
    Load load,
    Store store) {
  auto expected = load(get<T>(inputs[0], i));
  for (std::size_t rank = 1; rank < inputs.size(); ++rank) {
    expected = combine(kind, expected, load(get<T>(inputs[rank], i)));
  }
  const T found = get<T>(out, out_i);
  if (nan_in(expected)) {
    return nan_in(load(found)); // which NaN is not promised
  }
  const T bits = store(expected);
  return std::memcmp(&bits, &found, sizeof(T)) == 0;
}

bool right(
    Collective kind,
    Dtype dtype,
    const std::vector<Bytes>& inputs,
    const Bytes& out,
    std::size_t first,
    std::size_t count) {
  const auto same = [](auto v) { return v; };
  const auto each = [&](auto type, auto load, auto store) {
    using T = decltype(type);
    for (std::size_t i = 0; i < count; ++i) {
      if (!element_is_right<T>(kind, inputs, out, first + i, i, load, store)) {
        return false;
      }
    }
    return true;
  };
  switch (dtype) {
    case Dtype::bool_: {
      const auto load = [](std::uint8_t v) {
        return static_cast<std::uint32_t>(v);
      };
      const auto store = [](std::uint32_t v) {
        return static_cast<std::uint8_t>(v != 0 ? 1 : 0);
      };
      return each(std::uint8_t{}, load, store);
    }
    case Dtype::uint8:
      return each(std::uint8_t{}, same, same);
    case Dtype::uint16:
      return each(std::uint16_t{}, same, same);
    case Dtype::uint32:
      return each(std::uint32_t{}, same, same);
    case Dtype::uint64:
      return each(std::uint64_t{}, same, same);
    case Dtype::int8:
      return each(std::int8_t{}, same, same);
    case Dtype::int16:
      return each(std::int16_t{}, same, same);
    case Dtype::int32:
      return each(std::int32_t{}, same, same);
    case Dtype::int64:
      return each(std::int64_t{}, same, same);
    case Dtype::float16:
      return each(std::uint16_t{}, half_to_float, float_to_half);
    case Dtype::bfloat16:
      return each(std::uint16_t{}, bfloat_to_float, float_to_bfloat);
    case Dtype::float32:
      return each(float{}, same, same);
    case Dtype::float64:
      return each(double{}, same, same);
    case Dtype::complex64:
      return each(Complex{}, same, same);
  }
  return false;
}

std::vector<Bytes> inputs_of(
    int ranks,
    Dtype dtype,
    std::size_t count,
    std::uint64_t salt) {
  std::vector<Bytes> inputs;
  for (int rank = 0; rank < ranks; ++rank) {
    inputs.push_back(input_of(rank, dtype, count, salt));
  }
  return inputs;
}

std::uint64_t hash(std::uint64_t seed, const Bytes& bytes) {
  for (const auto byte : bytes) {
    seed = (seed ^ static_cast<std::uint64_t>(byte)) * 1099511628211U;
  }
  return seed;
}

void reduce_with(
    Group& group,
    Collective kind,
    const void* in,
    void* out,
    std::size_t count,
    Dtype dtype) {
  switch (kind) {
    case Collective::all_max:
      group.all_max(in, out, count, dtype);
      break;
    case Collective::all_min:
      group.all_min(in, out, count, dtype);
      break;
    default:
      group.all_sum(in, out, count, dtype);
  }
}

/** Element counts around what matters: nothing, a few, the end of the direct
 *  algorithm (32 KiB), one frame, several and a bit. */
std::vector<std::size_t> counts_for(Dtype dtype, std::size_t frame) {
  const auto item = size_of(dtype);
  return {
      0,
      1,
      7,
      1000,
      32768 / item,
      32768 / item + 1,
      frame / item,
      frame / item + 1,
      3 * frame / item + 13};
}

constexpr std::size_t kFrame = 128 << 10; // up to four ranks

/** All reductions in all dtypes; returns a hash of all results. */
std::uint64_t reduce_everything(
    Group& group,
    std::span<const Dtype> dtypes,
    const std::function<std::vector<std::size_t>(Dtype)>& counts) {
  std::uint64_t all = 1469598103934665603U;
  std::uint64_t salt = 0;
  for (const auto dtype : dtypes) {
    for (const auto count : counts(dtype)) {
      const auto inputs = inputs_of(group.size(), dtype, count, ++salt);
      for (const auto kind :
           {Collective::all_sum, Collective::all_max, Collective::all_min}) {
        const auto& mine = inputs[static_cast<std::size_t>(group.rank())];
        Bytes out(mine.size(), std::byte{0x55});
        reduce_with(group, kind, mine.data(), out.data(), count, dtype);
        RANK_CHECK(right(kind, dtype, inputs, out, 0, count));
        all = hash(all, out);
        Bytes in_place = mine;
        reduce_with(
            group, kind, in_place.data(), in_place.data(), count, dtype);
        RANK_CHECK(in_place == out);
      }
    }
  }
  return all;
}

void move_everything(Group& group, Dtype dtype, std::size_t count) {
  const int size = group.size();
  const auto ranks = static_cast<std::size_t>(size);
  const auto me = static_cast<std::size_t>(group.rank());
  const auto item = size_of(dtype);
  const auto inputs = inputs_of(size, dtype, count, count + 1000);
  Bytes all(ranks * count * item);
  group.all_gather(inputs[me].data(), all.data(), count, dtype);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    RANK_CHECK(
        std::equal(
            inputs[rank].begin(),
            inputs[rank].end(),
            all.begin() + static_cast<std::ptrdiff_t>(rank * count * item)));
  }
  const auto total = count * ranks;
  const auto wide = inputs_of(size, dtype, total, count + 2000);
  Bytes part(count * item);
  group.sum_scatter(wide[me].data(), part.data(), total, dtype);
  RANK_CHECK(
      right(Collective::sum_scatter, dtype, wide, part, me * count, count));
  // Round the ring: even ranks send first, so that nobody waits in a circle.
  const int right_of = (group.rank() + 1) % size;
  const int left_of = (group.rank() + size - 1) % size;
  Bytes got(count * item);
  const auto send = [&] {
    group.send(inputs[me].data(), count, dtype, right_of);
  };
  const auto receive = [&] { group.recv(got.data(), count, dtype, left_of); };
  if (group.rank() % 2 == 0) {
    send();
    receive();
  } else {
    receive();
    send();
  }
  RANK_CHECK(got == inputs[static_cast<std::size_t>(left_of)]);
}

} // namespace

TEST_CASE(
    "reductions of every dtype and size are right, and the same everywhere") {
  for (int size = 2; size <= 5; ++size) {
    CAPTURE(size);
    const World world(size);
    const Shared<std::array<std::uint64_t, 8>> hashes;
    CHECK(run_processes(world, [&](int rank) {
      const auto group = world.join(rank);
      (*hashes)[static_cast<std::size_t>(rank)] =
          reduce_everything(*group, kTriedDtypes, [](Dtype dtype) {
            return counts_for(dtype, kFrame);
          });
    }));
    for (int rank = 1; rank < size; ++rank) {
      CHECK((*hashes)[static_cast<std::size_t>(rank)] == (*hashes)[0]);
    }
  }
}

TEST_CASE("gather, scatter, send and receive move the right bytes") {
  for (int size = 2; size <= 5; ++size) {
    CAPTURE(size);
    const World world(size);
    CHECK(run_processes(world, [&](int rank) {
      const auto group = world.join(rank);
      for (const auto dtype : kTriedDtypes) {
        for (const std::size_t count :
             {std::size_t{0}, std::size_t{1}, std::size_t{1000}}) {
          move_everything(*group, dtype, count);
        }
      }
      for (const auto count : counts_for(Dtype::float32, kFrame)) {
        move_everything(*group, Dtype::float32, count);
      }
    }));
  }
}

TEST_CASE("a group of one copies") {
  const World world(1);
  const auto group = world.join(0);
  const std::vector<float> in{1, 2, 3};
  std::vector<float> out(3);
  group->all_sum(in.data(), out.data(), 3, Dtype::float32);
  CHECK(out == in);
  group->all_gather(in.data(), out.data(), 3, Dtype::float32);
  group->sum_scatter(in.data(), out.data(), 3, Dtype::float32);
  CHECK(out == in);
  CHECK_THROWS_AS(
      group->send(in.data(), 3, Dtype::float32, 0), std::invalid_argument);
  CHECK(world.blocks[0]->block().rank_part.slots[0].completed_seq == 3);
}

TEST_CASE("threads as ranks, without and with control blocks") {
  for (const bool with_blocks : {false, true}) {
    CAPTURE(with_blocks);
    World world(3);
    world.with_blocks = with_blocks;
    const std::array dtypes{Dtype::float32, Dtype::float16, Dtype::int8};
    CHECK(run_threads(world, [&](int rank) {
      const auto group = world.join(rank);
      reduce_everything(*group, dtypes, [](Dtype dtype) {
        return std::vector<std::size_t>{0, 5, 40000 / size_of(dtype)};
      });
      move_everything(*group, Dtype::float32, 50000);
    }));
  }
}

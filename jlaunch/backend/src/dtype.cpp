#include "dtype.h"

#include <array>

namespace jlaunch {

namespace {

struct Facts {
  std::string_view name;
  std::size_t size;
};

constexpr std::array<Facts, kDtypes> kFacts{{
    {"bool", 1},
    {"uint8", 1},
    {"uint16", 2},
    {"uint32", 4},
    {"uint64", 8},
    {"int8", 1},
    {"int16", 2},
    {"int32", 4},
    {"int64", 8},
    {"float16", 2},
    {"float32", 4},
    {"float64", 8},
    {"bfloat16", 2},
    {"complex64", 8},
}};

constexpr std::array<std::string_view, 8> kCollectives{
    "none",
    "all_sum",
    "all_max",
    "all_min",
    "all_gather",
    "sum_scatter",
    "send",
    "recv"};

constexpr std::array<std::string_view, 9> kReasons{
    "lost",
    "exited",
    "killed",
    "paused",
    "host_lost",
    "stuck",
    "desync",
    "init_failed",
    "control_lost"};

/** The entry, or "unknown": the number may come from a peer or an agent. */
template <std::size_t N>
std::string_view entry(
    const std::array<std::string_view, N>& names,
    std::size_t index) {
  return index < N ? names[index] : "unknown";
}

} // namespace

std::size_t size_of(Dtype dtype) {
  return kFacts.at(static_cast<std::size_t>(dtype)).size;
}

std::string_view name_of(Dtype dtype) {
  const auto index = static_cast<std::size_t>(dtype);
  return index < kFacts.size() ? kFacts[index].name : "unknown";
}

std::string_view name_of(Collective kind) {
  return entry(kCollectives, static_cast<std::size_t>(kind));
}

std::string_view name_of(Reason reason) {
  return entry(kReasons, static_cast<std::size_t>(reason));
}

} // namespace jlaunch

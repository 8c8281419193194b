#pragma once

#include <string_view>

#include "group.h"

/** Names and sizes of MLX's dtypes (the enum is part of the group's face). */
namespace jlaunch {

inline constexpr int kDtypes = 14;

/** As MLX prints it: "float32", "bool", … */
std::string_view name_of(Dtype dtype);

/** As MLX names it: "all_sum", …; "none" outside of one. */
std::string_view name_of(Collective kind);

std::string_view name_of(Reason reason);

} // namespace jlaunch

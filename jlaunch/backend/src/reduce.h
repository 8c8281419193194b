#pragma once

#include <cstddef>
#include <span>

#include "group.h"

/**
 * Elementwise reduction of any number of inputs in one pass: the result is
 * ((in[0] op in[1]) op in[2]) …, in this order, whatever the algorithm that
 * brought the inputs together, so that every rank gets the same bits, run after
 * run (docs/adr: dtypes and order).
 *
 * - float16, bfloat16: computed in float32, rounded once, at the end.
 * - max, min: NaN if any input is NaN; complex64 compares real, then imaginary.
 * - bool: sum and max are OR, min is AND. Integers wrap around.
 */
namespace jlaunch {

enum class ReduceOp { sum, max, min };

/**
 * `out` may be one of the inputs, and overlaps none otherwise. REQUIRES: at
 * least one input; all hold `count` elements.
 */
void reduce(
    ReduceOp op,
    Dtype dtype,
    void* out,
    std::span<const std::byte* const> inputs,
    std::size_t count);

} // namespace jlaunch

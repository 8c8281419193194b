"""What a collective call looks like to people, from the one number that travels in the wire header."""

from __future__ import annotations

from typing import Final

from jlaunch.core.contract import Collective

DTYPES: Final = (
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
    "float16", "float32", "float64", "bfloat16", "complex64",
)  # fmt: skip
"""MLX's dtypes in MLX's order, as ``fingerprint`` of ``backend/src/wire.h`` numbers them."""

_COLLECTIVES = {int(collective): collective.word for collective in Collective}


def describe_call(fingerprint: int, seq: int) -> str:
    """A call in words, for example ``all_sum #9 of 1024 float32``: kind (8 bits), dtype (8), count (48).

    ``seq`` is its number in the group.
    """
    kind, dtype, count = fingerprint >> 56, (fingerprint >> 48) & 0xFF, fingerprint & 0xFFFF_FFFF_FFFF
    name = _COLLECTIVES.get(kind, f"call {kind}")
    element = DTYPES[dtype] if dtype < len(DTYPES) else f"dtype {dtype}"
    return f"{name} #{seq} of {count} {element}"

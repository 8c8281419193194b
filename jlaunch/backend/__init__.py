"""The collectives: a C++20 island that imports nothing of jlaunch.

``errors`` is what they raise. ``load()`` gives the extension, which needs MLX; importing this package
alone does not.
"""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType

_MLX_LIBRARIES = {"mlx-cpu": "cpu", "mlx-cuda-12": "cuda12", "mlx-cuda-13": "cuda13", "mlx-cuda": "cuda"}
"""Distributions that carry MLX's C++ library, and the extra of ``mlx`` that asks for each."""

_SYSTEM_LIBRARY = "librdma.dylib" if sys.platform == "darwin" else "libibverbs.so.1"
_SOFT_LIBRARY = "libjlaunch_soft.dylib" if sys.platform == "darwin" else "libjlaunch_soft.so"


def load() -> ModuleType:
    """The extension ``jlaunch.backend._ext`` (its face is ``_ext.pyi``).

    Raises ImportError, with the command that mends it, if the MLX in this interpreter is not the version
    that jlaunch was built against: MLX's C++ interface is not stable, and the extension would crash.
    """
    core = importlib.import_module("mlx.core")
    check_mlx_version(core.__version__, built_against())
    return importlib.import_module("jlaunch.backend._ext")


def built_against() -> str:
    """The version of MLX that the extension was built against."""
    try:
        build = importlib.import_module("jlaunch.backend._build")
    except ModuleNotFoundError as error:
        raise ImportError(
            "jlaunch's extension for MLX is not built: install jlaunch with pip, "
            "or in a checkout build and install jlaunch/backend with CMake"
        ) from error
    return str(build.MLX_VERSION)


def check_mlx_version(found: str, built: str) -> None:
    """Raise ImportError unless the two versions are the same."""
    if found != built:
        raise ImportError(
            f"jlaunch was built against mlx {built}, but mlx {found} is installed: "
            f'{sys.executable} -m pip install "mlx{_installed_extra()}=={built}"'
        )


def provider_library(verbs: str) -> str:
    """The library that offers ``verbs``: ``system`` or ``soft``; for ``Membership.open``."""
    if verbs == "system":
        return _SYSTEM_LIBRARY
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), _SOFT_LIBRARY)


def _installed_extra() -> str:
    """The extra that gives the same kind of MLX library again: the CPU's must not replace CUDA's."""
    from importlib import metadata

    installed = {(dist.metadata["Name"] or "").lower() for dist in metadata.distributions()}
    extras = [extra for name, extra in _MLX_LIBRARIES.items() if name in installed]
    return f"[{extras[0]}]" if extras else ""

"""Brings jlaunch's bootstrap into every Python process of a job.

The agent puts this directory first on PYTHONPATH of its ranks, whose interpreters (and those of their
children) import this file at start, before the program. It waits for ``mlx.core`` and then has jlaunch
point ``mx.distributed`` at the job's group. Until then it has to cost nothing: no import beyond what an
interpreter has loaded already.

The ``sitecustomize`` that this file hides is run as Python itself would have run it, errors included.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_ACTIVE = bool(os.environ.get("JLAUNCH_JOB")) and os.environ.get("JLAUNCH_BACKEND") in ("jaccl", "jaccl-ring")


def _load_patch() -> "Callable[[ModuleType], None]":
    try:
        from jlaunch.runtime.rank_patch import patch
    except ImportError as error:
        message = (
            f"jlaunch: rank {os.environ.get('JLAUNCH_RANK')} runs under {sys.executable}, which cannot "
            f"import jlaunch ({error}): install it there ({sys.executable} -m pip install jlaunch), "
            "or choose another interpreter with --python"
        )
        print(message, file=sys.stderr)
        raise ImportError(message) from error
    return patch


class _PatchingLoader:
    """The loader of ``mlx.core``, and the patch right after it."""

    def __init__(self, loader: "Loader") -> None:
        self._loader = loader

    def create_module(self, spec: "ModuleSpec") -> "ModuleType | None":
        """As the real loader, unless the patch is missing: MLX cannot be loaded twice in a process."""
        self._patch = _load_patch()
        return self._loader.create_module(spec)

    def exec_module(self, module: "ModuleType") -> None:
        """As the real loader, which afterwards is the module's loader again."""
        self._loader.exec_module(module)
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._patch(module)


class _MlxFinder:
    """First on the meta path: knows ``mlx.core`` alone, and leaves the finding to the others."""

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """The spec that the other finders give, with our loader around theirs."""
        if name != "mlx.core":
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _PatchingLoader(spec.loader)  # type: ignore[assignment]
                return spec
        return None


def _run_hidden_sitecustomize() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != here]
    ours = sys.modules.pop("sitecustomize")
    try:
        __import__("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = ours


if _ACTIVE:
    sys.meta_path.insert(0, _MlxFinder())
_run_hidden_sitecustomize()

"""Points ``mx.distributed`` at the job's group; applied once, right after ``mlx.core`` was imported.

MLX picks a group by itself when an operation is given none. Inside a job that choice is always the
job's group, which the first ``init`` (or the first operation) forms; what was chosen explicitly passes
through. The functions keep MLX's names, parameters and documentation.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

_MLX_BACKENDS = ("any", "jaccl", "mpi", "nccl", "ring")
_OURS = ("any", "jaccl")

_Function = Callable[..., Any]


def patch(core: ModuleType) -> None:
    """Patch the freshly imported ``mlx.core``."""
    distributed: Any = core.distributed
    for make, names in (
        (_collective, ("all_sum", "all_gather", "all_max", "all_min", "sum_scatter")),
        (_send, ("send",)),
        (_recv, ("recv",)),
        (_recv_like, ("recv_like",)),
        (_init, ("init",)),
        (_is_available, ("is_available",)),
    ):
        for name in names:
            original = getattr(distributed, name)
            setattr(distributed, name, _dressed(make(original), original))
    # Here and not at init: handlers run last in, first out, and the program's own may still communicate.
    atexit.register(_leave)


def _job_group() -> Any:
    from jlaunch.runtime.rank import this_rank

    return this_rank().join()


def _leave() -> None:
    from jlaunch.runtime.rank import leave

    leave()


def _dressed(function: _Function, original: _Function) -> _Function:
    # Not functools.wraps: __wrapped__ would send inspect.signature to MLX's function, which has none.
    for attribute in ("__name__", "__qualname__", "__doc__", "__module__"):
        setattr(function, attribute, getattr(original, attribute))
    return function


def _init(original: _Function) -> _Function:
    def init(
        strict: bool = False, backend: str = "any", *, all_gather_factory: _Function | None = None
    ) -> Any:
        _require_ours(backend)
        return _job_group()

    return init


def _is_available(original: _Function) -> _Function:
    def is_available(backend: str = "any") -> bool:
        return backend in _OURS

    return is_available


def _require_ours(backend: str) -> None:
    if backend in _OURS:
        return
    if backend not in _MLX_BACKENDS:
        raise ValueError(f"[distributed] backend {backend!r}: expected one of {', '.join(_MLX_BACKENDS)}")
    raise RuntimeError(
        f"mx.distributed.init(backend={backend!r}): the ranks of this job are joined by jaccl: start the job "
        f"with jlaunch --backend {backend}, or call init() without a backend"
    )


def _collective(original: _Function) -> _Function:
    def collective(x: Any, *, group: Any = None, stream: Any = None) -> Any:
        return original(x, group=_job_group() if group is None else group, stream=stream)

    return collective


def _send(original: _Function) -> _Function:
    def send(x: Any, dst: int, *, group: Any = None, stream: Any = None) -> Any:
        return original(x, dst, group=_job_group() if group is None else group, stream=stream)

    return send


def _recv(original: _Function) -> _Function:
    def recv(shape: Sequence[int], dtype: Any, src: int, *, group: Any = None, stream: Any = None) -> Any:
        return original(shape, dtype, src, group=_job_group() if group is None else group, stream=stream)

    return recv


def _recv_like(original: _Function) -> _Function:
    def recv_like(x: Any, src: int, *, group: Any = None, stream: Any = None) -> Any:
        return original(x, src, group=_job_group() if group is None else group, stream=stream)

    return recv_like

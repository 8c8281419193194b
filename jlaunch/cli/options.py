"""The options of ``jlaunch run``: names, meaning, defaults, and the types that check them.

Names, meaning and defaults of ``mlx.launch``'s options are kept. An option that this version knows but
cannot honour yet is refused, never ignored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from jlaunch.cli.durations import parse_duration

NOT_YET = "this version of jlaunch does not do that yet"

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class RunOptions:
    """What was given for ``jlaunch run``; the fields are the options. None: not given."""

    command: tuple[str, ...]
    hosts: str | None
    hostfile: str | None
    repeat_hosts: int | None
    backend: str | None
    verbs: str
    env: tuple[str, ...]
    cwd: str | None
    python: str | None
    print_python: bool
    verbose: bool
    starting_port: int
    connections_per_ip: int | None
    nccl_port: int | None
    mpi_arg: tuple[str, ...]
    on_peer_loss: str | None
    deadline: float
    max_pause: float | None
    straggler_timeout: float
    host_timeout: float
    start_timeout: float
    max_restarts: int
    restart_backoff: float
    grace: float
    lease: float
    output: str
    stdin: str
    log_dir: str | None
    events: str | None
    dashboard: bool = False
    web: str | None = None


class Duration(click.ParamType[float]):
    """A span: seconds as a float. ``may_be_forever`` and ``at_least_s`` bound it."""

    name = "duration"

    def __init__(self, *, may_be_forever: bool = True, at_least_s: float = 0.0, zero: bool = False) -> None:
        self._may_be_forever = may_be_forever
        self._at_least_s = at_least_s
        self._zero = zero

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds; fails with what was found and what was expected."""
        if isinstance(value, float):
            return value
        try:
            span_s = parse_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if span_s == math.inf and not self._may_be_forever:
            self.fail(f"found {value!r}, expected a duration that ends", param, ctx)
        if span_s < self._at_least_s:
            self.fail(f"found {value!r}, expected {self._at_least_s:g}s or more", param, ctx)
        if span_s == 0 and not self._zero:
            self.fail(f"found {value!r}, expected more than nothing", param, ctx)
        return span_s


class Word(click.ParamType[str]):
    """One of a few words; ``later`` are words of the design that this version does not do yet."""

    name = "word"

    def __init__(self, *words: str, later: Sequence[str] = ()) -> None:
        self.words = words
        self._later = tuple(later)

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """The words, as ``--help`` shows them."""
        return "|".join(self.words)

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The word itself."""
        if value in self._later:
            self.fail(f"{value}: {NOT_YET} (it does {', '.join(self.words)})", param, ctx)
        if value not in self.words:
            self.fail(f"found {value!r}, expected {' or '.join(self.words)}", param, ctx)
        return str(value)


class Whole(click.ParamType[int]):
    """A whole number within bounds."""

    name = "number"

    def __init__(self, low: int, high: int) -> None:
        self._low = low
        self._high = high

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number."""
        text = str(value)
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit()) or not self._low <= int(text) <= self._high:
            self.fail(f"found {text!r}, expected a whole number from {self._low} to {self._high}", param, ctx)
        return int(text)


class Section(click.Option):
    """An option that knows under which heading ``--help`` lists it."""

    def __init__(self, *args: Any, section: str, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.section = section


class SectionedCommand(click.Command):
    """A command whose ``--help`` lists options under headings, in the order of their declaration."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one list for each section; ``--help`` comes with the last."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record is not None:
                sections.setdefault(getattr(param, "section", "Other"), []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)


POLICIES = Word("raise", "wait", "restart", "stop", later=("replace", "shrink"))
BACKENDS = Word("jaccl", "jaccl-ring", "ring", "nccl", later=("mpi",))

_ENDS = Duration(may_be_forever=False, zero=True)
_PORT = Whole(1, 65535)
_JOB, _LOSS, _SHOW, _MLX = "Ranks and hosts", "When a rank is lost", "Output", "Kept from mlx.launch"


def _option(section: str, *names: str, **attributes: Any) -> Callable[[F], F]:
    attributes.setdefault("show_default", "default" in attributes)
    return click.option(*names, cls=Section, section=section, **attributes)


def _read_config(ctx: click.Context, param: click.Parameter, path: str | None) -> None:
    """Make the job file's values the defaults of all other options; click reads eager options first."""
    if path is not None:
        from jlaunch.cli.jobfile import read_job_file

        ctx.default_map = read_job_file(path, ctx.command)


def _add_to_file(ctx: click.Context, param: click.Parameter, flags: tuple[str, ...]) -> tuple[str, ...]:
    """Variables of flags come after those of the job file, so that the later, the flag, wins."""
    if ctx.get_parameter_source(str(param.name)) is not click.core.ParameterSource.COMMANDLINE:
        return flags
    return (*(ctx.default_map or {}).get(str(param.name), ()), *flags)


def _ranks_and_hosts() -> list[Callable[[F], F]]:
    return [
        _option(_JOB, "--hosts", metavar="LIST|FILE",
                help="Hosts, separated by commas, or the path of a hosts file. [127.0.0.1]"),
        _option(_JOB, "--hostfile", metavar="FILE", help="Hosts file, in MLX's format."),
        _option(_JOB, "-n", "--repeat-hosts", type=Whole(1, 1024), help="Ranks on each host. [1]"),
        _option(_JOB, "--backend", type=BACKENDS,
                help="Implementation of the collectives. [the hosts file's, else jaccl]"),
        _option(_JOB, "--verbs", type=Word("auto", "soft", later=("system",)), default="auto",
                help="Provider of RDMA verbs: soft is bundled and needs no hardware."),
        _option(_JOB, "--env", multiple=True, metavar="K=V", callback=_add_to_file,
                help="Set a variable for the ranks (repeatable)."),
        _option(_JOB, "--cwd", metavar="DIR", help="Working directory of the ranks. [this one]"),
        _option(_JOB, "--python", metavar="PATH", help="Run the program with this Python."),
        _option(_JOB, "--print-python", is_flag=True, help="Print the Python that would be used, and exit."),
        _option(_JOB, "--config", metavar="FILE", is_eager=True, expose_value=False, callback=_read_config,
                help="Job file (TOML) with any of these options; flags win."),
    ]  # fmt: skip


def _when_a_rank_is_lost() -> list[Callable[[F], F]]:
    return [
        _option(_LOSS, "--on-peer-loss", type=POLICIES,
                help="What becomes of the others when a rank is lost. [raise; ring, nccl: stop]"),
        _option(_LOSS, "--deadline", type=Duration(), default="10s",
                help="No progress in a collective for this long: the backend asks, jlaunch decides."),
        _option(_LOSS, "--max-pause", type=Duration(zero=True),
                help="How long a paused rank is waited for. [the deadline; wait: forever]"),
        _option(_LOSS, "--straggler-timeout", type=Duration(), default="30m",
                help="How long a live rank may hold the others up without any progress."),
        _option(_LOSS, "--host-timeout", type=Duration(), default="5s",
                help="Silence of a host before it counts as lost."),
        _option(_LOSS, "--start-timeout", type=Duration(), default="5m",
                help="For all ranks to enter init, from the first one that does."),
        _option(_LOSS, "--max-restarts", type=Whole(0, 1_000_000), default=3,
                help="How often restart may start the job again."),
        _option(_LOSS, "--restart-backoff", type=_ENDS, default="1s",
                help="Delay before the second restart; it doubles each time."),
        _option(_LOSS, "--grace", type=_ENDS, default="10s",
                help="From a clean stop to SIGKILL."),
        _option(_LOSS, "--lease", type=Duration(may_be_forever=False, at_least_s=2.0),
                default="180s", help="How long ranks live on without a word from jlaunch."),
    ]  # fmt: skip


def _output() -> list[Callable[[F], F]]:
    return [
        _option(_SHOW, "--output", type=Word("prefix", "raw", "rank0", "none"), default="prefix",
                help="How the ranks' output is shown."),
        _option(_SHOW, "--log-dir", metavar="DIR", help="Also write rank-N.out and rank-N.err there."),
        _option(_SHOW, "--events", metavar="FILE", help="Write every event and verdict, a JSON line each."),
        _option(_SHOW, "--stdin", type=Word("all", "rank0", "none"), default="all",
                help="Which ranks get the standard input."),
        _option(_SHOW, "--verbose", is_flag=True, help="Say more on stderr."),
        _option(_SHOW, "--dashboard", is_flag=True, hidden=True),
        _option(_SHOW, "--web", is_flag=False, flag_value="127.0.0.1:0", hidden=True),
    ]  # fmt: skip


def _kept_from_mlx_launch() -> list[Callable[[F], F]]:
    return [
        _option(_MLX, "-p", "--starting-port", type=_PORT, default=32323,
                help="First port that the job may use."),
        _option(_MLX, "--connections-per-ip", type=Whole(1, 1024), help="Connections per address (ring)."),
        _option(_MLX, "--nccl-port", type=_PORT, help="Port of the nccl backend. [12345]"),
        _option(_MLX, "--mpi-arg", multiple=True, metavar="ARG", help="Argument for mpirun (mpi)."),
    ]  # fmt: skip


def run_options(function: F) -> F:
    """Decorate the callback of ``run`` with all of its options, in the order ``--help`` shows them."""
    options = [*_ranks_and_hosts(), *_when_a_rank_is_lost(), *_output(), *_kept_from_mlx_launch()]
    for option in reversed(options):
        function = option(function)
    return function

"""The command line. Until the arguments are parsed, click is the only thing imported."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from jlaunch.cli.options import NOT_YET, POLICIES, RunOptions, SectionedCommand, run_options
from jlaunch.core.contract import ExitCode
from jlaunch.core.errors import ConfigError

_LATER = ("top", "logs", "stack", "stop", "pause", "resume", "doctor", "bench")
"""Subcommands of the design that this version refuses by name, so that none is taken for a program."""


class FirstWord(click.Group):
    """A group whose first word is a subcommand's name, or else the beginning of a ``run``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put ``run`` in front unless the first word names a subcommand or asks about jlaunch itself."""
        if args and args[0] in _LATER:
            raise click.UsageError(
                f"{args[0]}: {NOT_YET} (to run a program of that name: jlaunch -- {args[0]})"
            )
        if not args or not (args[0] in self.commands or args[0] in ("--help", "--version")):
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Show that ``run`` may be left out."""
        formatter.write_usage("jlaunch", "[OPTIONS] [--] PROGRAM [ARGS]...")
        formatter.write_usage("jlaunch", "COMMAND [OPTIONS]...")


def _print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        from importlib.metadata import PackageNotFoundError, version

        try:
            click.echo(f"jlaunch {version('jlaunch')}")
        except PackageNotFoundError:
            click.echo("jlaunch, from a checkout that is not installed")
        ctx.exit()


@click.group(cls=FirstWord, context_settings={"help_option_names": ["--help"]})
@click.option("--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version,
              help="Print the version and exit.")  # fmt: skip
def jlaunch() -> None:
    """Run an MLX job of several ranks, watch over it, and end it cleanly whatever happens.

    PROGRAM is a .py file or any command; options after it are its own.
    All options of a run: jlaunch run --help
    """


@jlaunch.command(
    "run",
    cls=SectionedCommand,
    context_settings={"allow_interspersed_args": False},
    short_help="Run a job (the default).",
)
@run_options
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="PROGRAM [ARGS]...")
def run(**values: Any) -> int:
    """Run PROGRAM on every rank: a .py file, or any command. Options after PROGRAM are its own."""
    from jlaunch.cli.job import build_launch, default_python

    options = RunOptions(**values)
    if options.print_python:
        click.echo(default_python(options))
        return ExitCode.OK
    launch = build_launch(options, os.environ)
    for warning in launch.warnings:
        click.echo(f"jlaunch: warning: {warning}", err=True)
    from jlaunch.runtime import supervisor

    return supervisor.run(launch.spec, python=launch.python, events=launch.events)


@jlaunch.command("status")
@click.argument("job", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def status(job: str | None, as_json: bool) -> int:
    """Show a running job: its ranks, what they wait for, what happened.

    JOB is the beginning of a job's id; without it, the only job that runs. Exit code 1: no such job.
    """
    from jlaunch.cli.status import show_status

    return show_status(job, as_json=as_json)


@jlaunch.command("replay")
@click.argument("file")
def replay(file: str) -> int:
    """Feed a recorded run (--events FILE) to a fresh machine: does it decide as it did?

    Exit code 1: it does not.
    """
    from jlaunch.cli.replay import show_replay

    return show_replay(file)


@jlaunch.command("demo")
@click.option("--on-peer-loss", type=POLICIES, help="Only the scene of this policy.")
def demo(on_peer_loss: str | None) -> int:
    """Lose one rank of four on this machine, under each policy, for real. Takes less than a minute."""
    from jlaunch.cli.demo.play import run_demo

    return run_demo(on_peer_loss)


def main(arguments: Sequence[str]) -> int:
    """Do what ``arguments`` say and return the exit code. Errors are one line on stderr."""
    try:
        code = jlaunch.main(list(arguments), prog_name="jlaunch", standalone_mode=False)
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.Abort:
        return ExitCode.INTERRUPTED
    except click.BadParameter as error:
        return _refuse(_bad_parameter(error))
    except click.ClickException as error:
        return _refuse(error.format_message())
    except ConfigError as error:
        return _refuse(str(error))
    return int(code or 0)


def _bad_parameter(error: click.BadParameter) -> str:
    name = max(error.param.opts, key=len) if error.param is not None else "argument"
    return f"{name}: {error.message}"


def _refuse(message: str) -> int:
    click.echo(f"jlaunch: {' '.join(message.split())}", err=True)
    return ExitCode.USAGE


def entry() -> NoReturn:
    """The console script."""
    sys.exit(main(sys.argv[1:]))

"""Plays the scenes one after another and tells them."""

from __future__ import annotations

import signal
import sys
import time

import click

from jlaunch.cli.demo.scenes import RANKS, Scene, scenes
from jlaunch.cli.demo.stage import SceneFailed, Stage

INTRODUCTION = """\
Four ranks on this machine, all in a loop of 16 MB all_sum. Something happens to rank 2.
Times are milliseconds since it happened.
"""


def run_demo(policy: str | None) -> int:
    """Play all scenes, or that of ``policy``. Returns 0 if all went as promised, else 1."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        # Leave by the way that ends the job on the stage.
        signal.signal(number, lambda got, _: sys.exit(128 + got))
    click.echo(INTRODUCTION)
    began = time.monotonic()
    chosen = [scene for scene in scenes() if policy in (None, scene.policy)]
    failed = [scene.policy for scene in chosen if not _play(scene)]
    took = f"{time.monotonic() - began:.0f} s"
    if failed:
        click.echo(f"{', '.join(failed)}: not as promised ({took})", err=True)
        return 1
    click.echo(f"All as promised ({took}).")
    return 0


def _play(scene: Scene) -> bool:
    options = ("-n", str(RANKS), "--on-peer-loss", scene.policy, "--deadline", "1s", *scene.options)
    click.echo(f"{scene.policy}: {scene.title}\n  $ jlaunch {' '.join(options)} loop.py")
    try:
        with Stage(*options, turns=scene.turns) as stage:
            story = scene.act(stage)
    except SceneFailed as error:
        click.echo(f"  NOT as promised: {error}\n", err=True)
        return False
    for at_s, text in story.lines:
        click.echo(f"  {at_s * 1e3:7.0f}  {text}")
    click.echo()
    return True

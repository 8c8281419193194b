"""A replayed run in words: each decision with its moment, and whether all are the same."""

from __future__ import annotations

from jlaunch.core.replay import Decision, Replayed


def replay_lines(replayed: Replayed) -> list[str]:
    """What ``jlaunch replay`` prints for one job."""
    difference = replayed.first_difference
    lines = [f"job {replayed.job}"]
    lines += [f"  {_decision(decision)}" for decision in replayed.made[:difference]]
    if difference is None:
        count = len(replayed.made)
        return [*lines, f"the same {count} decision{'s' * (count != 1)}"]
    recorded = replayed.recorded[difference : difference + 1]
    made = replayed.made[difference : difference + 1]
    return [
        *lines,
        f"decision {difference + 1} differs",
        f"  recorded: {_decision(recorded[0]) if recorded else 'none'}",
        f"  replayed: {_decision(made[0]) if made else 'none'}",
    ]


def _decision(decision: Decision) -> str:
    fields = decision.fields
    if decision.kind == "EndJob":
        cause = f": {fields['cause']}" if fields["cause"] else ""
        return f"{decision.t:10.3f} s  end with code {fields['code']}{cause}"
    ranks = ", ".join(map(str, fields["ranks"]))
    word = str(fields["verdict_kind"]).replace("_", " ")
    return f"{decision.t:10.3f} s  {word} to {ranks}: {fields['why']}"

"""``jlaunch status``: a snapshot as one screen of plain text."""

from __future__ import annotations

from collections.abc import Sequence

from jlaunch.core.snapshot import HostView, RankView, Snapshot
from jlaunch.view import units

_HEADINGS = ("rank", "host", "state", "for", "pid", "what")


def render_status(snapshot: Snapshot, *, columns: int = 80, lines: int = 24) -> str:
    """The job as lines of at most ``columns``; ranks that do the same share a line if ``lines`` are few."""
    head = [_job_line(snapshot)]
    if snapshot.cause:
        head.append(f"cause: {snapshot.cause}")
    head += [_host_line(host) for host in snapshot.hosts[: max(lines // 4, 1)]]
    room = lines - len(head) - 2
    rows = [_row((rank,)) for rank in snapshot.ranks]
    if len(rows) > room:
        rows = [_row(group) for group in _alike(snapshot.ranks)]
    table = _table([_HEADINGS, *rows])
    recent = [f"  {units.span(h.ago_s)} ago  {h.text}" for h in snapshot.happenings]
    left = max(room - len(rows) - 2, 3)
    tail = ["", "recent", *recent[-left:]] if recent else []
    text = [*head, "", *table, *tail]
    return "".join(units.fitted(line, columns).rstrip() + "\n" for line in text)


def render_jobs(jobs: Sequence[tuple[str, int, int, str, str]], *, columns: int = 80) -> str:
    """Several jobs, a line each: id, pid of the supervisor, ranks, age, command."""
    rows = [(job, str(pid), str(ranks), age, command) for job, pid, ranks, age, command in jobs]
    table = _table([("job", "pid", "ranks", "for", "command"), *rows])
    return "".join(units.fitted(line, columns).rstrip() + "\n" for line in table)


def _job_line(snapshot: Snapshot) -> str:
    ended = [] if snapshot.exit_code is None else [f"exit code {snapshot.exit_code}"]
    words = [f"job {snapshot.job}", snapshot.phase, *ended, f"for {units.span(snapshot.age_s)}"]
    words += [f"epoch {snapshot.epoch}", f"policy {snapshot.policy}"]
    if snapshot.policy in ("restart", "replace"):
        words.append(f"restarts {snapshot.restarts} of {snapshot.max_restarts}")
    return "  ".join(words)


def _host_line(host: HostView) -> str:
    heard = "not heard yet" if host.heard_s is None else f"heard {units.span(host.heard_s)} ago"
    return f"host {host.host}  {host.name}  {host.state}  {heard}"


def _row(alike: Sequence[RankView]) -> tuple[str, ...]:
    """One line of the table, for one rank or for several that do the same."""
    first = alike[0]
    return (
        units.ranks(view.rank for view in alike),
        units.ranks({view.host for view in alike}),
        first.state,
        units.span(max(view.age_s for view in alike)),
        str(first.pid) if len(alike) == 1 and first.pid is not None else "",
        _what(first),
    )


def _what(view: RankView) -> str:
    """What a rank is doing, or how it ended."""
    if view.status is not None:
        ended = f"exit code {view.status}" if view.status >= 0 else f"signal {-view.status}"
        return f"{ended} ({view.reason})" if view.reason else ended
    if view.reason:
        return view.reason
    if view.wait is not None:
        what = f"{view.wait.collective} #{view.wait.seq}, {units.size(view.wait.size_bytes)}"
        return f"{what}, waits for {units.ranks(view.wait.waiting_for)}" if view.wait.waiting_for else what
    return " ".join(f"{name}={number:g}" for name, number in view.report.items())


def _alike(views: Sequence[RankView]) -> list[list[RankView]]:
    """Ranks in groups that would read the same but for their number, host, pid and age."""
    groups: dict[tuple[str, str], list[RankView]] = {}
    for view in views:
        groups.setdefault((view.state, _what(view)), []).append(view)
    return list(groups.values())


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Left-aligned columns with two spaces between; the last column is as wide as it is."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    return ["  ".join([*(c.ljust(w) for c, w in zip(row, widths, strict=False)), row[-1]]) for row in rows]

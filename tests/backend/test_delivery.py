"""How a loss reaches the program: once, in the main thread, whatever the program was doing.

Two real ranks. Rank 1 takes part in two collectives and then only lives; rank 0 waits in the third, in
the way that the case says, until the verdict comes that rank 1 was killed.
"""

from __future__ import annotations

import signal
import textwrap
from typing import Any

import pytest

from jlaunch.core.contract import Reason
from tests.backend.harness import StandIn
from tests.backend.prelude import PRELUDE

CASE = (
    PRELUDE
    + """
x = {x}
mx.eval(x)
notes = []
events = []

def told(name, act):
    try:
        act()
    except Exception as error:
        events.append([name, type(error).__name__])
    else:
        events.append([name, None])

{case}

if group.rank() == 1:
    for _ in range(2):
        mx.eval(all_sum(x))
    sys.stdin.readline()
    sys.exit()

told("case", case)
told("unrelated", lambda: mx.eval(mx.arange(5) + 1))
told("unrelated", lambda: mx.synchronize(mx.default_stream(mx.cpu)))
told("unrelated", lambda: sum(i for i in range(1000)))
told("new", lambda: mx.eval(all_sum(x)))
told("unrelated", lambda: mx.eval(mx.arange(5) * 2))
say(events=events, notes=notes)
"""
)

ONCE = [
    ["case", "PeerLost"],
    ["unrelated", None],
    ["unrelated", None],
    ["unrelated", None],
    ["new", "PeerLost"],
    ["unrelated", None],
]


def case(body: str) -> str:
    return "def case():\n" + textwrap.indent(textwrap.dedent(body).strip(), "    ")


IN_EVERY_WAY = {
    "eval": "for _ in range(3): mx.eval(all_sum(x))",
    "eval of an output": "for _ in range(3): mx.eval(mx.exp(all_sum(x)) @ x)",
    "item": "for _ in range(3): all_sum(x)[0].item()",
    "tolist": "for _ in range(3): all_sum(x).tolist()",
    "print": "for _ in range(3): print(all_sum(x), file=sys.stderr)",
    "bool": """
        for _ in range(3):
            if all_sum(x)[0]: notes.append("went on")
        """,
    "synchronize": """
        outputs = [all_sum(x) for _ in range(3)]
        mx.async_eval(outputs)
        mx.synchronize(mx.default_stream(mx.cpu))
        """,
    "np.array": """
        for _ in range(3):
            np.array(all_sum(x))
            notes.append("went on")
        """,
    "memoryview": """
        for _ in range(3):
            memoryview(all_sum(x))
            notes.append("went on")
        """,
    "dropped output": """
        for _ in range(3): mx.async_eval(all_sum(x))
        until(lambda: False)
        """,
    "six async steps": """
        outputs = []
        for step in range(6):
            y = all_sum(x * step)
            outputs.append(mx.exp(y * 0) @ mx.ones((64, 50)))
            mx.async_eval(outputs[-1])
        mx.eval(outputs)
        """,
    "six async steps on two streams": """
        second = mx.new_stream(mx.cpu)
        outputs = []
        for step in range(6):
            y = all_sum(x * step, stream=second if step % 2 else None)
            outputs.append(mx.exp(y * 0) @ mx.ones((64, 50)))
            mx.async_eval(outputs[-1])
        mx.eval(outputs)
        """,
    "compiled": """
        step = mx.compile(lambda x: mx.exp(all_sum(x)))
        for _ in range(3): mx.eval(step(x))
        """,
}


@pytest.mark.parametrize("body", IN_EVERY_WAY.values(), ids=IN_EVERY_WAY.keys())
def test_main_thread_gets_it_once(body: str) -> None:
    events, notes = lost_in(case(body))
    assert events == ONCE
    assert notes.count("went on") in (0, 2)


def test_integers_and_bools_are_poisoned_and_raise() -> None:
    body = """
        global y
        for _ in range(3):
            y = all_sum(x)
            mx.eval(y)
        """
    check = 'told("poison", lambda: notes.append(np.array(y).tobytes().hex()))\n'
    for x, poison in (
        ("mx.ones((3,), dtype=mx.int32)", "a5a5a5a5" * 3),
        ("mx.ones((3,), dtype=mx.bool_)", "a5" * 3),
        ("mx.ones((2,), dtype=mx.float32)", "0000c07f" * 2),
        ("mx.ones((2,), dtype=mx.bfloat16).view(mx.uint16).view(mx.bfloat16)", None),
    ):
        source = (
            CASE.replace("{x}", x).replace("{case}", case(body)).replace("say(events", check + "say(events")
        )
        events, notes = run(source)
        assert events[0] == ["case", "PeerLost"]
        if poison is not None:
            assert notes == [poison]


def test_thread_gets_its_own_and_the_main_thread_too() -> None:
    body = """
        def work():
            y = mx.ones((64,))
            try:
                for _ in range(3): mx.eval(all_sum(y))
            except jlaunch.PeerLost as error:
                notes.append(error.seq)
            mx.eval(mx.arange(3) + 1)
            notes.append("works on")
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        """
    events, notes = lost_in(case(body))
    assert events == ONCE
    assert notes == [3, "works on"]


def test_two_threads_in_collectives_at_once() -> None:
    # Rank 1's two collectives are of the same kind and size, whichever thread comes first.
    body = """
        def work():
            y = mx.ones((64,))
            try:
                for _ in range(3): mx.eval(all_sum(y))
            except jlaunch.PeerLost as error:
                notes.append("PeerLost")
            mx.eval(mx.arange(3) + 1)
        thread = threading.Thread(target=work)
        thread.start()
        try:
            for _ in range(3): mx.eval(all_sum(x))
        finally:
            thread.join()
        """
    events, notes = lost_in(case(body))
    assert events == ONCE
    assert notes == ["PeerLost"]


def test_what_the_exception_says() -> None:
    body = """
        try:
            for _ in range(3): mx.eval(all_sum(x))
        except jlaunch.PeerLost as error:
            notes.extend([isinstance(error, RuntimeError), error.ranks == (1,), error.reasons == {{1: "killed"}}])
            notes.extend([error.collective, error.seq, error.epoch, error.waited_s > 0.04, str(error)])
            raise
        """.replace("{{", "{").replace("}}", "}")
    _, notes = lost_in(case(body))
    assert notes[:-1] == [True, True, True, "all_sum", 3, 1, True]
    assert "rank 1" in notes[-1]
    assert "killed" in notes[-1]
    assert "[jlaunch" not in notes[-1]


STOPPED = (
    PRELUDE
    + """
x = mx.ones((64,))
if group.rank() == 1:
    for _ in range(2):
        mx.eval(all_sum(x))
    sys.stdin.readline()
    sys.exit()
atexit.register(lambda: say(atexit=True))
raised = []
{before}
try:
    try:
        {work}
    except jlaunch.JobStopping as error:
        raised.append(type(error).__name__)
        {after}
        until(lambda: jlaunch.failure() is not None)
        mx.eval(mx.arange(5))
        say(raised=raised, failure=type(jlaunch.failure()).__name__)
        raise
finally:
    say(ran_finally=True)
"""
)


def stopped(work: str, after: str = "pass", before: str = "") -> str:
    return STOPPED.replace("{work}", work).replace("{after}", after).replace("{before}", before)


def test_stop_reaches_a_rank_inside_a_collective_and_sigterm_adds_nothing() -> None:
    # The rank waits for our SIGTERM after it caught the verdict's exception: nothing may be raised again.
    program = stopped("for _ in range(3): mx.eval(all_sum(x))", after="say(caught=1); sys.stdin.readline()")
    with StandIn(program) as ranks:
        ranks.until_waiting(0, 3)
        ranks.stop(0)
        ranks.said(0, "caught")
        ranks.ranks[0].send_signal(signal.SIGTERM)
        ranks.tell(0)
        assert ranks.said(0, "raised") == ["JobStopping"]
        assert ranks.said(0, "ran_finally")
        assert ranks.said(0, "atexit")
        assert ranks.wait(0) == 1
        assert "JobStopping" in ranks.errors(0)


def test_sigterm_reaches_a_rank_outside_of_collectives_and_the_verdict_adds_nothing() -> None:
    work = "mx.eval(all_sum(x), all_sum(x)); mx.async_eval(all_sum(x)); say(ready=1); until(lambda: False)"
    with StandIn(stopped(work, after="say(caught=1); sys.stdin.readline()")) as ranks:
        ranks.said(0, "ready")
        ranks.until_waiting(0, 3)
        ranks.ranks[0].send_signal(signal.SIGTERM)
        ranks.said(0, "caught")
        ranks.stop(0)
        ranks.tell(0)
        assert ranks.said(0, "raised") == ["JobStopping"]
        assert ranks.said(0, "failure") == "JobStopping"
        assert ranks.said(0, "ran_finally")
        assert ranks.said(0, "atexit")
        assert ranks.wait(0) == 1


@pytest.mark.parametrize(
    "work",
    [
        "for _ in range(3): mx.eval(all_sum(x))",
        "mx.eval(all_sum(x), all_sum(x)); say(ready=1); until(lambda: False)",
    ],
)
def test_without_an_agent_the_rank_gets_control_lost_once(work: str) -> None:
    # Inside a collective the backend raises it, outside the keeper's SIGTERM does.
    with StandIn(stopped(work, after="time.sleep(1)"), grace_s=20.0) as ranks:
        if "ready" in work:
            ranks.said(0, "ready")
        else:
            ranks.until_waiting(0, 3)
        ranks.die()
        assert ranks.said(0, "raised") == ["ControlLost"]
        assert ranks.said(0, "failure") == "ControlLost"
        assert ranks.said(0, "ran_finally")
        assert ranks.said(0, "atexit")
        assert ranks.wait(0) == 1


def test_a_handler_of_the_programs_own_stays() -> None:
    program = (
        PRELUDE.replace("group =", "signal.signal(signal.SIGTERM, lambda *_: say(mine=1))\ngroup =")
        + "say(ready=1)\nsys.stdin.readline()\n"
    )
    with StandIn(program, size=1) as ranks:
        ranks.said(0, "ready")
        ranks.ranks[0].send_signal(signal.SIGTERM)
        assert ranks.said(0, "mine") == 1
        ranks.tell(0)
        assert ranks.wait(0) == 0


def lost_in(source: str, x: str = "mx.ones((64,))") -> tuple[list[Any], list[Any]]:
    return run(CASE.replace("{x}", x).replace("{case}", source))


def run(source: str) -> tuple[list[Any], list[Any]]:
    """Events and notes of rank 0, which is told of the loss of rank 1 when it waits in the third."""
    with StandIn(source) as ranks:
        ranks.until_waiting(0, 3)
        ranks.raise_in(0, {1: Reason.KILLED})
        events, notes = ranks.said(0, "events"), ranks.said(0, "notes")
        assert ranks.wait(0) == 0
        ranks.tell(1)
        assert ranks.wait(1) == 0
    return events, notes

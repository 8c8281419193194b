"""What all tests rest on: signals as a person's shell leaves them."""

from __future__ import annotations

import signal

for _number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    # A shell starts what it runs in its background with these ignored, ``nohup`` too, and jlaunch honours
    # that, as its children do: but what the tests send must arrive.
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL)

"""Does something wherever a thread that makes a call may lose its turn, or be interrupted."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

# After these a thread looks whether it is another one's turn, or whether a signal came.
_LOOKS = {dis.opmap[name] for name in ("RESUME", "CALL", "CALL_FUNCTION_EX", "JUMP_BACKWARD")}
# Python itself calls these, weakref's callbacks among them, and would swallow an exception.
_DESTROYS = ("__del__", "<locals>._remove", "<locals>.remove", "finalize.__call__")


def at_place(
    n: int, call: Callable[[], object], do: Callable[[], object], modules: tuple[str, ...]
) -> bool:
    """Make a call, and do something at the n-th place in it, once.

    Args:
        n: counted from 1.
        call: makes the call.
        do: called at the place; what it raises is raised there.
        modules: only places in these count, and in what is below them.

    Returns:
        Whether there is such a place.
    """
    places = 0

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        if not frame.f_globals.get("__name__", "").startswith(modules):
            return None
        code, before = frame.f_code.co_code, -1

        def step(frame: FrameType, event: str, arg: object) -> Any:
            nonlocal places, before
            if event == "opcode":
                last, before = before, code[frame.f_lasti]
                if last in _LOOKS and not _destroys(frame):
                    places += 1
                    if places == n:
                        sys.settrace(None)
                        do()
            return step

        frame.f_trace_opcodes = True
        return step

    usual = sys.gettrace()  # of what measures coverage
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(usual)
    return places >= n


def _destroys(frame: FrameType | None) -> bool:
    """Whether Python is destroying something."""
    while frame is not None:
        if frame.f_code.co_qualname.endswith(_DESTROYS):
            return True
        frame = frame.f_back
    return False

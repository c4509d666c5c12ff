"""Does something wherever a thread that makes a call may lose its turn, or be interrupted."""

from __future__ import annotations

import dis
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

# After these a thread looks whether it is another one's turn, or whether a signal came.
_LOOKS = {
    dis.opmap[name]
    for name in ("RESUME", "CALL", "CALL_KW", "CALL_FUNCTION_EX", "JUMP_BACKWARD")
    if name in dis.opmap
}
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
        modules: only places in these count.

    Returns:
        Whether there is such a place.
    """
    places, before = 0, dict[int, int]()  # the last instruction of each frame

    def step(frame: FrameType, offset: int) -> None:
        nonlocal places
        last = before.get(id(frame), -1) if offset else -1
        before[id(frame)] = frame.f_code.co_code[offset]
        if places < n and last in _LOOKS and not _destroys(frame):
            places += 1
            if places == n:
                do()

    with _each_instruction(step, modules):
        call()
    return places >= n


@contextmanager
def _each_instruction(
    step: Callable[[FrameType, int], object], modules: tuple[str, ...]
) -> Iterator[None]:
    """Call `step` before each instruction that this thread executes in some modules."""
    if sys.version_info < (3, 12):

        def trace(frame: FrameType, event: str, arg: object) -> Any:
            if not frame.f_globals.get("__name__", "").startswith(modules):
                return None
            frame.f_trace_opcodes = True
            if event == "opcode":
                step(frame, frame.f_lasti)
            return trace

        usual = sys.gettrace()  # of what measures coverage
        sys.settrace(trace)
        try:
            yield
        finally:
            sys.settrace(usual)
        return

    # From 3.12 on, a traced function that runs already is not seen instruction by instruction.
    monitoring, thread = sys.monitoring, threading.get_ident()

    def seen(code: CodeType, offset: int) -> Any:
        frame = inspect.currentframe().f_back  # type: ignore[union-attr]
        assert frame is not None
        if not frame.f_globals.get("__name__", "").startswith(modules):
            return monitoring.DISABLE
        if threading.get_ident() == thread:
            step(frame, offset)
        return None

    monitoring.use_tool_id(_TOOL, __name__)
    monitoring.register_callback(_TOOL, monitoring.events.INSTRUCTION, seen)
    monitoring.set_events(_TOOL, monitoring.events.INSTRUCTION)
    try:
        yield
    finally:
        monitoring.set_events(_TOOL, 0)
        monitoring.free_tool_id(_TOOL)
        monitoring.restart_events()


_TOOL = 4  # of six; those with names are for debuggers, coverage, profilers and optimizers


def _destroys(frame: FrameType | None) -> bool:
    """Whether Python is destroying something."""
    while frame is not None:
        if frame.f_code.co_qualname.endswith(_DESTROYS):
            return True
        frame = frame.f_back
    return False

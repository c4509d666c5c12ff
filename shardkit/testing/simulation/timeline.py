"""A run as a timeline: clients by column, then servers by column.

::

       time  alice            bob              │ counters:0
       0 ms  ▸ visit('home')                   │
     0.4 ms                                    │ alice: GET home → nil
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from shardkit.testing.simulation.world import Event

_TIME = 11
_MOST_ROWS = 400


def timeline(
    events: Sequence[Event], clients: Sequence[str], servers: Sequence[str], width: int = 100
) -> str:
    """Return events as text."""
    width = max(80, width)
    seen = {event.actor for event in events}
    left = [name for name in clients if name in seen]
    right = [name for name in servers if name in seen]
    columns = left + right
    if not columns:
        return ""
    room = (width - _TIME - 2) // len(columns)
    first = events[0].time if events else 0.0
    rows = [_row("time", columns, dict(zip(columns, columns, strict=True)), room, len(left))]
    shown = events[-_MOST_ROWS:]
    if len(shown) < len(events):
        rows.append(f"… {len(events) - len(shown)} earlier lines")
    for event in shown:
        seconds = event.time - first
        at = f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:,.2f} s"
        if event.actor not in columns:
            rows.append(f"{at:>{_TIME - 2}}  {event.text}")
            continue
        for n, line in enumerate(textwrap.wrap(event.text, room - 1) or [""]):
            text = line if not n else f"  {line}"[: room - 1]
            rows.append(_row("" if n else at, columns, {event.actor: text}, room, len(left)))
    return "\n".join(rows)


def _row(at: str, columns: list[str], texts: dict[str, str], room: int, left: int) -> str:
    cells = [texts.get(name, "").ljust(room)[:room] for name in columns]
    row = f"{at:>{_TIME - 2}}  {''.join(cells[:left])}│ {''.join(cells[left:])}"
    return row.rstrip()

"""A page over the whole fleet, and the same as JSON, for people and programs.

A server is asked by one thread at one rate, however many people look, so a server that hangs delays
nothing else. What costs more (keys of queues and locks, structures) is asked when its view is open,
and remembered for some seconds.

`fleet.py` collects, `history.py` keeps a day of it, `views.py` and `keys.py` answer for each view,
`app.py` serves, `page/` is the page, which is plain JavaScript with the charts of uPlot (its
licence is beside it).
"""

from shardkit.dashboard.app import application
from shardkit.dashboard.fleet import FleetWatch
from shardkit.operations.arguments import check_public

__all__ = ["FleetWatch", "application"]
check_public(globals())

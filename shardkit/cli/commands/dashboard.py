"""``shardkit dashboard``: a page over the whole fleet."""

from __future__ import annotations

import os
import secrets
import socket
from contextlib import suppress
from ipaddress import ip_address

import click

from shardkit.cli.options import command, config_option, number_option, opened
from shardkit.cli.output import Output
from shardkit.errors import ConfigError, extra

TOKEN = "SHARDKIT_DASHBOARD_TOKEN"
_HERE = ("127.0.0.1", "localhost", "::1", "[::1]")


@command(
    "shardkit dashboard -c redis://config.internal",
    "shardkit dashboard --port 9000 --allow-changes",
    f"{TOKEN}=$(cat token) shardkit dashboard --host 10.0.0.5",
)
@config_option
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@number_option("--port", 7180, "The port to listen on.", least=0, most=65535)
@number_option("--interval", 2.0, "How often a server is asked.", least=0.2, unit="SECONDS")
@click.option("--allow-changes", is_flag=True, help="Let people revive dead tasks.")
def dashboard(
    where: str | None, host: str, port: int, interval: float, allow_changes: bool, output: Output
) -> int:
    """Serve a page over the whole fleet, until Ctrl-C.

    It shows servers, components, slow commands, queues, locks, moves and the configuration, and
    changes nothing without --allow-changes. Each server is asked for INFO once in an interval,
    however many people look. Beyond this machine, people need a token: that in
    $SHARDKIT_DASHBOARD_TOKEN, or one that is printed.
    """
    with extra("dashboard", "dashboards"):
        import uvicorn

    from shardkit.dashboard import FleetWatch, application

    try:
        *_, found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise ConfigError(
            f"--host {host} is not a name of this machine: {error.strerror}", "give its address"
        ) from None
    listens_on = str(found[0]).partition("%")[0]
    is_local = ip_address(listens_on).is_loopback
    token = os.environ.get(TOKEN, "") or ("" if is_local else secrets.token_urlsafe(24))
    with opened(where) as topology:
        fleet = FleetWatch(topology.kit, topology.config_server, interval=interval)
        try:
            app = application(
                fleet,
                token=token,
                allow_changes=allow_changes,
                hosts=(*_HERE, host) if is_local else ("*",),
            )
            config = uvicorn.Config(
                app, host, port, log_level="warning", timeout_graceful_shutdown=1, lifespan="off"
            )
            server = uvicorn.Server(config)
            family = socket.AF_INET6 if ":" in listens_on else socket.AF_INET
            listening = socket.create_server((str(found[0]), port), family=family)
            address = listening.getsockname()
            url = f"http://{f'[{address[0]}]' if ':' in address[0] else address[0]}:{address[1]}/"
            if token:
                url += f"?token={token}"
            output.answer({"url": url}, f"{url}  (Ctrl-C ends it)")
            with suppress(KeyboardInterrupt):  # which uvicorn raises again after it has closed
                server.run([listening])
        finally:
            fleet.close()
    return 0

"""A server in front of another, whose replies it replaces: by the command, or by their number."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

import hiredis
import redis

# What is asked for around commands; none of it is counted.
_AROUND = ("CLIENT", "HELLO", "MULTI", "SELECT")


class Relay:
    """Answers as the server behind it, but for what is replaced.

    Attributes:
        replaced: by the command's name, the reply to it, or what makes it of the command.
        nth: the reply to the command of a number, counted by ``count`` from 0.
        count: how many commands have come since it was set to 0.
    """

    def __init__(self, port: int) -> None:
        self.replaced: dict[str, bytes | Callable[[list[bytes]], bytes]] = {}
        self.nth: dict[int, bytes] = {}
        self.count = 0
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                own, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(own,), daemon=True).start()

    def _serve(self, own: socket.socket) -> None:
        with suppress(OSError), own, socket.create_connection(("127.0.0.1", self._to)) as other:
            for end in (own, other):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            commands, replies = hiredis.Reader(), hiredis.Reader()
            while data := own.recv(65536):
                commands.feed(data)
                while (args := commands.gets()) is not False:
                    other.sendall(b"".join(redis.Connection().pack_command(*args)))
                    whole = b""
                    while replies.gets() is False:
                        whole += (piece := other.recv(65536))
                        replies.feed(piece)
                    name = bytes(args[0]).decode().upper()
                    given = self.replaced.get(name, whole)
                    whole = given(args) if callable(given) else given
                    if name not in _AROUND and not whole.startswith((b"+QUEUED", b"-NOSCRIPT")):
                        whole = self.nth.get(self.count, whole)
                        self.count += 1
                    own.sendall(whole)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

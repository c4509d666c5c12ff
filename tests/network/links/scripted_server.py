"""A server under the test's control: it answers each command with the bytes that the test says."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeAlias

import hiredis

Reply: TypeAlias = bytes | Iterator[bytes] | None
Answer: TypeAlias = bytes | Callable[[list[bytes]], Reply]


class ScriptedServer:
    """Answers commands over TCP; ``None`` closes the connection instead of answering.

    Attributes:
        answers: by the command's name in upper case, the reply, or a function of its arguments,
            which may return pieces.
        received: every command received, without those that connections introduce themselves by.
        connections: how many were made.
    """

    def __init__(self, **answers: Answer) -> None:
        self.answers: dict[str, Answer] = {"PING": b"+PONG\r\n", **answers}
        self.received: list[list[bytes]] = []
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.accepted: list[socket.socket] = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def names(self) -> list[str]:
        return [args[0].decode() for args in self.received]

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections += 1
                self.accepted.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        reader = hiredis.Reader()
        with suppress(OSError), connection:
            while data := connection.recv(65536):
                reader.feed(data)
                while (args := reader.gets()) is not False:
                    reply = self._reply([bytes(arg) for arg in args])
                    if reply is None:
                        return
                    for piece in [reply] if isinstance(reply, bytes) else reply:
                        connection.sendall(piece)

    def _reply(self, args: list[bytes]) -> Reply:
        name = args[0].decode().upper()
        if name in ("CLIENT", "HELLO", "SELECT") and name not in self.answers:
            return b"+OK\r\n"
        if args[:2] == [b"ZSCORE", b"config:witness"]:
            return b"$-1\r\n"
        if args[:2] == [b"EXISTS", b"config:fence"]:
            return b":0\r\n"
        self.received.append(args)
        answer = self.answers.get(name, b"+OK\r\n")
        return answer(args) if callable(answer) else answer

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # closing alone leaves the thread waiting
        self._accepting.join()
        self._listener.close()
        for connection in self.accepted:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()


@contextmanager
def scripted(**answers: Answer) -> Iterator[ScriptedServer]:
    """Run a scripted server."""
    server = ScriptedServer(**answers)
    try:
        yield server
    finally:
        server.close()


def bulk(text: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(text), text)


def drip(_: list[bytes]) -> Iterator[bytes]:
    """A reply that takes 100 seconds, though no timeout passes before the next byte."""
    yield b"$1000\r\n"
    for _byte in range(1000):
        time.sleep(0.1)
        yield b"x"

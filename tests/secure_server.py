"""A server that listens on a Unix socket and speaks TLS, by itself or by a proxy in front of it."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from faces import free_port

from shardkit.errors import LocalServerError
from shardkit.local import LocalServer


class SecureServer:
    """A running server with TLS; how entries reach it.

    Args:
        directory: where its certificate and its socket are.
        config: further settings; None for the embedded server, which lacks TLS, behind a proxy.

    Attributes:
        tls: the entry's fields for TLS.
        mutual: the same with a client's certificate.
        unix: those for its Unix socket.
    """

    def __init__(self, directory: Path, config: dict[str, str] | None) -> None:
        self.certificate, self.key = directory / "cert.pem", directory / "key.pem"
        if not self.certificate.exists():  # that of another server here
            make_certificate(self.certificate, self.key)
        port = free_port()
        path = str(directory / f"{port}.sock")
        self._proxy: TlsProxy | None = None
        if config is None:
            self.server = LocalServer(config={"unixsocket": path}).start()
            self._proxy = TlsProxy(port, self.server.port, self.certificate, self.key)
        else:
            self.server = LocalServer(
                binary=shutil.which("redis-server") or shutil.which("valkey-server"),
                config={
                    "tls-port": port,
                    "tls-cert-file": str(self.certificate),
                    "tls-key-file": str(self.key),
                    "tls-ca-cert-file": str(self.certificate),
                    "tls-auth-clients": "optional",
                    "unixsocket": path,
                    **config,
                },
                name="TLS server",
            ).start()
        self.unix: dict[str, Any] = {"unix_socket_path": path}
        self.tls: dict[str, Any] = {
            "host": "localhost",
            "port": port,
            "ssl": True,
            "ssl_ca_certs": str(self.certificate),
        }
        own = {"ssl_certfile": str(self.certificate), "ssl_keyfile": str(self.key)}
        self.mutual = self.tls | own

    def stop(self) -> None:
        if self._proxy is not None:
            self._proxy.stop()
        self.server.stop()


class TlsProxy:
    """Speaks TLS on one port, and passes on to another what it decrypts."""

    def __init__(
        self, port: int, to: int, certificate: Path, key: Path, most: str = "MAXIMUM_SUPPORTED"
    ) -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(certificate))
        context.load_cert_chain(certificate, key)
        context.verify_mode = ssl.CERT_OPTIONAL
        context.maximum_version = ssl.TLSVersion[most]
        self._to = to
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda loop, context: None)  # clients refuse certificates
        self._server = self._loop.run_until_complete(
            asyncio.start_server(self._serve, "127.0.0.1", port, ssl=context)
        )
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind, to_server = await asyncio.open_connection("127.0.0.1", self._to)
        self._writers |= {writer, to_server}
        await asyncio.gather(_pass_on(reader, to_server), _pass_on(behind, writer))
        self._writers -= {writer, to_server}

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            await asyncio.wait(others, timeout=10)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(2**16):
            writer.write(data)
            await writer.drain()
    writer.close()


def make_certificate(certificate: Path, key: Path) -> None:
    """Make a certificate of localhost, not of 127.0.0.1, that signs itself."""
    command = (
        f"openssl req -x509 -newkey rsa:2048 -nodes -keyout {key} -out {certificate} -days 30 "
        "-subj /CN=localhost -addext subjectAltName=DNS:localhost"
    )
    subprocess.run(command.split(), check=True, capture_output=True)


def secure_server(directory: Path, **config: str) -> SecureServer | None:
    """Start one on PATH; None if none there speaks TLS, or there is no openssl."""
    if not shutil.which("openssl"):
        return None
    try:
        return SecureServer(directory, config)
    except LocalServerError:
        return None

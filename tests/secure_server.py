"""A server that speaks TLS and listens on a Unix socket, where this machine has one that can."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

from shardkit.errors import LocalServerError
from shardkit.local import LocalServer
from shardkit.local.server import free_port


class SecureServer:
    """A running server with TLS; how entries reach it.

    Args:
        directory: where its certificate and its socket are.
        config: further settings.

    Attributes:
        tls: the entry's fields for TLS.
        mutual: the same with a client's certificate.
        unix: those for its Unix socket.
    """

    def __init__(self, directory: Path, config: dict[str, str]) -> None:
        self.certificate, self.key = directory / "cert.pem", directory / "key.pem"
        make_certificate(self.certificate, self.key)
        port, path = free_port(), str(directory / "server.sock")
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
        )
        self.server.start()
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
        self.server.stop()


def make_certificate(certificate: Path, key: Path) -> None:
    """Make a certificate of localhost, not of 127.0.0.1, that signs itself."""
    command = (
        f"openssl req -x509 -newkey rsa:2048 -nodes -keyout {key} -out {certificate} -days 30 "
        "-subj /CN=localhost -addext subjectAltName=DNS:localhost"
    )
    subprocess.run(command.split(), check=True, capture_output=True)


def secure_server(directory: Path, **config: str) -> SecureServer | None:
    """Start one; None if there is no server with TLS on PATH, or no openssl."""
    if not shutil.which("openssl"):
        return None
    try:
        return SecureServer(directory, config)
    except LocalServerError:
        return None

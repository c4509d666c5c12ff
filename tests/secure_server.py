"""A server that listens on a Unix socket and speaks TLS, by itself or by a proxy in front of it."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any

from faces import free_port
from slow_way import Slow

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
        self._way = Slow(to, port, context)

    def stop(self) -> None:
        self._way.close()


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

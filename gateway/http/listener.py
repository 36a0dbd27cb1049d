"""Where a server listens: an address, or a Unix socket; with TLS, or without."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import stat
from pathlib import Path

from gateway.config.config import GatewayConfig

_BACKLOG = 2048


class ListenError(Exception):
    """One line that says where a server cannot listen, or why not with TLS."""


def listen(config: GatewayConfig) -> socket.socket:
    """Raises ListenError."""
    try:
        if config.uds is not None:
            return _listen_unix(Path(config.uds))
        family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
        return socket.create_server((config.host, config.port), family=family, backlog=_BACKLOG)
    except OSError as error:
        place = config.uds or f"{config.host}:{config.port}"
        raise ListenError(f"cannot listen on {place}: {os.strerror(error.errno or 0)}") from None


def tls_context(config: GatewayConfig) -> ssl.SSLContext | None:
    """None without a certificate. Raises ListenError."""
    if config.ssl_certfile is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for file in filter(None, (config.ssl_certfile, config.ssl_keyfile)):
        try:
            Path(file).read_bytes()
        except OSError as error:
            raise ListenError(f"TLS: {file} cannot be read: {error.strerror}") from None
    try:
        context.load_cert_chain(config.ssl_certfile, config.ssl_keyfile)
    except OSError as error:  # ssl.SSLError is one
        raise ListenError(f"TLS: {config.ssl_certfile} and its key cannot be used: {error}") from None
    return context


def url(config: GatewayConfig, listener: socket.socket) -> str:
    """For a client on this machine; of a Unix socket the path."""
    if config.uds is not None:
        return f"unix:{config.uds}"
    scheme, port = "https" if config.ssl_certfile else "http", listener.getsockname()[1]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(config.host, config.host)
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _listen_unix(path: Path) -> socket.socket:
    """In the place of a socket that nobody listens on any more. Raises OSError."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.exists() and stat.S_ISSOCK(path.stat().st_mode) and not _answers(path):
            path.unlink()
        made.bind(str(path))
        made.listen(_BACKLOG)
    except OSError:
        made.close()
        raise
    return made


def _answers(path: Path) -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.connect(str(path))
        return True
    return False

"""Who may speak on the ports between machines: mutual TLS, every end with a certificate of the cluster's own CA.

A certificate is for a role, not for an address: machines come and go. `hocket fleet init` makes the files
(gateway/fleet/certificates.py); nothing but Python's ssl reads them.
"""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Collection
from pathlib import Path
from socket import socket

from schedcore.api.tls_stream import TlsStream

GATEWAY, NODE, OPERATOR = ROLES = ("gateway", "node", "operator")
CA_FILE = "ca.pem"
_DOMAIN = "hocket.internal"  # a role's name in a certificate; never looked up


class ClusterTlsError(Exception):
    """One line that says which file is wrong."""


def role_name(role: str) -> str:
    return f"{role}.{_DOMAIN}"


class ClusterTls:
    """The certificates of one process, in its role."""

    def __init__(self, folder: Path, role: str) -> None:
        """folder: ca.pem, and ROLE.pem with certificate and key. Raises ClusterTlsError."""
        self._listening = _context(ssl.PROTOCOL_TLS_SERVER, folder, role)
        self._dialing = _context(ssl.PROTOCOL_TLS_CLIENT, folder, role)

    def dialed(self, connection: socket, peer_role: str) -> TlsStream:
        """REQUIRES: connected. The handshake is still to be made; it fails if the peer is none of that role."""
        return TlsStream(connection, self._dialing, role_name(peer_role))

    def accepted(self, connection: socket) -> TlsStream:
        """The handshake is still to be made; then comes `check_role`."""
        return TlsStream(connection, self._listening)

    def wrap_dialed(self, connection: socket, peer_role: str) -> ssl.SSLSocket:
        """The same for a thread that waits; it takes the descriptor over."""
        return self._dialing.wrap_socket(
            connection, server_hostname=role_name(peer_role), do_handshake_on_connect=False
        )

    def wrap_accepted(self, connection: socket) -> ssl.SSLSocket:
        """Likewise."""
        return self._listening.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)


def check_role(connection: ssl.SSLSocket | TlsStream, roles: Collection[str]) -> str:
    """The peer's role. REQUIRES: the handshake is made. Raises ssl.SSLError if it is none of these."""
    certificate = connection.getpeercert() or {}
    alternatives = certificate.get("subjectAltName", ())
    names = {entry[1] for entry in alternatives if isinstance(entry, tuple)}
    role = next((role for role in roles if role_name(role) in names), None)
    if role is None:
        raise ssl.SSLError(f"the certificate is of {', '.join(map(str, sorted(names, key=str))) or 'nobody'}")
    return role


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _context(protocol: int, folder: Path, role: str) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    for path in (folder / CA_FILE, folder / f"{role}.pem"):
        if not path.is_file():
            raise ClusterTlsError(f"{path} is missing: `hocket fleet init {folder}` makes a cluster's certificates")
    try:
        context.load_verify_locations(folder / CA_FILE)
        context.load_cert_chain(folder / f"{role}.pem")
    except (OSError, ssl.SSLError) as error:
        raise ClusterTlsError(f"the certificates in {folder} cannot be used: {error}") from None
    return context

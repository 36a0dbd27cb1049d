"""`hocket fleet init`: a cluster's own authority, and one certificate per role. ed25519, PEM.

Made with the `cryptography` package (extra `[fleet]`), on the one machine where it is called: Python's standard library
signs nothing, and signatures are nothing to write at home. Serving needs none of it (schedcore/api/cluster_tls.py).
"""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import TYPE_CHECKING

from schedcore.api.cluster_tls import CA_FILE, ROLES, role_name

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.x509 import Certificate, CertificateBuilder, KeyUsage

CA_KEY_FILE = "ca.key"  # for more certificates later; kept off the nodes
_DAYS = 3650
_SKEW = datetime.timedelta(hours=1)  # that a node's clock may be behind


class CertificatesError(Exception):
    """One line that says why there are none."""


def make_certificates(folder: Path) -> list[Path]:
    """The files: the authority's certificate and key, and certificate with key of each role. Raises CertificatesError.

    Files that are there are not written over: a cluster's nodes would no longer know each other.
    """
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError:
        raise CertificatesError(
            "certificates need the package cryptography: pip install 'hocket-server[fleet]'"
        ) from None
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / name for name in (CA_FILE, CA_KEY_FILE, *(f"{role}.pem" for role in ROLES))]
    if there := [path for path in paths if path.exists()]:
        raise CertificatesError(f"{there[0]} exists; certificates of a cluster are made once")

    def pem(key: Ed25519PrivateKey) -> bytes:
        form = serialization.PrivateFormat.PKCS8
        return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())

    authority_key = Ed25519PrivateKey.generate()
    authority = _authority(authority_key)
    _write_private(folder / CA_KEY_FILE, pem(authority_key))
    (folder / CA_FILE).write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    for role in ROLES:
        key = Ed25519PrivateKey.generate()
        certificate = _of_role(role, key, authority, authority_key)
        _write_private(folder / f"{role}.pem", certificate.public_bytes(serialization.Encoding.PEM) + pem(key))
    return paths


def _authority(key: Ed25519PrivateKey) -> Certificate:
    from cryptography import x509

    name = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, "hocket cluster")])
    usage = _usage(is_authority=True)
    builder = _builder(name, name, key).add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    return builder.add_extension(usage, critical=True).sign(key, None)


def _of_role(
    role: str, key: Ed25519PrivateKey, authority: Certificate, authority_key: Ed25519PrivateKey
) -> Certificate:
    from cryptography import x509

    name = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, f"hocket {role}")])
    uses = [x509.oid.ExtendedKeyUsageOID.SERVER_AUTH, x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH]
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    return (
        _builder(name, authority.subject, key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(is_authority=False), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(role_name(role))]), critical=False)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(issuer, critical=False)
        .sign(authority_key, None)
    )


def _builder(subject: object, issuer: object, key: Ed25519PrivateKey) -> CertificateBuilder:
    from cryptography import x509

    assert isinstance(subject, x509.Name)
    assert isinstance(issuer, x509.Name)
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + datetime.timedelta(days=_DAYS))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*, is_authority: bool) -> KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        encipher_only=False,
        decipher_only=False,
    )


def _write_private(path: Path, content: bytes) -> None:
    """Only its owner may read it, from the first byte on."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)

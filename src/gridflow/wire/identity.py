"""The certificates of one job: who may talk to its coordinator.

A certificate authority is made for the job and forgotten with it. The coordinator's server shows
one certificate, every agent, and whoever feeds agents, another; each side checks the other's
(mutual TLS), so a stranger gets no further than the handshake. Keys travel inside the launcher's
own payload only: never in a log, on a command line or in the environment.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.x509.oid import ExtendedKeyUsageOID

if TYPE_CHECKING:
    from cryptography.x509 import ObjectIdentifier

#: The name on the server's certificate; agents look for it whatever address they connect to.
SERVER_NAME: Final = "gridflow-coordinator"
#: The name on the agents' certificate; those who feed them look for it.
AGENT_NAME: Final = "gridflow-agent"
_LIFETIME: Final = dt.timedelta(days=30)
#: Of what a shared secret makes: it is of no use once the secret isn't, however long that is.
_LONG: Final = dt.timedelta(days=3650)
#: How many points the curve P-256 has.
_ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


@dataclass(frozen=True)
class Identity:
    """A certificate with its key, and the authority to check the other side by (PEM)."""

    certificate: bytes
    key: bytes = field(repr=False)
    authority: bytes


def make_identities() -> tuple[Identity, Identity]:
    """Return the coordinator's and the agents' identity, signed by an authority made just now."""
    authority = _Authority()
    return (
        authority.issue(SERVER_NAME, ExtendedKeyUsageOID.SERVER_AUTH),
        authority.issue(
            AGENT_NAME, ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH
        ),
    )


def identity_of(secret: bytes) -> Identity:
    """Return an identity of the authority that a secret makes, the same wherever it is known."""
    derived = HKDF(hashes.SHA256(), 48, None, b"gridflow authority").derive(secret)
    number = int.from_bytes(derived, "big") % (_ORDER - 1) + 1
    authority = _Authority(ec.derive_private_key(number, ec.SECP256R1()), _LONG)
    return authority.issue(
        AGENT_NAME, ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH
    )


class _Authority:
    def __init__(
        self, key: ec.EllipticCurvePrivateKey | None = None, lifetime: dt.timedelta = _LIFETIME
    ) -> None:

        self._key = key or ec.generate_private_key(ec.SECP256R1())
        self._name, self._lifetime = _name("gridflow-job"), lifetime
        self.certificate = (
            _builder("gridflow-job", self._name, self._key.public_key(), lifetime)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, hashes.SHA256())
        )

    def issue(self, name: str, *usages: ObjectIdentifier) -> Identity:

        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.DNSName(name), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        certificate = (
            _builder(name, self._name, key.public_key(), self._lifetime)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        pem = serialization.Encoding.PEM
        private = key.private_bytes(
            pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return Identity(certificate.public_bytes(pem), private, self.certificate.public_bytes(pem))


def _name(common: str) -> x509.Name:

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common)])


def _builder(
    subject: str, issuer: x509.Name, public_key: Any, lifetime: dt.timedelta
) -> x509.CertificateBuilder:

    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))  # clocks of a cluster differ
        .not_valid_after(now + lifetime)
    )

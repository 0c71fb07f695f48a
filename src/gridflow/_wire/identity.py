"""The certificates of one job, which decide who may talk to its coordinator.

Each job has its own certificate authority, which is never stored. The coordinator's server presents
one certificate; agents, and those who feed them, present another. Each side checks the other's
(mutual TLS), so a stranger gets no further than the handshake. Keys travel only inside the
launcher's own payload: never in a log, on a command line or in the environment.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import secrets
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
from cryptography.x509.oid import ExtendedKeyUsageOID

from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from cryptography.x509 import ObjectIdentifier

#: The name on the server's certificate; agents check it, whatever address they connect to.
SERVER_NAME: Final = "gridflow-coordinator"
#: The name on the agents' certificate; those who feed them check it.
AGENT_NAME: Final = "gridflow-agent"
_LIFETIME: Final = dt.timedelta(days=30)
#: Lifetime of certificates from a shared secret: they are as good as the secret itself.
_LONG: Final = dt.timedelta(days=3650)
#: How many points the curve P-256 has.
_ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


#: Prefix of strong keys: random ones, and those derived at high cost.
_STRONG: Final = b"gridflow-key:"
_KEY_BYTES: Final = 32
#: Bytes of a secret that a user chose.
LEAST_SECRET: Final = 16
_LEAST_DIFFERENT: Final = 5
#: 32 MB and about a quarter of a second for each guess (OWASP's least for scrypt).
_COST: Final = {"n": 1 << 15, "r": 8, "p": 3}


@dataclass(frozen=True)
class Identity:
    """A certificate with its key, and the authority that verifies the other side (PEM)."""

    certificate: bytes
    key: bytes = field(repr=False)
    authority: bytes


def make_identities() -> tuple[Identity, Identity]:
    """Return the coordinator's and the agents' identity, signed by a new authority."""
    authority = _Authority()
    return (
        authority.issue(SERVER_NAME, ExtendedKeyUsageOID.SERVER_AUTH),
        authority.issue(
            AGENT_NAME, ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH
        ),
    )


def random_key() -> bytes:
    """Return a random key."""
    return _STRONG + secrets.token_bytes(_KEY_BYTES)


@lru_cache(maxsize=16)
def strong_key(secret: bytes, name: str) -> bytes:
    """Return the key derived from a user's secret; return a key of this module unchanged.

    A stranger sees a certificate that the key has signed, and can guess secrets offline, so each
    guess is made expensive. Every process of a cluster must derive the same key, so there is no
    salt.

    `name`: Its name in error messages.
    Raises `InvalidArgument`: It is too easy to guess.
    """
    if secret.startswith(_STRONG) and len(secret) == len(_STRONG) + _KEY_BYTES:
        return secret
    if len(secret) < LEAST_SECRET or len(set(secret)) < _LEAST_DIFFERENT:
        raise InvalidArgument(
            f"{name} is too easy to guess: it has {len(secret)} bytes, {len(set(secret))} of them "
            f"distinct; it needs at least {LEAST_SECRET}, {_LEAST_DIFFERENT} of them distinct. "
            "Create one with: python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )
    stretched = Scrypt(salt=b"gridflow shared secret", length=_KEY_BYTES, **_COST).derive(secret)
    return _STRONG + stretched


def identity_of(secret: bytes) -> Identity:
    """Return an identity whose authority is derived from a secret: the same in every process.

    The secret must be a strong one, see `strong_key`.
    """
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

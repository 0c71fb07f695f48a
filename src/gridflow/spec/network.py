"""Where the coordinator listens, and where its agents find it: two things."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

from gridflow.errors import InvalidArgument

_LAST_PORT = 65535


@dataclass(frozen=True)
class Network:
    """The coordinator's addresses in the driver.

    Attributes
    ----------
    host : str or None
        The address to bind; ``0.0.0.0`` binds all interfaces. None: the launcher knows it.
    advertise : str or None
        The name or address that the agents connect to, where it isn't the bound one (a container's
        host, a service of Kubernetes). None: the launcher knows it, else ``host``.
    ports : tuple of (int, int) or None
        The first and the last port that may be taken; None: any free one.
    """

    host: str | None = None
    advertise: str | None = None
    ports: tuple[int, int] | None = None

    @classmethod
    def parse(cls, host: Any, advertise: Any, port: Any) -> Self:
        """Return the addresses that a user gave.

        Raises
        ------
        InvalidArgument
            With what was given, and what is allowed.
        """
        for name, value in (("host", host), ("advertise", advertise)):
            if value is not None and not (isinstance(value, str) and value.strip()):
                raise InvalidArgument(f"{name} is a host's name or address; got {value!r}.")
        if host is not None and _is_wildcard(host) and advertise is None:
            raise InvalidArgument(
                f"host={host!r} is all interfaces, which no agent can connect to: say by "
                "advertise= which name or address they are to use."
            )
        if advertise is not None and _is_wildcard(advertise):
            raise InvalidArgument(f"advertise is one host's name or address; got {advertise!r}.")
        return cls(host, advertise, _range(port))

    def __str__(self) -> str:
        """Say where agents connect to, and what is bound where that differs."""
        bound = "" if self.advertise == self.host else f", bound to {self.host}"
        ports = f", ports {self.ports[0]} to {self.ports[1]}" if self.ports else ""
        return f"{self.advertise}{bound}{ports}"

    def or_else(self, host: str, advertise: str) -> Network:
        """Return the same with the launcher's addresses where the user gave none."""
        if self.host is not None:
            return replace(self, advertise=self.advertise or self.host)
        return replace(self, host=host, advertise=self.advertise or advertise)

    def address(self, port: int) -> str:
        """Return what agents connect to: ``host:port``."""
        return host_and_port(self.advertise or self.host or "", port)


def host_and_port(host: str, port: int) -> str:
    """Return ``host:port``, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _is_wildcard(host: str) -> bool:
    return host in {"0.0.0.0", "::"}  # noqa: S104 (that is what is looked for)


def _range(port: Any) -> tuple[int, int] | None:
    if port is None:
        return None
    first, last = port if isinstance(port, tuple) and len(port) == 2 else (port, port)  # noqa: PLR2004
    for each in (first, last):
        if isinstance(each, bool) or not isinstance(each, int) or not 1 <= each <= _LAST_PORT:
            raise InvalidArgument(
                f"port is a number from 1 to {_LAST_PORT}, or the first and last of a range "
                f"such as (40000, 40010); got {port!r}."
            )
    if first > last:
        raise InvalidArgument(f"port=({first}, {last}): the first is greater than the last.")
    return first, last

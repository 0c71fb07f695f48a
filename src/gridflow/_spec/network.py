"""Where the coordinator listens, and where its agents connect."""

from __future__ import annotations

import ipaddress
import re
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gridflow.errors import InvalidArgument, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

LAST_PORT: Final = 65535
NO_GRPC_PROXY: Final = "no_grpc_proxy"
_WRITTEN_RANGE: Final = re.compile(r"(\d+)(?:-(\d+))?")


@dataclass(frozen=True, kw_only=True)
class Network:
    """Where the coordinator in the driver listens, and where agents connect.

    Parameters
    ----------
    host : str, optional
        Address to bind; ``0.0.0.0`` binds all interfaces. Default: the address of Spark's driver
        (``spark.driver.bindAddress``, else ``spark.driver.host``).
    interface : str, optional
        A network interface of the driver, such as ``eth1``, whose address to bind, instead of
        `host`.
    advertise : str, optional
        Name or address at which executors reach the driver, if it differs from the bound one (a
        container's host, a Kubernetes service). Default: ``spark.driver.host``.
    port : int, (int, int) or str, optional
        The port, or the first and last of a range: ``(40000, 40100)`` or ``"40000-40100"``.
        Default: any free port.

    Raises
    ------
    InvalidArgument
        An argument is invalid; the message says what is allowed.
    """

    host: str | None = None
    interface: str | None = None
    advertise: str | None = None
    port: int | tuple[int, int] | str | None = None

    def __post_init__(self) -> None:
        for name, value in (("host", self.host), ("advertise", self.advertise)):
            if value is not None and not (isinstance(value, str) and value.strip()):
                raise InvalidArgument(f"{name} must be a host name or address; got {value!r}.")
        if self.interface is not None:
            if self.host is not None:
                raise InvalidArgument(
                    f"give either interface= or host=; got interface={self.interface!r} and "
                    f"host={self.host!r}."
                )
            address_of(self.interface)
        if self.host is not None and _is_wildcard(self.host) and self.advertise is None:
            raise InvalidArgument(
                f"host={self.host!r} means all interfaces, which isn't an address that agents can "
                "connect to. Give the name or address that they should use with advertise=."
            )
        if self.advertise is not None and _is_wildcard(self.advertise):
            raise InvalidArgument(
                f"advertise must be the name or address of one host; got {self.advertise!r}."
            )
        _range(self.port)

    @property
    def ports(self) -> tuple[int, int] | None:
        """The first and last allowed port; None: any free port."""
        return _range(self.port)

    def __str__(self) -> str:
        """Return where agents connect, and the bound address if it differs."""
        bound = "" if self.advertise == self.host else f", bound to {self.host}"
        ports = f", ports {self.ports[0]} to {self.ports[1]}" if self.ports else ""
        return f"{self.advertise}{bound}{ports}"

    def or_else(self, host: str, advertise: str) -> Network:
        """Return a copy with the launcher's addresses for those that the user didn't give."""
        own = self.host if self.interface is None else address_of(self.interface)
        advertise = self.advertise or own or advertise
        return Network(host=own or host, advertise=advertise, port=self.port)

    def address(self, port: int) -> str:
        """Return the ``host:port`` that agents connect to."""
        return host_and_port(self.advertise or self.host or "", port)


def address_of(interface: Any) -> str:
    """Return the address of a network interface of this host; IPv4 before IPv6.

    Raises `InvalidArgument`: There is no such interface, or it has no address.
    """
    import psutil

    usable = {
        name: found
        for name, addresses in psutil.net_if_addrs().items()
        if (found := [a for a in map(_address, (each.address for each in addresses)) if a])
    }
    if interface not in usable:
        there = ", ".join(f"{name} ({addresses[0]})" for name, addresses in usable.items())
        raise InvalidArgument(
            f"no network interface {interface!r} with an address on this host; available: {there}."
            f"{did_you_mean(str(interface), usable)}"
        )
    return str(min(usable[interface], key=lambda address: address.version))


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return an address that others can use, not a hardware or link-local one."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return address if address.version == 4 or not address.is_link_local else None  # noqa: PLR2004


def local_address(peer: str) -> str:
    """Return this host's address on the interface that leads to a peer (``host:port``).

    No packet is sent: connecting a datagram socket only looks up the route.
    """
    host, _, port = peer.rpartition(":")
    family, _, _, _, address = socket.getaddrinfo(host.strip("[]"), int(port))[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def host_and_port(host: str, port: int) -> str:
    """Return ``host:port``, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def past_proxies(environ: Mapping[str, str], addresses: Iterable[str]) -> dict[str, str]:
    """Return variables with which gRPC's channels to some ``host:port`` use no proxy.

    gRPC takes a proxy from ``grpc_proxy``, ``https_proxy`` and ``http_proxy``. It alone reads
    ``no_grpc_proxy``, instead of ``no_proxy`` whose ``*`` it doesn't understand. So everything else
    in the process, such as downloads, goes on using the proxy.
    """
    excepted = environ.get(NO_GRPC_PROXY, environ.get("no_proxy", "")).split(",")
    hosts = [address.rpartition(":")[0].strip("[]") for address in addresses]
    every = dict.fromkeys([*map(str.strip, excepted), *hosts])
    return {NO_GRPC_PROXY: ",".join(each for each in every if each)}


def _is_wildcard(host: str) -> bool:
    return host in {"0.0.0.0", "::"}  # noqa: S104 (that is what is looked for)


def _range(port: Any) -> tuple[int, int] | None:
    if port is None:
        return None
    if isinstance(port, str) and (written := _WRITTEN_RANGE.fullmatch(port)):
        port = int(written[1]), int(written[2] or written[1])
    first, last = port if isinstance(port, tuple) and len(port) == 2 else (port, port)  # noqa: PLR2004
    for each in (first, last):
        if isinstance(each, bool) or not isinstance(each, int) or not 1 <= each <= LAST_PORT:
            raise InvalidArgument(
                f"port must be a number from 1 to {LAST_PORT}, or the first and last of a range "
                f"such as (40000, 40010) or '40000-40010'; got {port!r}."
            )
    if first > last:
        raise InvalidArgument(f"port=({first}, {last}): the first port is greater than the last.")
    return first, last

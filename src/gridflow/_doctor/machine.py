"""Checks of this machine alone: Java, its network, and what every host is asked."""

from __future__ import annotations

import importlib.metadata
import os
import re
import secrets
import shutil
import socket
import subprocess
from multiprocessing import AuthenticationError
from typing import TYPE_CHECKING, Final

import psutil

from gridflow._doctor import checks
from gridflow._doctor.findings import Diagnosis
from gridflow._doctor.host import look, within
from gridflow._wire.mutual_tls import Door, knock, listen

if TYPE_CHECKING:
    from gridflow._doctor.host import Host

#: "Spark runs on Java 17/21", says the overview of Spark 4.0 and 4.1, which is compiled for 17.
_LEAST_JAVA: Final = 17
_LAST_JAVA: Final = 21
_JAVA_SECONDS: Final = 30.0
_NAME_SECONDS: Final = 10.0
_LOOPBACK: Final = "127.0.0.1"
_MEND_JAVA: Final = "install a JDK or JRE 17 or 21, and set JAVA_HOME to it"


def check_machine(backend: str, spool: str | None = None) -> list[Diagnosis]:
    here = look(spool=spool)
    return [
        java(),
        *checks.each_host({"this machine": here}),
        *checks.backend("this machine", here, backend),
        loopback(),
        name(here),
    ]


def java() -> Diagnosis:
    """Return which Java Spark would use, and whether it can."""
    try:
        spark = f"pyspark {importlib.metadata.version('pyspark')}"
    except importlib.metadata.PackageNotFoundError:
        return Diagnosis("java", "ok", "not needed: pyspark isn't installed")
    home = os.environ.get("JAVA_HOME")
    path = f"{home}/bin/java" if home else shutil.which("java")
    if path is None:
        return Diagnosis("java", "error", f"{spark} needs Java, and there is none", _MEND_JAVA)
    try:
        said = subprocess.run(
            [path, "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_JAVA_SECONDS,
            check=True,
        ).stderr
    except (OSError, subprocess.SubprocessError) as error:
        return Diagnosis("java", "error", f"{path} doesn't work: {error}", _MEND_JAVA)
    found = re.search(r'version "(?:1\.)?(\d+)[^"]*"', said)  # 1.8.0 is Java 8
    if found is None:
        return Diagnosis("java", "warning", f"{path} doesn't tell its version", _MEND_JAVA)
    version = int(found[1])
    text = f"Java {version} ({path}) for {spark}"
    if version < _LEAST_JAVA:
        return Diagnosis("java", "error", f"{text}, which needs {_LEAST_JAVA}", _MEND_JAVA)
    if version > _LAST_JAVA:
        return Diagnosis(
            "java", "warning", f"{text}, which is documented for 17 and 21", _MEND_JAVA
        )
    return Diagnosis("java", "ok", text)


def loopback() -> Diagnosis:
    """Return whether processes of this machine can connect to each other."""
    key = secrets.token_bytes(32)
    mend = "let processes connect on the loopback interface (ip link set lo up; firewall rules)"
    try:
        listener = listen(_LOOPBACK)
        address = listener.getsockname()
        door = Door(listener, key, lambda there: there.send_bytes(there.recv_bytes(16)))
        try:
            there = knock(address, key)
            try:
                there.send_bytes(b"doctor")
                if not there.poll(_NAME_SECONDS) or there.recv_bytes(16) != b"doctor":
                    return Diagnosis("loopback", "error", f"{_LOOPBACK} doesn't answer", mend)
            finally:
                there.close()
        finally:
            door.close()
    except (OSError, EOFError, AuthenticationError) as error:
        return Diagnosis("loopback", "error", f"{_LOOPBACK}: {error}", mend)
    return Diagnosis("loopback", "ok", f"processes connect to each other on {_LOOPBACK}")


def name(here: Host) -> Diagnosis:
    """Return which address this machine's name has: that which Spark's driver gives executors."""
    own = {
        each.address: interface
        for interface, addresses in psutil.net_if_addrs().items()
        for each in addresses
        if each.family in {socket.AF_INET, socket.AF_INET6}
    }
    mend = "set spark.driver.host to an address that executors can connect to, or mend /etc/hosts"
    try:
        address = within(_NAME_SECONDS, lambda: socket.gethostbyname(here.name))
    except OSError as error:
        return Diagnosis("address", "warning", f"{here.name} has no address: {error}", mend)
    interfaces = ", ".join(
        f"{each} {address}" for address, each in own.items() if "%" not in address
    )
    if address not in own and not address.startswith("127."):
        found = f"{here.name} is {address}, which no interface has ({interfaces})"
        return Diagnosis("address", "warning", found, mend)
    return Diagnosis("address", "ok", f"{here.name} is {address}; interfaces: {interfaces}")

"""Hosts of their own on this machine: network namespaces, joined by a switch. They need root."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

#: Starts the first agent on one host, the second on the other.
PYTHON = """#!/bin/sh
if mkdir {turn} 2>/dev/null; then host={first}; else host={second}; fi
exec ip netns exec $host {python} "$@"
"""
#: Forwards connections, as a container's host or a router does.
GATE = """
import asyncio

async def pump(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()

async def forward(reader, writer):
    there, back = await asyncio.open_connection("{to}", {port})
    await asyncio.gather(pump(reader, back), pump(there, writer))

async def main():
    async with await asyncio.start_server(forward, "{address}", {port}) as server:
        print("open", flush=True)
        await server.serve_forever()

asyncio.run(main())
"""


def ip(*words):
    subprocess.run(["ip", *map(str, words)], check=True, capture_output=True, text=True)


class Hosts:
    """A driver and two others, each a namespace with an address on the switch.

    The driver has another interface, which leads nowhere.
    """

    def __init__(self, stack):
        mark = f"gf{os.getpid() % 100000}"
        self.driver, self.first, self.second = (f"{mark}{name}" for name in "abc")
        self.switch, self._stack = f"{mark}s", stack
        for name in (self.switch, self.driver, self.first, self.second):
            ip("netns", "add", name)
            stack.callback(ip, "netns", "del", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("-n", self.switch, "link", "add", "switch", "type", "bridge")
        ip("-n", self.switch, "link", "set", "switch", "up")
        for number, name in enumerate((self.driver, self.first, self.second), start=1):
            ip("-n", name, "link", "add", "cluster", "type", "veth", "peer", f"port{number}")
            ip("-n", name, "link", "set", f"port{number}", "netns", self.switch)
            ip("-n", self.switch, "link", "set", f"port{number}", "master", "switch", "up")
            ip("-n", name, "link", "set", "cluster", "up")
            ip("-n", name, "address", "add", f"10.77.1.{number}/24", "dev", "cluster")
            # Without looking for others of the same address, which takes two seconds.
            ip("-n", name, "address", "add", f"fd77::{number}/64", "dev", "cluster", "nodad")
            ip("-n", name, "link", "add", "office", "type", "veth", "peer", "nowhere")
            ip("-n", name, "address", "add", f"192.168.77.{number}/24", "dev", "office")
            ip("-n", name, "link", "set", "office", "up")

    def resolve(self, host, lines):
        """Let names mean on one host what the lines of its own ``/etc/hosts`` say."""
        folder = Path("/etc/netns") / host
        folder.mkdir(parents=True)
        self._stack.callback(shutil.rmtree, folder)
        (folder / "hosts").write_text("127.0.0.1 localhost\n::1 localhost\n" + lines)

    @contextlib.contextmanager
    def gate(self, address, to, port):
        """Forward a port of an address between the hosts to one of them."""
        ip("-n", self.switch, "address", "add", f"{address}/24", "dev", "switch")
        code = GATE.format(address=address, to=to, port=port)
        words = ["ip", "netns", "exec", self.switch, sys.executable, "-c", code]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as forwarder:
            try:
                assert forwarder.stdout.readline() == "open\n"
                yield
            finally:
                forwarder.kill()

    def python(self, folder):
        """Return a Python that runs the first time on one host, and then on the other."""
        path = folder / "python"
        turn, names = folder / "turn", {"first": self.first, "second": self.second}
        path.write_text(PYTHON.format(turn=turn, python=sys.executable, **names))
        path.chmod(0o755)
        return path

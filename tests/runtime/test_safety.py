"""Strangers at the coordinator's door: they get nothing, and they can't stop it."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import socket
import ssl
import subprocess
import sys
from types import SimpleNamespace

import pytest
from pyarrow import flight

from gridflow._wire import arrow_flight
from gridflow._wire.client import CoordinatorClient
from gridflow._wire.identity import Identity, make_identities
from gridflow._wire.server import CoordinatorServer, inside
from suite.waiting import patience, wait_for


class Secretive:
    """A handler that notes who got through."""

    def __init__(self, folder):
        self.calls, self.folder = [], folder

    def register(self, message):
        self.calls.append(message)
        return {"accepted": True}

    sync = register

    def receive_file(self, header):
        self.calls.append(header)
        return self.folder / "received"

    def file_received(self, header, path):
        self.calls.append(path)

    def find_file(self, header):
        self.calls.append(header)
        return self.folder / "secret"


@pytest.fixture
def door(tmp_path, no_leaks):
    """Start a server; give it, its port and an agent's identity; check at the end that it lives."""
    (tmp_path / "secret").write_bytes(b"the function")
    ours, agents = make_identities()
    handler = Secretive(tmp_path)
    server = CoordinatorServer("127.0.0.1", ours, handler)
    yield server, handler, agents
    client = CoordinatorClient(f"127.0.0.1:{server.port}", agents)
    assert client.call("sync", {"still": "there"}, 10) == {"accepted": True}
    assert handler.calls == [{"still": "there"}], "a stranger got through"
    client.close()
    server.shutdown()


def strangers(port, **credentials):
    """Try everything that the server offers; return what was refused."""
    refused = []
    options = flight.FlightCallOptions(timeout=2)
    client = flight.connect(f"grpc+tls://127.0.0.1:{port}", **credentials)
    attempts = {
        "action": lambda: list(client.do_action(flight.Action("register", b"{}"), options)),
        "get": lambda: client.do_get(flight.Ticket(json.dumps({"kind": "function"})), options),
        "list": lambda: list(client.list_flights(options=options)),
        "actions": lambda: list(client.list_actions(options)),
    }
    for name, attempt in attempts.items():
        with contextlib.suppress(flight.FlightUnavailableError, flight.FlightTimedOutError):
            attempt()
            continue
        refused.append(name)
    client.close()
    assert refused == list(attempts)


def test_a_peer_without_a_certificate_gets_nothing(door):
    server, _, agents = door
    strangers(
        server.port, tls_root_certs=agents.authority, override_hostname="gridflow-coordinator"
    )


def test_a_peer_that_trusts_anybody_gets_nothing(door):
    server, _, _ = door
    strangers(server.port, disable_server_verification=True)


def test_a_certificate_of_another_job_gets_nothing(door):
    server, _, agents = door
    _, others = make_identities()
    strangers(
        server.port,
        tls_root_certs=agents.authority,
        cert_chain=others.certificate,
        private_key=others.key,
        override_hostname="gridflow-coordinator",
    )


def test_an_agent_doesnt_talk_to_a_server_of_another_job(door):
    server, _, agents = door
    _, others = make_identities()
    mixed = Identity(agents.certificate, agents.key, others.authority)
    client = CoordinatorClient(f"127.0.0.1:{server.port}", mixed)
    with pytest.raises(flight.FlightUnavailableError):
        client.call("sync", {}, 2)
    client.close()


def test_an_agents_certificate_is_no_servers(door, tmp_path):
    _, _, agents = door
    imposter = CoordinatorServer("127.0.0.1", agents, Secretive(tmp_path))
    client = CoordinatorClient(f"127.0.0.1:{imposter.port}", agents)
    with pytest.raises(flight.FlightUnavailableError):
        client.call("sync", {}, 2)
    client.close()
    imposter.shutdown()


@pytest.mark.parametrize(
    "words",
    [b"GET / HTTP/1.0\r\n\r\n", os.urandom(4096), b"\x16\x03\x01" * 99],
    ids=["another protocol", "noise", "half a handshake"],
)
def test_garbage_is_dropped(door, words):
    server, _, _ = door
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", server.port)) as stranger:
            with contextlib.suppress(OSError):
                stranger.sendall(words)
                stranger.settimeout(0.5)
                answer = stranger.recv(4096)
                assert b"function" not in answer


def test_plain_text_grpc_is_refused(door):
    server, _, _ = door
    client = flight.connect(f"grpc+tcp://127.0.0.1:{server.port}")
    with pytest.raises(flight.FlightError):
        list(
            client.do_action(flight.Action("register", b"{}"), flight.FlightCallOptions(timeout=2))
        )
    client.close()


def test_a_thousand_idle_connections_dont_keep_an_agent_out(door):
    server, _, agents = door
    with contextlib.ExitStack() as stack:
        for _ in range(1000):
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
        client = CoordinatorClient(f"127.0.0.1:{server.port}", agents)
        assert client.call("sync", {"still": "there"}, 20) == {"accepted": True}
        client.close()
    door[1].calls.clear()


def test_who_shows_no_certificate_is_hung_up_on_and_who_has_called_stays(door, monkeypatch):
    monkeypatch.setattr(arrow_flight, "_PATIENCE", 0.3)
    monkeypatch.setattr(arrow_flight, "_LOOK_SECONDS", 0.1)
    server, handler, agents = door
    client = CoordinatorClient(f"127.0.0.1:{server.port}", agents)
    assert client.call("sync", {"still": "there"}, 10) == {"accepted": True}
    (peer,) = server._doorkeeper._called
    with socket.create_connection(("127.0.0.1", server.port), 20) as stranger:
        stranger.settimeout(20)
        with contextlib.suppress(ConnectionResetError):
            while stranger.recv(100):  # what gRPC says before it knows anybody
                pass
    assert client.call("sync", {"still": "there"}, 10) == {"accepted": True}
    assert list(server._doorkeeper._called) == [peer]  # by the same connection
    client.close()
    wait_for(lambda: not server._doorkeeper._called, "the end of the call")
    handler.calls.clear()


@pytest.mark.parametrize("count", [40, 1])
def test_too_many_strangers_go_those_of_the_largest_crowd_first(count):
    crowd = [("10.0.0.1", port) for port in range(100, 100 + count)]
    keeper = SimpleNamespace(_ages={peer: float(-peer[1]) for peer in crowd})
    others = [(f"10.0.1.{n}", 1) for n in range(5)]
    keeper._ages.update(dict.fromkeys(others, 1000.0))
    leaving = list(arrow_flight.Doorkeeper._excess(keeper, [*others, *crowd], 10))
    assert leaving == crowd[: max(count - 5, 0)]


#: A process with few descriptors and a coordinator's server; it says whether it can open a file.
HOST = """
import pickle, resource, sys
from gridflow._wire.server import CoordinatorServer

class Handler:
    def sync(self, message):
        return {"accepted": True}
    register = sync

identity = pickle.load(sys.stdin.buffer)
server = CoordinatorServer("127.0.0.1", identity, Handler())
resource.setrlimit(resource.RLIMIT_NOFILE, (120, 120))
print(server.port, flush=True)
for line in sys.stdin.buffer:
    try:
        open("/etc/hosts").close()
        print("open", flush=True)
    except OSError as error:
        print(error.strerror, flush=True)
server.shutdown()
"""


def test_strangers_dont_use_up_the_descriptors_of_the_drivers_process():
    ours, agents = make_identities()
    process = subprocess.Popen(
        [sys.executable, "-c", HOST],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # gRPC's own lines
    )
    process.stdin.write(pickle.dumps(ours))
    process.stdin.flush()
    port = int(process.stdout.readline())

    def can_open():
        process.stdin.write(b"x\n")
        process.stdin.flush()
        return process.stdout.readline().strip() == b"open"

    with contextlib.ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), 5))
        wait_for(can_open, "a descriptor")
        client = CoordinatorClient(f"127.0.0.1:{port}", agents)
        assert client.call("sync", {}, patience()) == {"accepted": True}
        client.close()
    process.stdin.close()
    with process.stdout:
        assert process.wait(patience()) == 0


def test_the_server_listens_on_its_own_interface_only(door):
    import psutil

    server, _, _ = door
    bound = [
        connection.laddr.ip
        for connection in psutil.Process().net_connections("inet")
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == server.port
    ]
    assert [address.removeprefix("::ffff:") for address in bound] == ["127.0.0.1"]


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../b", ""])
def test_a_files_name_cant_lead_out_of_its_folder(tmp_path, name):
    with pytest.raises(flight.FlightServerError):
        inside(tmp_path, name)


def test_the_server_gives_out_and_writes_no_file_that_another_user_has_put_there(door, tmp_path):
    server, handler, agents = door
    client = CoordinatorClient(f"127.0.0.1:{server.port}", agents)
    got, precious = tmp_path / "got", tmp_path / "precious"
    client.download({"kind": "function"}, got)
    assert got.read_bytes() == b"the function"
    precious.write_text("precious")
    (tmp_path / "received").symlink_to(precious)
    with pytest.raises(flight.FlightError, match="symbolic link"):
        client.upload(got, {"kind": "checkpoint"})
    (tmp_path / "secret").rename(tmp_path / "moved")
    (tmp_path / "secret").symlink_to(tmp_path / "moved")
    with pytest.raises(flight.FlightError, match="symbolic link"):
        client.download({"kind": "checkpoint"}, got)
    (tmp_path / "secret").unlink()
    (tmp_path / "secret").write_bytes(b"planted")
    if os.geteuid() == 0:
        os.chown(tmp_path / "secret", 54_321, 54_321)
        with pytest.raises(flight.FlightError, match="belongs to 54321"):
            client.download({"kind": "function"}, got)
    assert precious.read_text() == "precious"
    client.close()
    handler.calls.clear()


@pytest.mark.slow
def test_keys_show_up_neither_in_text_nor_on_command_lines_nor_in_environments():
    import psutil

    from gridflow import LocalLauncher, TensorflowDistributor

    ours, _ = make_identities()
    assert "PRIVATE" not in repr(ours)

    def look():
        """Look while all processes of a job are there: this is one of them."""
        agents, found = 0, []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                words = " ".join(process.cmdline()) + str(process.environ())
                agents += "gridflow._agent" in words
                if "BEGIN PRIVATE" in words or "BEGIN EC" in words:
                    found.append(process.pid)
        return agents > 0, found

    result = TensorflowDistributor(1, launcher=LocalLauncher(), logs="none", progress=False).run(
        look
    )
    assert result.value == (True, [])
    for path in result.job_dir.rglob("*"):
        assert path.is_dir() or b"PRIVATE KEY" not in path.read_bytes()


def test_the_tls_handshake_asks_for_a_certificate(door):
    server, _, agents = door
    context = ssl.create_default_context(cadata=agents.authority.decode())
    context.check_hostname = False
    context.set_alpn_protocols(["h2"])
    with socket.create_connection(("127.0.0.1", server.port)) as raw:
        raw.settimeout(5)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            with context.wrap_socket(raw) as wrapped:
                wrapped.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
                while wrapped.recv(4096):
                    pass
                raise ConnectionError("it hung up")

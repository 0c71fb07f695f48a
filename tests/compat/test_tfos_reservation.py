"""The reservation server of `gridflow.compat.tfos`: nodes that register, and who may."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
from multiprocessing import AuthenticationError

import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature

from gridflow import (
    GridflowError,
    InvalidArgument,
    NetworkError,
    StartTimeout,
)
from gridflow._wire import identity
from gridflow.compat.tfos import (
    reservation,
    util,
)
from suite.waiting import wait_for


def test_nodes_register_and_wait_for_each_other(no_leaks):
    server = reservation.Server(3)
    address = server.start()
    try:
        clients = [reservation.Client(address) for _ in range(3)]
        assert [clients[n].register({"node": n, "key": b"\x00"}) for n in range(3)] == ["OK"] * 3
        assert len(clients[0].await_reservations()) == 3
        assert server.await_reservations()[0]["key"] == b"\x00"
        clients[0].request_stop()
        assert server.done
        for client in clients:
            client.close()
    finally:
        server.stop()


def test_waiting_for_nodes_that_do_not_come_ends_in_words(no_leaks):
    with pytest.raises(InvalidArgument, match="count must be at least 1"):
        reservation.Server(0)
    server = reservation.Server(2, host="127.0.0.1")
    server.start()
    try:
        with pytest.raises(StartTimeout, match="2 of 2 nodes did not register"):
            server.await_reservations(timeout=0.2)
        with pytest.raises(GridflowError, match="what went wrong"):
            server.await_reservations(status={"error": "what went wrong"})
    finally:
        server.stop()


def test_another_process_of_the_same_user_finds_the_key_and_others_need_it(tmp_path):
    server = reservation.Server(1, host="127.0.0.1")
    host, port = server.start()
    code = (
        "import sys; from gridflow.compat.tfos import reservation\n"
        "client = reservation.Client((sys.argv[1], int(sys.argv[2]))); client.request_stop()"
    )
    command = [sys.executable, "-c", code, host, str(port)]
    try:
        lost = subprocess.run(
            command,
            check=False,
            env={**os.environ, "TMPDIR": str(tmp_path)},
            capture_output=True,
            text=True,
        )
        assert "TFOS_SERVER_KEY" in lost.stderr
        assert not server.done
        subprocess.run(command, check=True, capture_output=True)
        assert server.done
    finally:
        server.stop()


@pytest.mark.parametrize("way", ["its end", "SIGKILL"])
def test_no_key_stays_when_the_process_of_a_server_has_ended(tmp_path, way):
    code = (
        "import sys; from gridflow.compat.tfos import reservation\n"
        "server = reservation.Server(1, host='127.0.0.1'); print(*server.start(), flush=True)\n"
        "sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        text=True,
    )
    with process:
        process.stdout.readline()
        (key,) = tmp_path.glob("gridflow-tfos-*/key")
        assert [p.stat().st_mode & 0o777 for p in (key.parent, key)] == [0o700, 0o644]
        if way == "SIGKILL":
            process.kill()
    wait_for(lambda: not list(tmp_path.iterdir()), "the end of the key")


@pytest.mark.skipif(os.geteuid() != 0, reason="plays another user")
def test_a_key_that_another_user_has_put_there_is_not_taken(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    server = reservation.Server(1, host="127.0.0.1")
    _, port = server.start()
    try:
        for owner, name in ((54_321, "planted"), (54_321, "zzz")):
            folder = tmp_path / f"gridflow-tfos-0-{port}-{name}"
            folder.mkdir(0o755)
            (folder / "key").write_bytes(b"known")
            os.chown(folder, owner, owner)
        del reservation._keys[port]  # as in another process
        assert reservation._find_key(port) == server.key
    finally:
        server.stop()


SHARED = "a secret that both of them know"


def test_both_sides_share_a_secret_by_a_variable_or_an_argument(monkeypatch, no_leaks):
    monkeypatch.setenv("TFOS_SERVER_KEY", SHARED)
    server = reservation.Server(1, host="127.0.0.1")
    address = server.start()
    monkeypatch.setattr(reservation, "_keys", {})
    try:
        for key in (None, SHARED.encode(), server.key):
            reservation.Client(address, key).close()
        with pytest.raises(AuthenticationError):
            reservation.Client(address, b"another secret of theirs")
    finally:
        server.stop()


@pytest.mark.parametrize("secret", ["hunter2", "fifteen letters", "a" * 64, "abababababababab"])
def test_a_secret_that_is_easy_to_guess_is_refused(secret, monkeypatch):
    with pytest.raises(InvalidArgument, match="key= is too easy to guess"):
        reservation.Server(1, key=secret.encode())
    with pytest.raises(InvalidArgument, match="key= is too easy to guess"):
        reservation.Client(("127.0.0.1", 1), secret.encode())
    monkeypatch.setenv("TFOS_SERVER_KEY", secret)
    with pytest.raises(
        InvalidArgument, match="TFOS_SERVER_KEY is too easy.*token_urlsafe"
    ) as found:
        reservation.Server(1)
    assert secret not in str(found.value)


def certificate_shown(address):
    """Return the certificate that a stranger is shown."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(address, 5) as plain, context.wrap_socket(plain) as there:
        return x509.load_der_x509_certificate(there.getpeercert(binary_form=True))


def fits(certificate, secret):
    """Tell whether a guess is right, by the certificate alone."""
    authority = x509.load_pem_x509_certificate(identity.identity_of(secret).authority)
    try:
        certificate.verify_directly_issued_by(authority)
    except InvalidSignature:
        return False
    return True


def test_a_guess_of_a_shared_secret_costs_what_scrypt_costs(monkeypatch):
    monkeypatch.setenv("TFOS_SERVER_KEY", SHARED)
    server = reservation.Server(1, host="127.0.0.1")
    shown = certificate_shown(server.start())
    server.stop()
    assert not fits(shown, SHARED.encode())
    assert fits(shown, server.key)
    n, r, p = (identity._COST[name] for name in "nrp")
    assert 128 * n * r >= 32 << 20
    assert p >= 3


def test_a_random_key_is_used_as_it_is(monkeypatch):
    def slow(*_, **__):
        raise AssertionError("a random key was stretched")

    monkeypatch.setattr(identity, "Scrypt", slow)
    server = reservation.Server(1, host="127.0.0.1")
    address = server.start()
    try:
        reservation.Client(address, server.key).close()
    finally:
        server.stop()
    assert reservation.Server(1).key != server.key


def test_where_the_server_listens_is_said_by_variables(monkeypatch):
    server = reservation.Server(1)
    assert server.get_server_ip() == util.get_ip_address()
    assert server.get_server_ports() == [0]
    monkeypatch.setenv("TFOS_SERVER_HOST", "my_host")
    assert server.get_server_ip() == "my_host"
    monkeypatch.setenv("TFOS_SERVER_PORT", "9997-9999")
    assert server.get_server_ports() == [9997, 9998, 9999]
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        monkeypatch.setenv("TFOS_SERVER_PORT", str(taken.getsockname()[1]))
        with pytest.raises(NetworkError):
            server.start_listening_socket()
    monkeypatch.setenv("TFOS_SERVER_PORT", "9997-")
    with pytest.raises(InvalidArgument, match="TFOS_SERVER_PORT"):
        server.get_server_ports()

"""Doors: who has the key gets in, whatever strangers do and whatever the system runs out of."""

from __future__ import annotations

import contextlib
import gc
import select
import socket
import subprocess
import sys
import threading
import time
from multiprocessing import AuthenticationError

import pytest

from gridflow._wire import acceptor as acceptors
from gridflow._wire import mutual_tls
from gridflow._wire.acceptor import Acceptor, source_of
from suite.waiting import patience, wait_for

KEY = b"k" * 32
#: A process with an open door, which answers each message with its length, and does what it is
#: told by its standard input meanwhile.
HOST = """
import os, resource, sys, threading
from gridflow._wire import mutual_tls

def serve(connection):
    while True:
        message = connection.recv_bytes()
        if message == b"die":
            raise RecursionError("what a message made of its reader")
        connection.send_bytes(str(len(message)).encode())

def say(words):
    print(words, flush=True)

listener = mutual_tls.listen("127.0.0.1")
opened = mutual_tls.Door(listener, b"k" * 32, serve)
files = []
say(listener.getsockname()[1])
for line in sys.stdin:
    match line.split():
        case ["descriptors", count]:
            resource.setrlimit(resource.RLIMIT_NOFILE, (int(count), int(count)))
        case ["exhaust"]:
            try:
                while True:
                    files.append(os.open("/", os.O_RDONLY))
            except OSError:
                pass
        case ["no_threads"]:
            # A thread's stack is memory that there isn't.
            threading.stack_size(64 << 30)
            used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), resource.RLIM_INFINITY))
        case ["threads"]:
            threading.stack_size(0)
            free = resource.RLIM_INFINITY
            resource.setrlimit(resource.RLIMIT_AS, (free, free))
        case ["free"]:
            while files:
                os.close(files.pop())
        case ["count"]:
            say(threading.active_count())
            continue
    say("done")
"""


@pytest.fixture
def host():
    """Start a process with a door; return a function that tells it something, and its address."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOST], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    address = ("127.0.0.1", int(process.stdout.readline()))

    def tell(words):
        process.stdin.write(words + "\n")
        process.stdin.flush()
        return process.stdout.readline().strip()

    yield tell, address
    with process.stdin, process.stdout:
        process.stdin.close()
        process.wait(patience())


def is_answered(address):
    """Ask at a door as one who has the key."""
    connection = mutual_tls.knock(address, KEY)
    with contextlib.closing(connection):
        connection.send_bytes(b"hello")
        return connection.poll(patience()) and connection.recv_bytes() == b"5"


def test_strangers_use_up_neither_descriptors_nor_threads(host):
    tell, address = host
    tell("descriptors 100")
    threads = int(tell("count"))
    with contextlib.ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(socket.create_connection(address, 5))
        assert is_answered(address)
        assert int(tell("count")) <= threads + 2  # the one that was answered, and one that logs
    assert is_answered(address)


def test_a_door_outlives_a_lack_of_descriptors(host):
    tell, address = host
    tell("descriptors 100")
    assert is_answered(address)
    tell("exhaust")
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(socket.create_connection(address, 5))
        tell("free")
        assert is_answered(address)


def test_a_door_outlives_a_lack_of_threads(host):
    tell, address = host
    assert is_answered(address)
    tell("no_threads")
    for _ in range(3):
        connection = mutual_tls.knock(address, KEY)  # it has the key; there is no thread for it
        with contextlib.closing(connection), pytest.raises((EOFError, OSError)):
            connection.recv_bytes()
    tell("threads")
    assert is_answered(address)


def test_a_message_that_its_reader_cant_stand_ends_its_connection_alone(host):
    _, address = host
    connection = mutual_tls.knock(address, KEY)
    connection.send_bytes(b"die")
    with contextlib.closing(connection), pytest.raises((EOFError, OSError)):
        connection.recv_bytes()
    assert is_answered(address)


def hello(steps):
    """Hear connections out until they have said ``hello``; note who has."""

    def meet(connection):
        with connection:
            heard = b""
            while not heard.endswith(b"hello"):
                yield select.POLLIN
                heard += connection.recv(100) or b"(the end)hello"
            steps.append(heard)

    return meet


@pytest.fixture
def opened(request):
    """Open a port with `Acceptor`; return its address, and what has been heard there."""
    heard = []
    listener = mutual_tls.listen("127.0.0.1")
    address = listener.getsockname()
    acceptor = Acceptor(listener, hello(heard), "acceptor", getattr(request, "param", 20.0))
    yield address, heard, acceptor
    acceptor.close()


@pytest.mark.parametrize("opened", [0.5], indirect=True)
def test_a_visitor_that_sends_slowly_is_sent_away_in_time(opened, no_leaks):
    address, heard, _ = opened
    began = time.monotonic()
    with socket.create_connection(address, 5) as slow, pytest.raises(OSError, match=r"reset|pipe"):
        wait_for(lambda: slow.sendall(b"h"), "the end of the connection")
    assert time.monotonic() - began > 0.4
    assert heard == []


def test_a_crowd_of_one_source_doesnt_push_out_another(opened, no_leaks):
    address, heard, acceptor = opened
    with contextlib.ExitStack() as stack:
        other = stack.enter_context(socket.create_connection(address, 5, ("127.0.0.2", 0)))
        other.sendall(b"hel")
        for _ in range(acceptor._most + 20):
            stack.enter_context(socket.create_connection(address, patience()))
        other.sendall(b"lo")
        wait_for(lambda: heard == [b"hello"], "one greeting", seen=lambda: heard)
    assert len(acceptor._visitors) <= acceptor._most


def test_of_one_source_those_who_say_nothing_go_first(opened, no_leaks):
    address, heard, acceptor = opened
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(socket.create_connection(address, 5))
        first.sendall(b"hel")
        wait_for(lambda: any(v.has_spoken for v in acceptor._visitors.values()), "its first words")
        for _ in range(acceptor._most + 20):
            stack.enter_context(socket.create_connection(address, patience()))
        first.sendall(b"lo")
        wait_for(lambda: heard == [b"hello"], "one greeting", seen=lambda: heard)


def test_a_log_that_stands_still_holds_up_nobody(opened, monkeypatch, no_leaks):
    address, heard, mine = opened
    goes_on = threading.Event()
    monkeypatch.setattr(acceptors._log, "warning", lambda *_: goes_on.wait(patience()))
    monkeypatch.setattr(mine, "_meet", lambda connection: broken(connection, mine))
    original = hello(heard)

    def broken(connection, mine):
        mine._meet = original
        connection.close()
        raise RecursionError
        yield

    socket.create_connection(address, 5).close()
    with socket.create_connection(address, 5) as next_one:
        next_one.sendall(b"hello")
        wait_for(lambda: heard == [b"hello"], "one greeting", seen=lambda: heard)
    goes_on.set()


@pytest.mark.parametrize(
    ("one", "other", "are_one"),
    [
        ("10.0.0.1", "10.0.0.2", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("2001:db8::1", "2001:db8::2:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::1", True),
    ],
)
def test_sources_are_told_apart_by_what_one_host_may_have(one, other, are_one):
    assert (source_of(one) == source_of(other)) == are_one


def test_somebody_elses_key_is_told_from_a_door_that_hangs_up(no_leaks):
    listener = mutual_tls.listen("127.0.0.1")
    address = listener.getsockname()
    opened = mutual_tls.Door(listener, KEY, lambda _: None)
    with pytest.raises(AuthenticationError):
        mutual_tls.knock(address, b"another key")
    opened.close()
    with mutual_tls.listen("127.0.0.1") as rude:
        acceptor = Acceptor(rude, lambda connection: closed(connection), "rude", 1.0)
        with pytest.raises(ConnectionResetError, match="closed the connection"):
            mutual_tls.knock(rude.getsockname(), KEY)
        acceptor.close()


def closed(connection):
    connection.close()
    return iter(())


def test_a_port_that_is_taken_is_free_again_once_its_holder_is_gone(no_leaks):
    """Not only once the garbage collector has run: the error held the frames of all callers."""

    class Holder:
        def __init__(self):
            self.listener = mutual_tls.listen("127.0.0.1")
            self.port = self.listener.getsockname()[1]

        def __del__(self):
            self.listener.close()

    def take():
        holder = Holder()
        with pytest.raises(OSError, match="in use"):
            mutual_tls.listen("127.0.0.1", [holder.port])
        return holder.port

    gc.collect()
    gc.disable()
    try:
        mutual_tls.listen("127.0.0.1", [take()]).close()
    finally:
        gc.enable()

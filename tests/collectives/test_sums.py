"""Sums over ranks, in processes of their own: on one host, and on several that are imitated."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from gridflow._collectives import joining, native
from gridflow._collectives.errors import PeerGone, RanksDiffer
from gridflow._collectives.host import HostGroup
from gridflow._wire import mutual_tls
from suite.new_process import in_new_network, skip_without
from suite.waiting import patience, wait_for

SPAWN = multiprocessing.get_context("spawn")


def rank_of(hosts, rank, everyone, found, work, timeout, in_python):
    """Join the others, and send back what `work` returns, or the error."""
    if rank in in_python:
        os.environ["GRIDFLOW_NATIVE"] = "0"
    joining._host = lambda: f"host {hosts[rank]}"
    try:
        with joining.Joining("127.0.0.1", "127.0.0.1") as mine:
            found.put((rank, mine.mine))
            group = mine.join(rank, everyone[rank].get(timeout=patience()), patience(), timeout)
        found.put((rank, work(group, rank)))
    except Exception as error:
        found.put((rank, error))


class Ranks:
    """Processes that have joined one another.

    `in_python`: The ranks without the exchange in C.
    """

    def __init__(self, hosts, work, timeout=None, in_python=()):
        self.found = SPAWN.Queue()
        self.everyone = [SPAWN.Queue() for _ in hosts]
        self.processes = [
            SPAWN.Process(
                target=rank_of,
                args=(hosts, rank, self.everyone, self.found, work, timeout, in_python),
            )
            for rank in range(len(hosts))
        ]
        for process in self.processes:
            process.start()
        announcements = dict(self.found.get(timeout=patience()) for _ in hosts)
        self.announcements = [announcements[rank] for rank in range(len(hosts))]

    def meet(self):
        for each in self.everyone:
            each.put(self.announcements)
        return self

    def results(self, count=None):
        count = len(self.processes) if count is None else count
        found = dict(self.found.get(timeout=patience()) for _ in range(count))
        return [found[rank] for rank in sorted(found)]

    def end(self):
        for process in self.processes:
            process.kill()
            process.join()


@pytest.fixture
def ranks():
    started = []

    def start(hosts, work, **options):
        started.append(Ranks(hosts, work, **options))
        return started[-1]

    yield start
    for each in started:
        each.end()


def numbers(rank, size, dtype):
    return (np.random.default_rng(rank * 100 + size).normal(size=size) * 100).astype(dtype)


SIZES = (0, 1, 512, 513, 70_001, 600_000)
DTYPES = ("float32", "float64", "float16", "int32", "int64", "uint8")


#: Of the ranks: what make quick leaves to make test-all.
MORE_HOSTS = ([0, 0], [0] * 6, [0, 1], [0, 0, 1, 1], [0, 1, 2])


def sums(group, rank):
    found = [group.all_reduce(numbers(rank, size, dtype)) for size in SIZES for dtype in DTYPES]
    scalar = group.all_reduce(np.float32(rank + 1))
    return [*found, scalar, group.all_gather(np.array([[rank], [True]], bool))]


@pytest.mark.parametrize(
    "hosts",
    [[0, 0, 1], *(pytest.param(each, marks=pytest.mark.slow) for each in MORE_HOSTS)],
    ids=str,
)
def test_all_ranks_have_the_sum_in_the_order_of_ranks_bit_by_bit(hosts, ranks):
    found = ranks(hosts, sums).meet().results()
    expected = []
    for size in SIZES:
        for dtype in DTYPES:
            total = numbers(0, size, dtype)
            for rank in range(1, len(hosts)):
                total = total + numbers(rank, size, dtype)
            expected.append(total)
    expected.append(np.float32(sum(range(1, len(hosts) + 1))))
    expected.append(np.array([[[rank], [True]] for rank in range(len(hosts))], bool))
    for of_rank in found:
        for got, wanted in zip(of_rank, expected, strict=True):
            assert got.dtype == wanted.dtype
            assert got.shape == wanted.shape
            np.testing.assert_array_equal(got, wanted)


def tensors_exchanged(rank):
    import torch

    from gridflow._collectives import tensors

    floats = torch.tensor([-0.0, float("nan"), 2.0**-149, 1e30]) if rank == 0 else torch.ones(4)
    halves = torch.arange(3, dtype=torch.bfloat16) * (1 - 2 * rank)
    chiefs = [tensors.of_chief(each) for each in (floats, halves, torch.tensor([rank == 0]))]
    total = tensors.all_reduce(torch.arange(70_000) * (rank + 1))
    grads = [torch.full((3, 2), 1.0 + rank), torch.tensor(2.0**rank, dtype=torch.bfloat16)]
    means = tensors.mean(grads, rows=300 * (1 + rank))
    found = [each.view(torch.uint8).numpy() for each in (*chiefs, total)]
    means = [(str(each.dtype), each.double().numpy()) for each in means]
    return [*found, means]


def through_the_group(group, rank):
    from gridflow._collectives import tensors

    tensors.EXCHANGE.group = group
    return tensors_exchanged(rank)


def through_torch(group, rank, folder):
    import torch

    place = f"file://{folder}/store"
    torch.distributed.init_process_group("gloo", init_method=place, rank=rank, world_size=2)
    return tensors_exchanged(rank)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["group", "torch"])
def test_tensors_are_summed_or_those_of_the_chief_to_the_bit(way, ranks, tmp_path):
    skip_without("torch")
    work = through_the_group if way == "group" else partial(through_torch, folder=tmp_path)
    floats = np.array([-0.0, np.nan, 2.0**-149, 1e30], "float32")
    halves = np.array([0, 0x3F80, 0x4000], "uint16")  # 0, 1 and 2, the upper half of a float32
    wanted = [floats, halves, np.array([True]), np.arange(70_000) * 3]
    for *found, means in ranks([0, 0], work).meet().results():
        for got, each in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(got, each.view("uint8"))
        (wide, values), (narrow, value) = means
        assert (wide, narrow) == ("torch.float32", "torch.bfloat16")
        np.testing.assert_allclose(values, np.full((3, 2), 5 / 3), rtol=1e-6)
        np.testing.assert_allclose(value, 5 / 3, rtol=2**-9)


def apart(group, rank):
    group.all_reduce(np.ones(3, "float32"))
    return group.all_reduce(np.ones(4 if rank else 100_000, "float32"))


def apart_otherwise(group, rank):
    group.all_reduce(np.ones(3, "float32"))
    return group.all_reduce(np.ones(100_000 if rank else 4, "float32"))


def other_type(group, rank):
    return group.all_reduce(np.ones(100_000, "float32" if rank else "int32"))


@pytest.mark.parametrize("hosts", [[0, 0], [0, 1]])
@pytest.mark.parametrize(
    "work",
    [apart, *(pytest.param(w, marks=pytest.mark.slow) for w in (apart_otherwise, other_type))],
)
def test_ranks_in_different_operations_are_told_so(hosts, work, ranks):
    found = ranks(hosts, work).meet().results()
    assert all(isinstance(each, RanksDiffer | PeerGone) for each in found)
    told = [str(each) for each in found if isinstance(each, RanksDiffer)]
    assert all("different collective operations" in each for each in told)
    assert len(told) >= (1 if len(set(hosts)) > 1 else len(hosts))


def for_ever(folder, group, rank):
    group.all_reduce(np.ones(3, "float32"))
    Path(folder, str(rank)).touch()
    if rank:
        signal.pause()
    return group.all_reduce(np.ones(100_000, "float32"))


@pytest.mark.parametrize("hosts", [[0, 0], [0, 1]])
def test_a_rank_that_is_killed_is_noticed_and_not_waited_for(hosts, ranks, tmp_path):
    job = ranks(hosts, functools.partial(for_ever, tmp_path)).meet()
    wait_for(lambda: len(list(tmp_path.iterdir())) == 2, "the first sum")
    job.processes[1].kill()
    (error,) = job.results(1)
    assert isinstance(error, PeerGone)
    assert "connection closed by peer" in str(error)


def once_it_stands_still(folder, size, group, rank):
    group.all_reduce(np.ones(3, "float32"))
    Path(folder, str(rank)).touch()
    wait_for(Path(folder, "stopped").exists, "the one that stands still")
    return group.all_reduce(np.ones(size, "float32"))


#: Ranks' hosts, who stands still, and how many numbers: what make quick leaves to make test-all.
MORE_THAT_STAND_STILL = (([0, 0], 1, 100_000), ([0, 0, 1], 1, 3), ([0, 1, 2], 2, 3))


@pytest.mark.parametrize(
    ("hosts", "still", "size"),
    [
        ([0, 0, 1], 2, 100_000),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in MORE_THAT_STAND_STILL),
    ],
    ids=str,
)
def test_a_rank_that_stands_still_is_waited_for_as_long_as_was_asked_and_named_by_all(
    hosts, still, size, ranks, tmp_path
):
    work = functools.partial(once_it_stands_still, tmp_path, size)
    job = ranks(hosts, work, timeout=2.5).meet()
    wait_for(lambda: len(list(tmp_path.iterdir())) == len(hosts), "the first sum")
    os.kill(job.processes[still].pid, signal.SIGSTOP)
    (tmp_path / "stopped").touch()
    errors = job.results(len(hosts) - 1)
    assert [type(each) for each in errors] == [TimeoutError] * len(errors)
    assert all(f"rank {still} did not come in time" in str(each) for each in errors)


#: In a network of its own: two hosts whose connection is cut, without a word to either.
CUT = """
import subprocess, threading, types
import numpy as np
from gridflow._collectives import chain, host
from gridflow._wire import mutual_tls

def ip(*words):
    subprocess.run(["ip", *words], check=True)

ip("link", "set", "lo", "up")
mutual_tls._SILENCE, mutual_tls._LOOK_SECONDS = 0.5, 0.1
mutual_tls._ALIVE.update(TCP_KEEPIDLE=1, TCP_KEEPINTVL=1, TCP_KEEPCNT=2)
listener, came, there = mutual_tls.listen("127.0.0.1"), threading.Event(), []
def take(connection):
    there.append(connection)
    came.set()
    threading.Event().wait()
mutual_tls.Door(listener, b"k" * 32, take)
ends = [mutual_tls.knock(listener.getsockname(), b"k" * 32)]
came.wait()
ends += there

# One that doesn't read for long isn't cut off: it reads once the other has looked for its answers.
looks, check = [], mutual_tls.Connection._check_answers
def looked(self):
    looks.append(check(self))
    if len(looks) == 20:
        reader.start()
mutual_tls.Connection._check_answers = looked
read = []
reader = threading.Thread(target=lambda: read.append(len(ends[1].recv_bytes())))
ends[0].send_bytes(bytes(64 << 20))
reader.join()
assert read == [64 << 20], read
mutual_tls.Connection._check_answers = check

def rank_of(number):
    other = chain.Neighbour(ends[number], [[1 - number]], None)
    line = chain.Chain(*((None, other) if number == 0 else (other, None)))
    group = host.HostGroup([number], number, 2, {}, chain=line, hosts=2)
    try:
        while True:
            group.all_reduce(np.ones(1_000_000, "float32"))
            summed.set()
    except Exception as error:
        print(f"{number} {type(error).__name__} {error}\\n", end="", flush=True)

summed = threading.Event()
ranks = [threading.Thread(target=rank_of, args=(number,)) for number in range(2)]
for each in ranks:
    each.start()
summed.wait()
ip("link", "set", "lo", "down")
for each in ranks:
    each.join()
"""


def test_hosts_that_a_cut_separates_notice_it_but_not_one_that_only_reads_late():
    told = sorted(in_new_network(CUT).splitlines())
    assert [each.partition(":")[0] for each in told] == [
        f"{rank} PeerGone the host of rank {1 - rank} can't be reached" for rank in range(2)
    ]


def test_nothing_lies_in_the_file_system_while_ranks_exchange_values(ranks):
    job = ranks([0, 0], for_ever)
    folders = [Path(each.folder) for each in job.announcements]
    assert all(folder.stat().st_mode & 0o777 == 0o700 for folder in folders)
    job.meet()
    wait_for(lambda: not any(folder.exists() for folder in folders), "the end of the folders")


def test_strangers_keep_no_host_from_joining(ranks):
    job = ranks([0, 1], sums)
    there = job.announcements[1]
    mute = socket.create_connection((there.address, there.port))
    failures = []

    def guess():
        try:
            mutual_tls.knock((there.address, there.port), b"another key", 5)
        except OSError as error:
            failures.append(error)
        except multiprocessing.AuthenticationError as error:
            failures.append(error)

    stranger = threading.Thread(target=guess)
    stranger.start()
    job.meet()
    assert not any(isinstance(each, Exception) for each in job.results())
    stranger.join()
    assert failures
    mute.close()


def test_strangers_keep_no_rank_of_the_same_host_from_joining(ranks):
    job = ranks([0, 0], sums)
    mute, dead, guessing = (socket.socket(socket.AF_UNIX) for _ in range(3))
    for each in (mute, dead, guessing):
        each.connect(f"{job.announcements[0].folder}/s")
    dead.sendall(b"\0\0")
    dead.close()
    guessing.sendall(struct.pack("!I32s", 1, b"another key"))
    job.meet()
    assert guessing.recv(1) == b""
    assert not any(isinstance(each, Exception) for each in job.results())
    mute.close()
    guessing.close()


def test_where_a_sandbox_hides_the_host_a_rank_is_a_host_of_its_own(monkeypatch):
    assert joining._host() == joining._host()
    monkeypatch.setattr(joining, "Path", lambda _: Path("/proc/self/hidden"))
    assert joining._host() != joining._host()


def test_a_rank_that_never_comes_is_named_whoever_else_connects():
    listener = joining.Listener()
    try:
        with socket.socket(socket.AF_UNIX) as mute:
            mute.connect(f"{listener.folder}/s")
            with pytest.raises(PeerGone, match="rank 3 did not connect within 0.2 seconds"):
                listener.accept([3], b"key", joining.TimeLimit(0.2))
    finally:
        listener.close()


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_group_whose_others_are_lost_exchanges_nothing(rank):
    group, ones = HostGroup.lost(rank, 3), np.ones(5000, np.float32)
    exchanges = (
        lambda: group.all_reduce(ones[:1]),
        lambda: group.all_reduce(ones),
        lambda: group.add_up([ones], dtype=ones.dtype, weight=2),
        lambda: group.of_rank(ones, 0),
    )
    for exchange in exchanges:
        with pytest.raises(PeerGone, match="connection closed by peer"):
            exchange()
    group.leave()
    for _, link in group._links:
        link.close()


def test_a_rank_doesnt_join_one_that_has_another_key():
    listener = joining.Listener()
    with ThreadPoolExecutor() as pool:
        found = pool.submit(listener.accept, [1], b"key", joining.TimeLimit(patience()))
        with pytest.raises(PeerGone, match="doesn't know"):
            joining.connect(listener.folder, 1, b"another key", joining.TimeLimit(patience()))
        mine = joining.connect(listener.folder, 1, b"key", joining.TimeLimit(patience()))
        theirs = found.result()[1]
    mine.sendall(b"here")
    assert theirs.recv(4) == b"here"
    mine.close()
    theirs.close()
    listener.close()


def weighted_parts(group, rank):
    random = np.random.default_rng(rank)
    shapes = [(), (3,), (0, 2), (700, 500), (17, 5)]
    mine = [random.normal(size=shape).astype(np.float32) for shape in shapes]
    group.told = 1 << rank
    first = group.add_up(mine, dtype=np.dtype(np.float32), weight=rank)
    heard = group.heard
    group.told, group.heard = 0, 0
    plain = group.add_up(mine[:2], dtype=np.dtype(np.float64))
    none = group.add_up([np.float32([np.nan])], dtype=np.dtype(np.float32), weight=0)
    return mine, first, plain, none, (heard, group.heard)


@pytest.mark.parametrize(
    "hosts",
    [[0, 0], *(pytest.param(each, marks=pytest.mark.slow) for each in ([0, 0, 1], [0] * 5))],
    ids=str,
)
def test_parts_are_weighted_in_one_sum_and_all_hear_what_any_has_told(ranks, hosts):
    found = ranks(hosts, weighted_parts).meet().results()
    size = len(hosts)
    parts = [mine for mine, *_ in found]
    for _, (sums, weights), (plain, _), (nothing, _), heard in found:
        assert weights == list(range(size))
        assert heard == (2**size - 1, 0)
        for place, total in enumerate(sums):
            whole = sum(rank * parts[rank][place].astype(np.float64) for rank in range(size))
            np.testing.assert_allclose(total, whole / sum(weights), rtol=1e-5, atol=1e-6)
            assert total.shape == parts[0][place].shape
        for place, total in enumerate(plain):
            assert total.dtype == np.float64
            np.testing.assert_allclose(total, sum(mine[place] for mine in parts), atol=1e-6)
        assert nothing[0].tolist() == [0]
    assert all(
        one.tobytes() == other.tobytes()
        for _, (sums, *_), *_ in found
        for one, other in zip(sums, found[0][1][0], strict=True)
    )


# In C ---------------------------------------------------------------------------------------------

FLOAT32 = np.dtype(np.float32)
without_c = pytest.mark.skipif(native.path_of("exchange") is None, reason="it wasn't built")


def refuse(*_):
    raise AssertionError("this exchange should be made in C")


def only_in_c(group):
    """Share memory, and make what C can do and doesn't do fail."""
    group.add_up([np.ones(600)], dtype=np.dtype(np.float64))
    if native.path_of("exchange"):
        vars(group)["_sum"] = refuse


def gradients(group, rank):
    random = np.random.default_rng(rank)
    # The third one begins in one piece of memory and ends in another.
    shapes = [(3, 5), (), (70_001, 4), (0, 2), (500, 3), (1,)]
    found = []
    only_in_c(group)
    for weight in (None, 7 * rank, 2**40 + rank):
        group.told = 1 << rank
        mine = [random.normal(size=shape).astype(np.float32) for shape in shapes]
        mine[0][0, 0] = np.nan if weight == 0 else -0.0
        sums, weights = group.add_up(mine, dtype=FLOAT32, weight=weight)
        found.append(([each.tobytes() for each in sums], [each.shape for each in sums], weights))
    return found, group.heard, group.waited > 0


@without_c
@pytest.mark.parametrize(
    "size", [2, *(pytest.param(each, marks=pytest.mark.slow) for each in (3, 6))]
)
def test_c_and_python_compute_the_same_bits_and_work_with_each_other(size, ranks):
    some, all_of_them = range(1, size, 2), range(size)
    found = [
        result
        for in_python in ([], some, all_of_them)
        for result in ranks([0] * size, gradients, in_python=in_python).meet().results()
    ]
    assert all(each == found[0] for each in found)
    assert found[0][1:] == (2**size - 1, True)


def in_c_for_ever(folder, group, rank):
    only_in_c(group)
    Path(folder, str(rank)).touch()
    if rank == 1:
        signal.pause()
    return group.add_up([np.ones(100_000, np.float32)], dtype=FLOAT32, weight=1)


@without_c
@pytest.mark.parametrize(
    ("signum", "kind", "words"),
    [
        (signal.SIGKILL, PeerGone, "connection closed by peer: rank 1 has left"),
        (signal.SIGSTOP, TimeoutError, "rank 1 did not come in time"),
    ],
    ids=["killed", "stopped"],
)
def test_in_c_all_ranks_hear_who_is_missing(signum, kind, words, ranks, tmp_path):
    timeout = 2.5 if kind is TimeoutError else None
    work = functools.partial(in_c_for_ever, tmp_path)
    job = ranks([0] * 3, work, timeout=timeout).meet()
    wait_for(lambda: len(list(tmp_path.iterdir())) == 3, "the first sum")
    os.kill(job.processes[1].pid, signum)
    errors = job.results(2)
    assert [type(each) for each in errors] == [kind] * 2
    assert all(words in str(each) for each in errors)


def other_shapes(group, rank):
    only_in_c(group)
    shape = (100, 90) if rank else (90, 100)
    return group.add_up([np.ones(shape, np.float32)], dtype=FLOAT32, weight=1)


def other_operation(group, rank):
    group.all_reduce(np.ones(600))
    if rank:
        return group.all_reduce(np.ones(9_000, np.float32))
    return group.add_up([np.ones(9_000, np.float32)], dtype=FLOAT32, weight=1)


@without_c
@pytest.mark.parametrize(
    ("work", "words"),
    [(other_shapes, "(100, 90)"), (other_operation, "36,160 bytes of float32")],
)
def test_in_c_ranks_in_different_operations_are_told_so(work, words, ranks):
    found = ranks([0, 0], work).meet().results()
    assert all(isinstance(each, RanksDiffer | PeerGone) for each in found)
    told = " ".join(str(each) for each in found)
    assert "different collective operations" in told
    assert words in told


def leaves(group, rank):
    group.all_reduce(np.ones(600))
    if rank:
        return group.leave()
    return group.add_up([np.ones(9_000, np.float32)], dtype=FLOAT32, weight=1)


@without_c
def test_in_c_a_rank_that_has_left_is_not_waited_for(ranks):
    (error, _) = ranks([0, 0], leaves).meet().results()
    assert isinstance(error, RanksDiffer)
    assert "rank 1 has returned from its function" in str(error)

"""The spool: written once, mapped without a copy, whole or not there."""

import errno
import gc
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridflow._features.rows.agent import take_loan, write_loan
from gridflow._feed import allgather
from gridflow._feed.ledger import DatasetCounts
from gridflow._feed.normalize import FeedOptions
from gridflow._feed.store import Segment, SpoolReader, SpoolWriter
from gridflow.errors import DataError, InvalidArgument


def numbers(start, rows):
    return pa.RecordBatch.from_pydict({"n": np.arange(start, start + rows)})


def test_rows_come_back_in_order_from_many_segments(tmp_path):
    with SpoolWriter(tmp_path, segment_bytes=50_000) as writer:
        for start in range(0, 50_000, 5000):
            writer.write("train", numbers(start, 5000))
    reader = SpoolReader(tmp_path, "train")
    assert len(list((tmp_path / "train").glob("*.arrow"))) == 5
    got = np.concatenate([reader.column(i, "n") for i in range(len(reader.chunk_rows))])
    np.testing.assert_array_equal(got, np.arange(50_000))
    assert reader.rows == 50_000
    assert reader.row_bytes() == 8


def test_columns_of_numbers_are_read_only_views_of_the_mapped_file(tmp_path):
    with SpoolWriter(tmp_path) as writer:
        x = pa.FixedSizeListArray.from_arrays(np.arange(24, dtype=np.float32), 6)
        writer.write("train", pa.RecordBatch.from_pydict({"x": x, "b": [True, False] * 2}))
    reader = SpoolReader(tmp_path, "train")
    before = pa.total_allocated_bytes()
    view = reader.column(0, "x")
    assert view.shape == (4, 6)
    assert reader.column(0, "b").tolist() == [True, False, True, False]
    assert pa.total_allocated_bytes() == before
    with pytest.raises(ValueError, match="read-only"):
        view[0, 0] = 1


def maps_of(folder):
    """Return how many maps and open files below a folder this process has."""
    own = Path("/proc/self")
    files = [path.readlink() for path in (own / "fd").iterdir() if path.is_symlink()]
    maps = [line for line in (own / "maps").read_text().splitlines() if str(folder) in line]
    return len(maps), len([file for file in files if str(folder) in str(file)])


def test_all_readers_of_a_process_share_one_map_of_each_file_and_no_file_stays_open(tmp_path):
    with SpoolWriter(tmp_path, segment_bytes=50_000) as writer:
        for start in range(0, 50_000, 5000):
            writer.write("train", numbers(start, 5000))
    readers = [SpoolReader(tmp_path, "train", growing=bool(each % 2)) for each in range(20)]
    for reader in readers:
        assert sum(batch.num_rows for batch in reader.batches()) == 50_000
    assert maps_of(tmp_path) == (5, 0)
    rows = reader.column(0, "n")
    del readers, reader
    gc.collect()
    assert maps_of(tmp_path) == (1, 0)  # its rows are still in use
    assert rows[4999] == 4999
    del rows
    assert maps_of(tmp_path) == (0, 0)


def segment(folder, *batches):
    """Write what somebody else has written."""
    path = folder / f"{len(list(folder.glob('*.other')))}.other"
    with pa.ipc.new_file(str(path), batches[0].schema) as file:
        for each in batches:
            file.write_batch(each)
    return Segment(path)


def test_segments_that_others_wrote_are_taken_over_in_their_place(tmp_path):
    told = []
    options = {"on_segment": lambda _, rows: told.append(rows)}
    with SpoolWriter(tmp_path / "spool", **options) as writer:
        writer.write("train", numbers(0, 10))
        given = segment(tmp_path, numbers(10, 5), numbers(15, 7))
        node = given.path.stat().st_ino
        writer.write("train", given)
        assert told[-1] == 22
        writer.write("train", numbers(22, 8))
    reader = SpoolReader(tmp_path / "spool", "train")
    assert reader.chunk_rows == (10, 5, 7, 8)
    assert reader.counts == DatasetCounts(30, 30, 0)
    assert [n for batch in reader.batches() for n in batch.column("n").to_pylist()] == [*range(30)]
    files = (tmp_path / "spool" / "train").glob("*.arrow")
    assert node in [path.stat().st_ino for path in files]
    assert list(tmp_path.glob("*.other")) == []


def test_lists_of_one_length_in_a_file_of_others_are_read_there_as_arrays(tmp_path):
    lists = pa.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], pa.list_(pa.float32()))
    given = segment(tmp_path, pa.record_batch({"x": lists, "n": [1, 2, 3]}))
    node = given.path.stat().st_ino
    with SpoolWriter(tmp_path / "spool") as writer:
        writer.write("train", given)
    (file,) = (tmp_path / "spool" / "train").glob("*.arrow")
    assert file.stat().st_ino == node
    reader = SpoolReader(tmp_path / "spool", "train")
    assert reader.schema.field("x").type == pa.list_(pa.float32(), 2)
    np.testing.assert_array_equal(reader.column(0, "x"), [[1, 2], [3, 4], [5, 6]])
    assert list(tmp_path.glob("*.other")) == []


def test_where_a_file_cant_be_linked_its_rows_are_copied(tmp_path, monkeypatch):
    def no_link(*_args, **_options):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(Path, "hardlink_to", no_link)
    with SpoolWriter(tmp_path / "spool") as writer:
        writer.write("train", numbers(0, 3))
        writer.write("train", segment(tmp_path, numbers(3, 4)))
    reader = SpoolReader(tmp_path / "spool", "train")
    found = [n for batch in reader.batches() for n in batch.column("n").to_pylist()]
    assert found == [*range(7)]
    assert list(tmp_path.glob("*.other")) == []


def test_small_files_in_another_form_become_one_chunk(tmp_path):
    with SpoolWriter(tmp_path / "spool") as writer:
        for n in range(5):
            rows = pa.record_batch({"n": [n, n], "flag": [True, False]})
            writer.write("train", segment(tmp_path, rows))
    assert SpoolReader(tmp_path / "spool", "train").chunk_rows == (10,)


@pytest.mark.parametrize("kind", [pa.list_(pa.int32()), pa.list_(pa.int32(), 1)])
@pytest.mark.parametrize("in_segment", [True, False])
def test_rows_that_are_all_dropped_tell_no_length(tmp_path, kind, in_segment):
    """Whether they come before others, or behind them."""

    def rows(count, kind, length, flags):
        arrays = pa.array([[1] * length] * count, kind)
        return pa.record_batch({"x": arrays, "flag": pa.array(flags, pa.int64())})

    batches = [
        rows(2, kind, 1, [None, None]),
        rows(3, pa.list_(pa.int32()), 2, [1, None, 1]),
        rows(2, kind, 1, [None, None]),
    ]
    if in_segment and len({str(batch.schema) for batch in batches}) > 1:
        batches = [batch.cast(batches[1].schema) for batch in batches]
    with SpoolWriter(tmp_path / "spool", FeedOptions(nulls="drop")) as writer:
        if in_segment:
            writer.write("train", segment(tmp_path, *batches))
        else:
            for batch in batches:
                writer.write("train", batch)
        assert writer.left_out == {"train": {}}
    reader = SpoolReader(tmp_path / "spool", "train")
    assert reader.counts == DatasetCounts(7, 2, 5, nulls={"flag": 5})
    assert [row for batch in reader.batches() for row in batch.column("x").to_pylist()] == [
        [1, 1]
    ] * 2


def test_segments_in_another_form_are_written_anew(tmp_path):
    flags = pa.RecordBatch.from_pydict({"n": [1, 2], "flag": [True, False]})
    torn = pa.RecordBatch.from_pydict({"n": [3, None], "flag": [None, True]})
    with SpoolWriter(tmp_path / "spool", FeedOptions(nulls="drop")) as writer:
        writer.write("train", segment(tmp_path, flags))
        writer.write("train", segment(tmp_path, torn))
        writer.write("train", segment(tmp_path, flags.slice(1)))
    reader = SpoolReader(tmp_path / "spool", "train")
    rows = [tuple(row.values()) for batch in reader.batches() for row in batch.to_pylist()]
    assert rows == [(1, 1), (2, 0), (2, 0)]
    assert reader.counts == DatasetCounts(5, 3, 2, nulls={"n": 1, "flag": 1})
    assert list(tmp_path.glob("*.other")) == []


def test_a_column_that_is_left_out_in_the_middle_is_left_out_of_segments_before(tmp_path):
    """Also of files that were taken over with it, or that have it still."""

    def rows(n, words):
        return pa.RecordBatch.from_pydict({"n": n, "words": words})

    whole, torn = rows([1, 2], ["a", "b"]), rows([3], pa.array([None], pa.string()))
    with SpoolWriter(tmp_path / "spool") as writer:
        writer.write("train", segment(tmp_path, whole))
        writer.write("train", segment(tmp_path, whole, torn))
        writer.write("train", segment(tmp_path, whole))
    assert "nulls" in writer.left_out["train"]["words"]
    reader = SpoolReader(tmp_path / "spool", "train")
    assert reader.schema.names == ["n"]
    found = [row for batch in reader.batches() for row in batch.to_pylist()]
    assert found == [{"n": n} for n in (1, 2, 1, 2, 3, 1, 2)]


def test_many_small_batches_become_few_chunks(tmp_path):
    with SpoolWriter(tmp_path) as writer:
        for start in range(0, 10_000, 10):
            writer.write("train", numbers(start, 10))
    reader = SpoolReader(tmp_path, "train")
    assert len(reader.chunk_rows) == 3
    assert reader.column(1, "n")[0] == 4100


def test_a_dataset_without_rows_can_be_read_with_and_without_a_schema(tmp_path):
    writer = SpoolWriter(tmp_path)
    writer.declare("unknown")
    writer.declare("known", pa.schema([("x", pa.float32())]))
    writer.write("seen", numbers(0, 0))
    assert writer.close() == dict.fromkeys(["unknown", "known", "seen"], DatasetCounts())
    assert SpoolReader(tmp_path, "unknown").specs == {}
    assert list(SpoolReader(tmp_path, "known").specs) == ["x"]
    assert list(SpoolReader(tmp_path, "seen").specs) == ["n"]
    assert list(SpoolReader(tmp_path, "known").batches()) == []


def test_dropped_rows_are_counted(tmp_path):
    writer = SpoolWriter(tmp_path, FeedOptions(nulls="drop"))
    writer.write("train", pa.RecordBatch.from_pydict({"x": [1, None, 3]}))
    assert writer.close() == {"train": DatasetCounts(rows_in=3, rows=2, dropped=1, nulls={"x": 1})}
    assert SpoolReader(tmp_path, "train").counts.dropped == 1


@pytest.mark.parametrize("before", [1, 5000])
def test_a_column_that_turns_out_not_to_be_feedable_is_left_out_and_the_rows_stay(tmp_path, before):
    writer = SpoolWriter(tmp_path)

    def write(first, rows, **columns):
        numbers = list(range(first, first + rows))
        writer.write("train", pa.RecordBatch.from_pydict({"n": numbers, **columns}))

    write(0, before, nulls=[1.5] * before, ragged=[[1, 2]] * before, kind=["a"] * before)
    write(before, 2, nulls=[None, 1.0], ragged=[[1, 2]] * 2, kind=["b"] * 2)
    write(before + 2, 2, nulls=[1.0, 2.0], ragged=[[1], [2]], kind=[1, 2])
    write(before + 4, 1, nulls=[None], ragged=[[1, 2]], kind=["c"])
    assert writer.close()["train"] == DatasetCounts(rows_in=before + 5, rows=before + 5)
    reasons = writer.left_out["train"]
    assert "'nulls' of dataset 'train' has nulls in 1 of 2 rows" in reasons["nulls"]
    assert "arrays of 2 and of 1 items" in reasons["ragged"]
    assert "was string in earlier batches and is now int64" in reasons["kind"]
    reader = SpoolReader(tmp_path, "train")
    assert list(reader.specs) == ["n"]
    assert reader.rows == before + 5
    assert {tuple(batch.schema.names) for batch in reader.batches()} == {("n",)}
    read = [n for chunk in range(len(reader.chunk_rows)) for n in reader.column(chunk, "n")]
    assert read == list(range(before + 5))


def test_columns_behind_one_that_is_left_out_later_stay_what_they_were(tmp_path):
    with SpoolWriter(tmp_path) as writer:
        for first, kind in ((0, ["a"] * 5000), (5000, [1] * 5000)):
            numbers = np.arange(first, first + 5000)
            writer.write("train", pa.RecordBatch.from_pydict({"kind": kind, "n": numbers}))
    reader = SpoolReader(tmp_path, "train")
    assert [reader.column(chunk, "n")[0] for chunk in (0, 1)] == [0, 5000]
    assert reader.left_out == writer.left_out["train"]


def test_a_spool_is_seen_to_grow_in_whole_segments_and_its_chunks_are_those_of_any_other(tmp_path):
    seen = []

    def look(dataset, rows):
        reader.refresh() if seen else seen.append(0)
        seen.append(rows)
        grown = SpoolReader(tmp_path / "a", dataset, growing=True)
        assert (grown.rows, grown.is_complete) == (rows, False)
        assert grown.column(len(grown.chunk_rows) - 1, "n")[-1] == rows - 1
        with pytest.raises(InvalidArgument, match=r"no complete dataset 'train' .* has: none"):
            SpoolReader(tmp_path / "a", dataset)

    writer = SpoolWriter(tmp_path / "a", segment_bytes=100_000, on_segment=look)
    plain = SpoolWriter(tmp_path / "b")
    reader = None
    for start in range(0, 100_000, 5000):
        for each in (writer, plain):
            each.write("train", numbers(start, 5000))
        reader = reader or SpoolReader(tmp_path / "a", "train", growing=True)
    assert seen[:4] == [0, 5000, 20_000, 35_000]  # the first at once, the others when full
    assert len(reader.chunk_rows) < 20
    first = reader.column(0, "n")
    for each in (writer, plain):
        each.close()
    reader.refresh()
    assert reader.is_complete
    assert reader.column(0, "n") is first
    assert reader.chunk_rows == SpoolReader(tmp_path / "b", "train").chunk_rows
    read = [reader.column(chunk, "n") for chunk in range(len(reader.chunk_rows))]
    np.testing.assert_array_equal(np.concatenate(read), np.arange(100_000))


def test_rows_that_come_slowly_are_not_kept_until_a_segment_is_full(tmp_path, monkeypatch):
    from gridflow._feed.store import spool as module

    clock = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    seen = []
    writer = SpoolWriter(tmp_path, on_segment=lambda _, rows: seen.append((clock[0] - 100, rows)))
    for second in range(40):
        clock[0] = 100 + second
        writer.write("train", numbers(0, 5000))
    gaps = np.diff([at for at, _ in seen])
    assert gaps[:5].tolist() == [1] * 5
    assert gaps[-1] == 4  # a tenth of the time so far: few files, whatever it takes
    assert writer.close()["train"].rows == 200_000


def test_the_last_column_is_no_longer_left_out_but_refused(tmp_path):
    writer = SpoolWriter(tmp_path)
    with pytest.raises(DataError, match="'y' of dataset 'train' has nulls"):
        writer.write("train", pa.RecordBatch.from_pydict({"x": [None, 1], "y": [None, 1]}))


def test_what_an_earlier_attempt_left_is_replaced(tmp_path):
    for rows in (9000, 7):
        with SpoolWriter(tmp_path, segment_bytes=10) as writer:
            writer.write("train", numbers(0, 5))
            writer.write("train", numbers(0, rows))
    assert SpoolReader(tmp_path, "train").rows == 12
    assert len(list((tmp_path / "train").iterdir())) == 2


def test_an_unfinished_spool_can_t_be_read_and_names_what_can(tmp_path):
    with SpoolWriter(tmp_path) as writer:
        writer.write("validation", numbers(0, 5))
    writer = SpoolWriter(tmp_path)
    writer.write("train", numbers(0, 5000))
    with pytest.raises(InvalidArgument, match="it has: validation"):
        SpoolReader(tmp_path, "train")
    writer.abort()
    assert not list((tmp_path / "train").glob("*.arrow"))
    with pytest.raises(InvalidArgument, match="Did you mean 'validation'"):
        SpoolReader(tmp_path, "validations")


def test_names_that_would_leave_the_directory_are_refused(tmp_path):
    with pytest.raises(InvalidArgument, match=r"'\.\./train'"):
        SpoolWriter(tmp_path).write("../train", numbers(0, 1))
    with pytest.raises(InvalidArgument, match="segment_bytes"):
        SpoolWriter(tmp_path, segment_bytes=0)


def test_a_full_file_system_is_explained(tmp_path):
    """On a tmpfs of 1 MiB, in a process with a mount namespace of its own."""
    script = """
import pathlib, pyarrow as pa, numpy as np
from gridflow.errors import DataError
from gridflow._feed.store import SpoolWriter
writer = SpoolWriter(pathlib.Path("{place}/spool"))
try:
    for _ in range(100):
        writer.write("train", pa.RecordBatch.from_pydict({{"x": np.zeros(10_000)}}))
    writer.close()
except DataError as error:
    print(error)
    writer.abort()
"""
    mount = f"mount -t tmpfs -o size=1m none {tmp_path}"
    usable = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mount], check=False, capture_output=True
    )
    if usable.returncode:
        pytest.skip("a tmpfs can't be mounted here; see the test with a limit of file size")
    done = subprocess.run(
        [
            *("unshare", "--mount", "sh", "-c", f'{mount} && exec "$0" -c "$1"'),
            *(sys.executable, script.format(place=tmp_path)),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "No space left on device" in done.stdout
    assert "Spool(dir=" in done.stdout
    assert f"{tmp_path}/spool/train" in done.stdout


def test_a_file_that_may_not_grow_is_explained(tmp_path):
    """The limit of file size of this process gives the same kind of error from the kernel."""
    import signal

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    writer = SpoolWriter(tmp_path)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
        with pytest.raises(DataError, match=r"can't grow: .*MiB are free.*Spool\(dir=") as got:
            writer.write("train", numbers(0, 100_000))
        assert isinstance(got.value.__cause__, OSError)
        assert got.value.__cause__.errno == errno.EFBIG
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
        writer.abort()
    assert not (tmp_path / "train" / "manifest.json").exists()
    still_open = [str(fd.readlink()) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]
    assert not [path for path in still_open if path.startswith(str(tmp_path))]


@given(st.lists(st.integers(0, 6000), min_size=1, max_size=6), st.integers(1, 200_000))
def test_any_sizes_of_batches_come_back_as_they_were(tmp_path_factory, sizes, segment_bytes):
    place = tmp_path_factory.mktemp("spool")
    with SpoolWriter(place, segment_bytes=segment_bytes) as writer:
        at = 0
        for rows in sizes:
            writer.write("train", numbers(at, rows))
            at += rows
    reader = SpoolReader(place, "train")
    assert sum(reader.chunk_rows) == reader.rows == sum(sizes)
    got = [reader.column(i, "n") for i in range(len(reader.chunk_rows))]
    np.testing.assert_array_equal(np.concatenate([*got, []]), np.arange(sum(sizes)))


def test_rows_that_were_lent_or_gathered_keep_the_types_of_their_columns(tmp_path):
    with SpoolWriter(tmp_path / "lender") as writer:
        columns = {"even": [True, False], "flags": [[True], [False]], "name": ["a", "b"]}
        writer.write("train", pa.table(columns).to_batches()[0])
    with SpoolWriter(tmp_path / "borrower") as writer:
        writer.declare("train")
    lender = SpoolReader(tmp_path / "lender", "train")
    write_loan(tmp_path / "lender", "train", tmp_path / "loan")
    counts = take_loan(tmp_path / "borrower", "train", tmp_path / "loan", FeedOptions())
    assert (counts.rows, counts.borrowed) == (2, 2)
    assert SpoolReader(tmp_path / "borrower", "train").specs == lender.specs
    gathered = allgather.write(
        lender, list(columns), 1, tmp_path / "gathered", lambda part: [part, b""]
    )
    assert (gathered.specs, gathered.rows) == (lender.specs, 1)

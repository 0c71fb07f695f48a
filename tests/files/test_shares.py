"""Whose rows are whose: nothing twice, nothing left out, as many bytes for each."""

from __future__ import annotations

import dataclasses
import json
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridflow._feed.ingest.files import catalogue
from gridflow._feed.ingest.files.parquet import ParquetFiles
from gridflow._feed.ingest.files.shares import Piece, share_out
from gridflow._feed.normalize import FeedOptions
from gridflow._feed.plan.epochs import BatchPlan, steps_for
from gridflow._files.listing import find
from gridflow.errors import DataError, InvalidArgument, SchemaError
from suite.waiting import patience

pieces = st.lists(
    st.builds(Piece, st.just(0), st.just(0), st.integers(1, 10**6), st.integers(1, 3000)),
    min_size=1,
    max_size=30,
)


def rows_of(shares):
    return [
        (piece.file, row)
        for share in shares
        for piece in share
        for row in range(piece.first, piece.first + piece.rows)
    ]


@given(pieces, st.integers(1, 9))
def test_consecutive_shares_hold_every_row_once_and_as_many_bytes(found, ranks):
    found = [dataclasses.replace(piece, file=number) for number, piece in enumerate(found)]
    shares = share_out(found, ranks)
    assert len(shares) == ranks
    assert rows_of(shares) == rows_of([found])
    if sum(piece.rows for piece in found) >= ranks:
        assert all(shares)
    row_bytes = {piece.file: piece.size / piece.rows for piece in found}
    share = sum(piece.size for piece in found) / ranks
    for own in shares if max(row_bytes.values()) < share / 2 else ():
        size = sum(row_bytes[piece.file] * piece.rows for piece in own)
        assert abs(size - share) <= 0.1 * share + 2 * max(row_bytes.values())


@given(pieces, st.integers(1, 9))
def test_whole_pieces_go_to_all_ranks_as_evenly_as_they_can(found, ranks):
    found = [
        dataclasses.replace(piece, file=number, is_divisible=number > 0)
        for number, piece in enumerate(found)
    ]
    if found[0].is_divisible:
        return
    shares = share_out(found, ranks)
    assert sorted(piece.file for own in shares for piece in own) == list(range(len(found)))
    sizes = [sum(piece.size for piece in own) for own in shares]
    assert max(sizes) - min(sizes) <= max(piece.size for piece in found)
    assert all(shares) or len(found) < ranks


@given(st.lists(st.integers(0, 300), min_size=1, max_size=20), st.integers(1, 5), st.booleans())
def test_a_shuffle_by_groups_of_chunks_comes_back_to_none(chunks, together, shuffle):
    rows = sum(chunks)
    if not rows:
        return
    plan = BatchPlan(
        chunks,
        10,
        steps_for([rows], 10),
        shuffle=shuffle,
        window_rows=64,
        chunks_together=together,
    )
    seen, places = [], []
    for window in plan.windows():
        for piece in window.pieces:
            seen += [(piece.chunk, row) for row in range(piece.start, piece.stop)]
            places.append(piece.chunk)
    assert sorted(seen) == [(chunk, row) for chunk, n in enumerate(chunks) for row in range(n)]
    firsts = {chunk: places.index(chunk) for chunk in places}
    lasts = {chunk: len(places) - places[::-1].index(chunk) for chunk in places}
    at_once = max(
        sum(firsts[chunk] <= place < lasts[chunk] for chunk in firsts)
        for place in range(len(places))
    )
    assert at_once <= together


def written(folder, *tables, **options):
    for number, columns in enumerate(tables):
        pq.write_table(pa.table(columns), folder / f"{number}.parquet", **options)
    return find(str(folder), "/")


def of(files, *columns, nulls="error", rank=0, ranks=1, gather=None):
    form = ParquetFiles(files, "train", columns, FeedOptions(nulls=nulls))
    return catalogue.catalogue(form, rank, ranks, gather)


def table_of(found):
    batches = list(found.reader().batches())
    return pa.Table.from_batches(batches).to_pydict()


def test_what_cannot_be_read_is_refused_at_the_call_by_its_name(tmp_path):
    files = written(tmp_path, {"x": [1, 2], "s": ["a", "b"]}, {"x": [1.5, 2], "s": ["a", "b"]})
    with pytest.raises(SchemaError, match=r"no column 'z'. It has: x, s"):
        of(files, "z")
    with pytest.raises(SchemaError, match=r"'x'.* int64 in .*0.parquet and double in .*1.parq"):
        of(files, "x")
    assert table_of(of(files, "s")) == {"s": ["a", "b", "a", "b"]}
    (tmp_path / "2.parquet").write_bytes(b"no parquet at all")
    with pytest.raises(DataError, match="2.parquet is not a Parquet file"):
        of(find(str(tmp_path), "/"), "s")
    damaged = tmp_path / "damaged.parquet"
    pq.write_table(pa.table({"x": [1, None, 3], "s": ["abc" * 99] * 3}), damaged)
    content = damaged.read_bytes()
    footer = content[-8 - int.from_bytes(content[-8:-4], "little") :]
    damaged.write_bytes(b"\xff" * (len(content) - len(footer)) + footer)
    for columns, nulls in ((["s"], "error"), (["x"], "drop")):
        with pytest.raises(DataError, match=r"damaged\.parquet can't be read"):
            of(find(str(damaged), "/"), *columns, nulls=nulls)
    (tmp_path / "day=3").mkdir()
    files = written(tmp_path / "day=3", {"x": [1]})
    with pytest.raises(SchemaError, match=r"part of the path, as written by partitionBy\('day'\)"):
        of(files, "day")
    with pytest.raises(DataError, match="nothing to read for rank . of 3 ranks: there are 1 rows"):
        of(files, "x", ranks=3)


def test_nulls_follow_their_rule_and_are_accounted_for(tmp_path):
    columns = {"x": [1, None, 3, 4, 5, 6], "y": [1, 2, None, 4, 5, 6], "z": [None] * 6}
    columns["v"] = [[1], [2], [3], [4], None, [6]]
    files = written(tmp_path, columns, row_group_size=3)
    with pytest.raises(DataError, match="'x' of dataset 'train' has nulls in 1 of 3 rows of"):
        of(files, "x")
    assert table_of(of(files, "x", nulls={"x": 0})) == {"x": [1, 0, 3, 4, 5, 6]}
    found = of(files, "x", "y", "v", nulls="drop")
    assert table_of(found) == {"x": [1, 4, 6], "y": [1, 4, 6], "v": [[1], [4], [6]]}
    counts = found.counts
    assert (counts.rows_in, counts.rows, counts.dropped) == (6, 3, 3)
    assert counts.nulls == {"x": 1, "y": 1, "v": 1}
    halves = [of(files, "x", "y", nulls="drop", rank=rank, ranks=2) for rank in range(2)]
    assert [half.counts.rows_in for half in halves] == [1 + 2, 3]
    assert halves[0].rows == halves[1].rows == [1, 3]
    with pytest.raises(SchemaError, match="'z'"):
        of(files, "z", nulls="drop")
    with pytest.raises(DataError, match="column 'v' .* has nulls"):
        table_of(of(files, "v"))


def test_parts_of_structs_are_columns_by_their_paths(tmp_path):
    inner = [{"u": i, "deep": {"v": [i / 2, 1.0]}, "w": str(i)} for i in range(10)]
    files = written(tmp_path, pa.table({"id": range(10), "s": inner, "s.dot": range(10, 20)}))
    found = table_of(of(files, "s.deep.v", "id", "s.u", "s.dot"))
    assert list(found) == ["s.deep.v", "id", "s.u", "s.dot"]
    assert found["s.u"] == list(range(10))
    assert found["s.deep.v"] == [[i / 2, 1.0] for i in range(10)]
    assert found["s.dot"] == list(range(10, 20))
    with pytest.raises(SchemaError, match=r"'s' .* is a struct in .*'s.u', 's.deep', 's.w'"):
        of(files, "s")
    with pytest.raises(SchemaError, match=r"no column 's.x'"):
        of(files, "s.x")
    (tmp_path / "torn").mkdir()
    torn = written(tmp_path / "torn", pa.table({"s": [{"u": 1}, None, {"u": None}, {"u": 4}]}))
    with pytest.raises(DataError, match=r"'s.u' .* has nulls in 2 of 4"):
        of(torn, "s.u")
    assert table_of(of(torn, "s.u", nulls="drop")) == {"s.u": [1, 4]}


def test_arrays_that_change_their_length_are_named_with_their_file(tmp_path):
    files = written(tmp_path, {"v": [[1, 2]] * 3}, {"v": [[1, 2, 3]] * 3})
    with pytest.raises(DataError, match=r"'v'.* arrays of 2 and of 3 items.*1.parquet"):
        table_of(of(files, "v"))


def test_a_file_that_was_changed_is_noticed_when_its_rows_are_read(tmp_path):
    found = of(written(tmp_path, {"x": list(range(10))}), "x")
    reader = found.reader()
    written(tmp_path, {"x": list(range(7))})
    with pytest.raises(DataError, match="has changed since training started"):
        found.format._footer.cache_clear()
        list(reader.batches())


class Group:
    """Ranks as threads, that hand each other bytes as the collectives do."""

    def __init__(self, ranks):
        self.barrier, self.said = threading.Barrier(ranks, timeout=patience()), [b""] * ranks

    def gather_of(self, rank):
        def gather(content):
            self.said[rank] = content
            self.barrier.wait()
            found = list(self.said)
            self.barrier.wait()
            return found

        return gather


def together(ranks, work):
    group, found = Group(ranks), [None] * ranks

    def run(rank):
        try:
            found[rank] = work(rank, group.gather_of(rank))
        except Exception as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_ranks_that_share_the_looking_find_what_one_alone_finds(tmp_path):
    files = written(tmp_path, *({"x": list(range(n, 3 * n))} for n in range(5, 12)))
    alone = [of(files, "x", rank=rank, ranks=3) for rank in range(3)]
    shared = together(3, lambda rank, gather: of(files, "x", rank=rank, ranks=3, gather=gather))
    for one, other in zip(alone, shared, strict=True):
        assert (one.shares, one.rows, one.digest) == (other.shares, other.rows, other.digest)
    rows = [x for one in shared for x in table_of(one)["x"]]
    assert rows == [x for n in range(5, 12) for x in range(n, 3 * n)]


def test_a_rank_that_fails_to_look_tells_the_others(tmp_path):
    files = written(tmp_path, {"x": [1]}, {"y": [1]}, {"x": [1]})
    found = together(3, lambda rank, gather: of(files, "x", rank=rank, ranks=3, gather=gather))
    assert all(isinstance(each, SchemaError) and "1.parquet" in str(each) for each in found)
    files = written(tmp_path, *[{"x": [1]}] * 3)
    found = together(
        2, lambda rank, gather: of(files[: 2 * rank + 1], "x", rank=rank, ranks=2, gather=gather)
    )
    assert all(isinstance(each, DataError) for each in found)


def test_the_digest_changes_with_the_files(tmp_path):
    files = written(tmp_path, {"x": [1, 2]}, {"x": [3]})
    known = of(files, "x").digest
    assert of(find(str(tmp_path), "/"), "x").digest == known
    written(tmp_path, {"x": [1, 2]}, {"x": [4, 5]})
    assert of(find(str(tmp_path), "/"), "x").digest != known
    assert json.dumps(known)


def test_a_rule_for_nulls_of_columns_that_are_not_there_is_refused():
    with pytest.raises(InvalidArgument, match="'sped'.*Did you mean 'speed'"):
        FeedOptions(nulls={"sped": 1}).check_columns(["speed"])


def test_numbers_text_and_shapes_are_those_of_the_files(tmp_path):
    columns = {
        "f": np.arange(6, dtype="f4"),
        "b": [True, False] * 3,
        "t": ["ä", "", "c", "d", "e", "f"],
        "m": [[[i, i], [i, i]] for i in range(6)],
        "d.e": np.arange(6),
    }
    reader = of(written(tmp_path, columns, row_group_size=4), *columns).reader()
    assert reader.chunk_rows == (4, 2)
    assert reader.specs["m"] == (np.dtype("int64"), (2, 2))
    assert reader.specs["b"] == (np.dtype("bool"), ())
    assert reader.column(1, "f").tolist() == [4, 5]
    assert reader.column(0, "m")[3].tolist() == [[3, 3], [3, 3]]
    assert reader.column(1, "t").to_pylist() == ["e", "f"]
    assert reader.column(1, "d.e").tolist() == [4, 5]

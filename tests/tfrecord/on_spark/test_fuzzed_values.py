"""Mutated records through Spark: the values are protobuf's."""

from __future__ import annotations

import judge
import numpy as np
import pytest
import tensorflow as tf
from google.protobuf.message import DecodeError
from mutants import NAMES, mutants
from test_types import read

COUNT = 20_000


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory):
    path = tmp_path_factory.mktemp("fuzz") / "x.tfrecord"
    records = list(mutants(tf.train.Example, 7, COUNT))
    judge.write(path, records)
    messages = []
    for record in records:
        try:
            messages.append(judge.parsed(record))
        except DecodeError:
            messages.append(None)
    return str(path), messages


def plain(kind, cell):
    if cell is None:
        return None
    if kind == "f":
        return np.array(cell, "f4").tobytes()
    return [bytes(value) for value in cell] if kind == "b" else list(cell)


@pytest.mark.parametrize(("kind", "type_"), [("i", "bigint"), ("f", "float"), ("b", "binary")])
def test_values_of_mutated_records_are_protobufs(spark, fuzzed, kind, type_):
    path, messages = fuzzed
    names = [name for name in NAMES if name]
    schema = ", ".join(f"`{name}` array<{type_}>" for name in names) + ", bad binary"
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "bad"}
    rows = read(spark, path, schema, **options).collect()
    assert len(rows) == COUNT
    compared = 0
    for row, message in zip(rows, messages, strict=True):
        if message is None:
            continue  # features that were not asked for aren't checked inside
        asked = {name: message.get(name) for name in names}
        fits = all(value is None or value[0] == kind for value in asked.values())
        assert (row.bad is None) == fits
        if fits:
            wanted = {n: v if v is None else plain(kind, v[1]) for n, v in asked.items()}
            assert {n: plain(kind, row[n]) for n in names} == wanted
            compared += 1
    assert compared > COUNT / 20

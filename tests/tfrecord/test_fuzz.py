"""Mutated records: our parsers accept and refuse what TensorFlow's do, and read the same values.

The judge is protobuf, which TensorFlow uses for ``tf.train.Example``. ``tf.io.parse_example`` has a
parser of its own; where the two differ, ours is on protobuf's side (docs/tfrecord.md). Libraries of
protobuf differ among themselves in two places, which are named here.
"""

from __future__ import annotations

import os
import subprocess
import warnings

import numpy as np
import pytest
from google.protobuf.unknown_fields import UnknownFieldSet
from mutants import mutants

from gridflow import tfrecord
from gridflow.tfrecord.example import MalformedExample

pytestmark = pytest.mark.slow

RECORDS = 100_000
#: Kept: these found something once, or were tried first.
SEEDS = [20261121]


def verdicts(message_type, records):
    from google.protobuf.message import DecodeError

    found = []
    for record in records:
        try:
            found.append(message_type.FromString(record))
        except DecodeError:
            found.append(None)
    return found


@pytest.fixture(scope="module", params=["Example", "SequenceExample"])
def fuzzed(request):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import tensorflow as tf

    message_type = getattr(tf.train, request.param)
    records = []
    for seed in SEEDS:
        records += mutants(message_type, seed, RECORDS // 2 // len(SEEDS))
    return request.param, records, verdicts(message_type, records)


def test_the_jar_accepts_what_protobuf_accepts(fuzzed, jar, tmp_path):
    record_type, records, messages = fuzzed
    path = tmp_path / "fuzz.tfrecord"
    tfrecord.write_records(path, records)
    ran = subprocess.run(
        ["java", "-cp", jar, "io.gridflow.tfrecord.Verify", "--record-type", record_type, path],
        capture_output=True,
        text=True,
        check=False,
        # With these Java says that it has them.
        env={name: value for name, value in os.environ.items() if name != "JDK_JAVA_OPTIONS"},
    )
    assert ran.stderr == ""
    *lines, summary = ran.stdout.splitlines()
    refused = {int(line.split("\t")[2]): line.split("\t")[3] for line in lines}
    assert summary.endswith(f"{len(records)} records, {len(refused)} bad")
    wrong = {i: refused.get(i) for i, m in enumerate(messages) if (m is None) != (i in refused)}
    stricter = [i for i, reason in wrong.items() if reason and is_field_zero(reason)]
    assert len(stricter) < len(records) / 1000
    for i in stricter:
        del wrong[i]
    assert {records[i].hex(): reason for i, reason in list(wrong.items())[:10]} == {}
    assert len(records) * 0.2 < len(refused) < len(records) * 0.9


def is_field_zero(reason):
    """Whether a record was refused for a field number that protobuf's C library skips in groups."""
    return str(reason).startswith("a tag has field number 0")


def sets_entries_aside(message):
    """Whether protobuf's C library keeps entries with unknown fields apart, with those.

    Its library in Python, for one, has them in the map, as we do.
    """
    if hasattr(message, "context"):
        maps = [message.context, message.feature_lists]
    else:
        maps = [message.features]
    return any(unknown.field_number == 1 for m in maps for unknown in UnknownFieldSet(m))


def plain(feature):
    kind = feature.WhichOneof("kind")
    if kind is None:
        return None
    values = list(getattr(feature, kind).value)
    if kind == "float_list":
        return np.array(values, "f4").tobytes(), "f"
    return values


def ours(values):
    if values is None or isinstance(values, list):
        return values
    return (values.tobytes(), "f") if values.dtype.kind == "f" else values.tolist()


def test_the_parser_in_python_gives_protobufs_values(fuzzed):
    record_type, records, messages = fuzzed
    sequence = record_type == "SequenceExample"
    aside, refused = 0, []
    for record, message in zip(records, messages, strict=True):
        try:
            example = tfrecord.parse_example(record, sequence=sequence)
        except MalformedExample as error:
            refused.append((record, message, str(error)))
            continue
        assert message is not None, record.hex()
        if sets_entries_aside(message):
            aside += 1
            continue
        features = message.context if sequence else message.features
        assert {n: ours(v) for n, v in example.features.items()} == {
            n: plain(f) for n, f in features.feature.items()
        }, record.hex()
        if sequence:
            assert {n: [ours(v) for v in s] for n, s in example.feature_lists.items()} == {
                n: [plain(f) for f in s.feature]
                for n, s in message.feature_lists.feature_list.items()
            }, record.hex()
    assert aside < len(records) / 100
    wrong = [(r.hex(), why) for r, message, why in refused if message is not None]
    assert [(record, why) for record, why in wrong if not is_field_zero(why)] == []
    assert len(wrong) < len(records) / 1000

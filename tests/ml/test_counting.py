"""The jar and Python's workers make the same parts of a partition."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from gridflow.ml import aggregates, counting
from gridflow.ml.statistics import Extremes, Moments, Quantiles, Vocabulary

#: pyspark leaves the sockets that rows came by to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
ROWS = 5000
KINDS = {
    "flag": "boolean",
    "tiny": "tinyint",
    "small": "smallint",
    "plain": "int",
    "large": "bigint",
    "single": "float",
    "real": "double",
    "odd": "double",
    "word": "string",
    "text": "string",
    "nothing": "int",
}
INTEGERS = ("tiny", "small", "plain", "large", "nothing")
NUMBERS = ("flag", *INTEGERS, "single", "real")
#: What standardising and splitting have to tell apart: spaces of ASCII and others, among them some
#: that Python's isspace() knows and C's doesn't; letters of ASCII and others; bytes of all lengths.
PIECES = [*" \t\n\v\f\r", *"\0\x1c\x1f\x7f\x85\xa0\u2003\u3000", *"aAzZ09", *"İßÜü\u0301€漢😀"]
PIECES += ["  ", "of", "Of,", "don't", "«!»", "!\"#$%&()*+,-./:;<=>?@[\\]^_`{|}~'", ""]


def table():
    """Give columns of every kind, with nulls in each, and what is odd in each kind."""
    random = np.random.default_rng(11)
    odd = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, 1e300, 16777217.0, 0.1]
    numbers = {
        "flag": random.random(ROWS) < 0.3,
        "tiny": random.integers(-128, 128, ROWS),
        "small": random.integers(-(1 << 15), 1 << 15, ROWS),
        "plain": random.integers(-50, 50, ROWS),
        "large": random.choice([1 << 62, -(1 << 63), (1 << 53) + 1, (1 << 60) + 1, 5], ROWS),
        "single": random.normal(3, 2, ROWS).astype("float32"),
        "real": random.random(ROWS) * 1e6,
        "odd": random.choice(odd, ROWS),
    }
    columns = {name: values.tolist() for name, values in numbers.items()}
    columns["single"][17] = float("nan")  # in one partition alone
    pieces = np.array(PIECES, object)
    for name, most in (("word", 2), ("text", 12)):
        sizes = random.integers(0, most, ROWS)
        columns[name] = ["".join(random.choice(pieces, size)) for size in sizes]
    for name, values in columns.items():
        for row in np.flatnonzero(random.random(ROWS) < 0.05):
            if name != "single" or row != 17:
                values[row] = None
    columns["nothing"] = [None] * ROWS
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


@pytest.fixture(scope="module")
def frame(spark):
    """Give them in partitions of which some are small and some have no row at all."""
    kinds = ", ".join(f"{name} {kind}" for name, kind in KINDS.items())
    rows = spark.createDataFrame(table(), kinds).coalesce(1)
    few = rows.limit(3).union(rows.limit(0).repartition(2))
    return rows.union(few).cache()


def texts():
    """Yield each pair of the ways to standardise and to split, with n-grams and without."""
    for standardize in (None, "lower", "strip_punctuation", "lower_and_strip_punctuation"):
        for split in (None, "whitespace", "character"):
            yield Vocabulary("text", False, True, standardize, split, None)
    for split, ngrams in (("whitespace", (1, 2)), ("character", (3,)), (None, (1,)), (None, (2,))):
        for needs_documents in (False, True):
            yield Vocabulary("text", needs_documents, True, "lower", split, ngrams)
    yield Vocabulary("text", True, True, "lower_and_strip_punctuation", "whitespace", None)


def gathered(parts, wants):
    """Return the counts of each want's tokens, and the last parts of all partitions."""
    from pyspark.sql import functions as f

    tokens, last = [Counter() for _ in wants], [[] for _ in wants]
    documents = [Counter() for _ in wants]
    found = parts.withColumn("part", f.spark_partition_id()).toArrow().to_pylist()
    for row in found:
        key = (row["token"], row["number"])
        if row["state"] is None:
            tokens[row["want"]][key] += row["n"]
            documents[row["want"]][key] += row["documents"]
        else:
            assert (key, row["documents"]) == ((None, None), 0)
            last[row["want"]].append((row["part"], row["n"], row["state"]))
    return tokens, documents, [sorted(each) for each in last]


def test_the_jar_counts_as_python_does(frame):
    wants = [Vocabulary(name, each) for name in (*INTEGERS, "word") for each in (False, True)]
    wants += texts()
    wants += [Extremes(name) for name in INTEGERS]
    wants += [Moments((name,)) for name in NUMBERS]
    wants += [Moments(NUMBERS[:2]), Moments(("small", "single", "flag")), Moments(NUMBERS)]
    for name in (*NUMBERS, "odd"):
        wants += [Quantiles(name, 9, error) for error in (0.2, 0.03, 1e-3)]
    by_jar = counting.parts(frame, wants)
    assert by_jar is not None
    ours = gathered(by_jar, wants)
    theirs = gathered(aggregates._by_python(frame, wants), wants)
    for want, *both in zip(wants, *ours, *theirs, strict=True):
        tokens, documents, last, their_tokens, their_documents, their_last = both
        if isinstance(want, Vocabulary) and want.is_text and want.split == "whitespace":
            # Of no matter: layers leave the empty token out, which Python may find beside spaces.
            for each in (tokens, documents, their_tokens, their_documents):
                each.pop(("", None), None)
        assert tokens == their_tokens, want
        assert documents == their_documents, want
        assert [each[:2] for each in last] == [each[:2] for each in their_last], want
        for (*_, state), (*_, their) in zip(last, their_last, strict=True):
            assert len(state) == len(their), want
            if isinstance(want, Quantiles) and state:
                assert state[:8] == their[:8], want
                values = (np.frombuffer(each, "<f4", offset=8) for each in (state, their))
                np.testing.assert_array_equal(*values, str(want))
            elif isinstance(want, Moments):
                axes = 8 * (1 + int(np.frombuffer(their, "<i8", 1)[0]))
                assert state[:axes] == their[:axes], want
                values = (np.frombuffer(each, "<f8", offset=axes) for each in (state, their))
                np.testing.assert_allclose(*values, rtol=1e-9, err_msg=str(want))
            else:
                assert state == their, want


def test_a_column_may_have_any_name(spark):
    frame = spark.range(3).selectExpr("id AS `a.b`", "id + 1 AS `c ``d`", "id AS e")
    wants = [Extremes("c `d"), Moments(("a.b", "c `d")), Extremes("a.b")]
    _, _, last = gathered(counting.parts(frame.coalesce(1), wants), wants)
    extremes = [np.frombuffer(each[0][2], "<i8").tolist() for each in (last[0], last[2])]
    assert extremes == [[1, 3], [0, 2]]
    assert np.frombuffer(last[1][0][2], "<f8", 2, 24).tolist() == [1.0, 2.0]

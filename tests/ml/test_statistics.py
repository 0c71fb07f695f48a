"""The statistics of columns of all kinds are those that TensorFlow and numpy compute."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from gridflow.errors import DataError
from gridflow.ml.aggregates import find
from gridflow.ml.statistics import Extremes, Moments, Quantiles, Vocabulary, columns_of

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
SIDES = ("left", "right")
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
def rows():
    few = table()
    return [*few, *few[:3]]


@pytest.fixture(scope="module")
def frame(spark, rows):
    """Give them in partitions of which some are small and some have no row at all."""
    kinds = ", ".join(f"{name} {kind}" for name, kind in KINDS.items())
    most = spark.createDataFrame(rows[:ROWS], kinds).coalesce(1)
    few = spark.createDataFrame(rows[ROWS:], kinds).coalesce(1)
    return most.union(few).union(most.limit(0).repartition(2)).cache()


def texts():
    """Yield each pair of the ways to standardise and to split, with n-grams and without."""
    for standardize in (None, "lower", "strip_punctuation", "lower_and_strip_punctuation"):
        for split in (None, "whitespace", "character"):
            yield Vocabulary("text", False, True, standardize, split, None)
    for split, ngrams in (("whitespace", (1, 2)), ("character", (3,)), (None, (1,)), (None, (2,))):
        for needs_documents in (False, True):
            yield Vocabulary("text", needs_documents, True, "lower", split, ngrams)
    yield Vocabulary("text", True, True, "lower_and_strip_punctuation", "whitespace", None)


def values_of(rows, want):
    """Return the values of the rows without nulls: of each row one, or one for each column."""
    names = columns_of(want)
    whole = [row for row in rows if all(row[name] is not None for name in names)]
    return [row[names[0]] if len(names) == 1 else [row[name] for name in names] for row in whole]


def tokens_of(values, want):
    """Return each row's tokens, cut as Keras does."""
    if not want.is_text:
        return [[value] for value in values]
    import tensorflow as tf

    found = tf.constant(values)
    how = want.standardize or ""
    if "lower" in how:
        found = tf.strings.lower(found)
    if "strip_punctuation" in how:
        found = tf.strings.regex_replace(found, r"[!\"#$%&()\*\+,-\./:;<=>?@\[\\\]^_`{|}~\']", "")
    if want.split == "whitespace":
        found = tf.strings.split(found)
    elif want.split == "character":
        found = tf.strings.unicode_split(found, "UTF-8")
    else:
        found = tf.RaggedTensor.from_tensor(found[:, tf.newaxis])
    if want.ngrams is not None:
        found = tf.strings.ngrams(found, ngram_width=want.ngrams, separator=" ")
    return [[token.decode() for token in row] for row in found.to_list()]


def frequent(counts):
    """Return tokens as Keras does: by frequency, and equally frequent ones by their bytes."""

    def order(token):
        return counts[token], token.encode() if isinstance(token, str) else token

    return sorted(counts, key=order, reverse=True)


def test_tokens_are_those_of_keras(frame, rows):
    wants = [
        Vocabulary(name, each)
        for name in ("tiny", "small", "plain", "large", "word")
        for each in (False, True)
    ]
    wants += texts()
    # The empty token, which layers leave out, may be one of those that are asked for.
    limits = {want: 21 if place % 2 else None for place, want in enumerate(wants)}
    found = find(frame, limits)
    for want, limit in limits.items():
        every = tokens_of(values_of(rows, want), want)
        counts = Counter(token for row in every for token in row)
        documents = Counter(token for row in every for token in set(row))
        expected = frequent(counts)
        given = dict(zip(found[want].tokens.tolist(), found[want].documents.tolist(), strict=True))
        if want.is_text and want.split == "whitespace":
            given.pop("", None)  # Arrow finds one beside spaces, Keras none
        most = None if limit is None else limit - 1
        assert list(given)[:most] == expected[:most], want
        if want.needs_documents:
            assert found[want].rows == len(every)
            assert given == {token: documents[token] for token in given}, want


def test_numbers_are_those_of_numpy(frame, rows):
    integers = [name for name in INTEGERS if name != "nothing"]
    numbers = ["flag", *integers, "single", "real"]
    wants = [Extremes(name) for name in integers]
    wants += [Moments((name,)) for name in numbers]
    wants += [Moments(("flag", "tiny")), Moments(("small", "single", "flag")), Moments((*numbers,))]
    for name in (*numbers, "odd"):
        wants += [Quantiles(name, 9, error) for error in (0.2, 0.03, 1e-3)]
    for want, found in find(frame, dict.fromkeys(wants)).items():
        values = values_of(rows, want)
        if isinstance(want, Extremes):
            assert found == (min(values), max(values))
        elif isinstance(want, Moments):
            whole = np.asarray(values, "float64")
            np.testing.assert_allclose(found.mean, whole.mean(axis=0), rtol=1e-9, err_msg=str(want))
            np.testing.assert_allclose(found.variance, whole.var(axis=0), rtol=1e-9)
        else:
            with np.errstate(over="ignore"):
                whole = np.sort(np.asarray(values).astype("float32"))
            least, most = (np.searchsorted(whole, np.float32(found), side) for side in SIDES)
            wanted = np.arange(1, 9) / 9 * len(whole)
            assert (np.maximum(least - wanted, wanted - most) <= want.error * len(whole) + 1).all()


@pytest.mark.parametrize("want", [Extremes, lambda name: Moments((name,)), Vocabulary])
def test_a_column_of_nulls_is_nothing_to_learn_from(frame, want):
    with pytest.raises(DataError, match="'nothing' has no row without a null"):
        find(frame, {want("nothing"): None})


def test_rows_of_several_shapes_are_refused(spark):
    rows = spark.range(0, 4, 1, 2).selectExpr("array_repeat(float(id), int(1 + id div 2)) AS x")
    with pytest.raises(DataError, match=r"'x': rows have the shapes \(1,\) and \(2,\)"):
        find(rows, {Moments(("x",)): None})


def test_a_column_may_have_any_name(spark):
    frame = spark.range(3).selectExpr("id AS `a.b`", "id + 1 AS `c ``d`", "id AS e")
    wants = [Extremes("c `d"), Moments(("a.b", "c `d")), Extremes("a.b"), Vocabulary("a.b")]
    found = list(find(frame, dict.fromkeys(wants)).values())
    assert (found[0], found[2]) == ((1, 3), (0, 2))
    assert found[1].mean.tolist() == [1.0, 2.0]
    assert found[3].tokens.tolist() == [2, 1, 0]

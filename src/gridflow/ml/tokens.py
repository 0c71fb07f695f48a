"""Aggregates in Spark's Python workers, one part per partition.

Texts are split into tokens with Arrow's functions if they work like TensorFlow's, which
``keras.layers.TextVectorization`` uses (both use RE2, and ASCII letters and spaces), and with
TensorFlow's if a custom function is involved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gridflow._feed.column import null_rows
from gridflow._feed.types import is_list
from gridflow.ml.columns import Slot, to_input
from gridflow.ml.statistics import Moments, Quantiles, Sketch, Vocabulary, columns_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gridflow.ml.statistics import Want

#: The pattern of ``keras.layers.TextVectorization``.
_PUNCTUATION: Final = r'[!"#$%&()\*\+,-\./:;<=>?@\[\\\]^_`{|}~\']'
#: Tokens that a worker holds before it returns them, and those that it counts at once.
_MOST_TOKENS: Final = 1 << 20
_MOST_PLAIN: Final = 1 << 17
#: Bytes of rows that are aggregated at once: Spark's batches are so small that calls cost more.
_MANY_BYTES: Final = 1 << 23
_NO_LENGTHS: Final = np.ones(0, np.int64)
PART: Final = pa.schema(
    [
        ("want", pa.int32()),
        ("token", pa.string()),
        ("number", pa.int64()),
        ("n", pa.int64()),
        ("documents", pa.int64()),
        ("state", pa.binary()),
    ]
)


def parts(wants: Sequence[Want], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield a partition's parts of each want, by the wants' numbers.

    The columns of the batches are those of the wants, in order.
    """
    gathered = [_gathering(place, want) for place, want in enumerate(wants)]
    for batch in _joined(batches):
        for column, each in zip(batch.columns, gathered, strict=True):
            null = null_rows(column)
            whole = column if null is None else column.filter(~null)
            if len(whole):
                each.rows += len(whole)
                yield from each.add(whole)
    for place, each in enumerate(gathered):
        yield from each.end()
        yield _batch(place, [None], [None], [each.rows], [0], [each.state()])


def _joined(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size >= _MANY_BYTES:
            yield from pa.Table.from_batches(held).combine_chunks().to_batches()
            held, size = [], 0
    if held:
        yield from pa.Table.from_batches(held).combine_chunks().to_batches()


class _Gathering:
    """A partition's part of a want; this class: minimum and maximum."""

    def __init__(self, place: int, want: Want) -> None:
        self.rows, self.place, self.want = 0, place, want
        self._found: list[int] = []

    def add(self, column: pa.Array) -> Iterator[pa.RecordBatch]:
        """Add rows without nulls; yield what has become too large to hold."""
        found = pc.min_max(_flat(column)[0])
        self._found += [found["min"].as_py(), found["max"].as_py()]
        self._found = [min(self._found), max(self._found)]
        return iter(())

    def end(self) -> Iterator[pa.RecordBatch]:
        """Yield what is still held."""
        return iter(())

    def state(self) -> bytes:
        """Return the part that isn't tokens."""
        return np.asarray(self._found, np.int64).tobytes()


def extremes(states: Sequence[bytes]) -> tuple[int, int]:
    """Return minimum and maximum over all partitions."""
    found = np.concatenate([np.frombuffer(state, np.int64) for state in states])
    return int(found.min()), int(found.max())


class _Quantiles(_Gathering):
    def __init__(self, place: int, want: Quantiles) -> None:
        super().__init__(place, want)
        self._sketch = Sketch(want.error)

    def add(self, column: pa.Array) -> Iterator[pa.RecordBatch]:
        self._sketch.add(to_input(_flat(column)[0], Slot((), "float32"), want_name(self.want)))
        return iter(())

    def state(self) -> bytes:
        return self._sketch.state()


class _Moments(_Gathering):
    def __init__(self, place: int, want: Want) -> None:
        super().__init__(place, want)
        self._moving = _Moving()

    def add(self, column: pa.Array) -> Iterator[pa.RecordBatch]:
        self._moving.add(to_input(column, Slot(), want_name(self.want)))
        return iter(())

    def state(self) -> bytes:
        return self._moving.state()


def want_name(want: Want) -> str:
    """Return the name of a want's column for messages."""
    return ", ".join(columns_of(want))


def _gathering(place: int, want: Want) -> _Gathering:
    if isinstance(want, Vocabulary):
        return _Counted(place, want)
    if isinstance(want, Quantiles):
        return _Quantiles(place, want)
    return (_Moments if isinstance(want, Moments) else _Gathering)(place, want)


def tokens(column: pa.Array, want: Want) -> tuple[pa.Array, np.ndarray]:
    """Return all tokens of a column without nulls, and the number per row."""
    if isinstance(want, Vocabulary) and want.is_text:
        is_plain = not callable(want.standardize) and not callable(want.split)
        return (_cut if is_plain else _cut_by_tensorflow)(column, want)
    return _flat(column)


def _flat(column: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """Return all items of a column of arrays, and the number per row."""
    lengths = np.ones(len(column), np.int64)
    while is_list(column.type):
        inner = pc.list_value_length(column).to_numpy(zero_copy_only=False)
        ends = np.concatenate([[0], np.cumsum(inner)])
        outer = np.concatenate([[0], np.cumsum(lengths)])
        lengths = ends[outer[1:]] - ends[outer[:-1]]
        column = column.flatten()
    return column, lengths


def _cut(texts: pa.Array, want: Vocabulary) -> tuple[pa.Array, np.ndarray]:
    """Split texts first, and standardise each word once: standardisation never changes spaces."""
    if want.split == "character" or want.split is None:
        texts = _standard(texts, want.standardize)
    if want.split is None:
        return _grams(texts, np.ones(len(texts), np.int64), want.ngrams)
    if want.split == "character":
        split = pa.array([list(text) for text in texts.to_pylist()], pa.list_(pa.string()))
    else:
        split = pc.ascii_split_whitespace(texts)
    lengths = pc.list_value_length(split).to_numpy(zero_copy_only=False).astype(np.int64)
    words = split.flatten()
    if want.split != "character":
        coded = words.dictionary_encode()
        words = _standard(coded.dictionary, want.standardize).take(coded.indices)
    # Arrow returns an empty word before leading and after trailing spaces, or for punctuation.
    is_word = pc.not_equal(words, "").to_numpy(zero_copy_only=False)
    if not is_word.all():
        owners = np.repeat(np.arange(len(lengths)), lengths)[is_word]
        lengths = np.bincount(owners, minlength=len(lengths))
        words = words.filter(pa.array(is_word))
    return _grams(words, lengths, want.ngrams)


def _standard(texts: pa.Array, how: str | None) -> pa.Array:
    if "lower" in (how or ""):
        texts = pc.ascii_lower(texts)
    if "strip_punctuation" in (how or ""):
        texts = pc.replace_substring_regex(texts, _PUNCTUATION, "")
    return texts


def _grams(
    words: pa.Array, lengths: np.ndarray, widths: tuple[int, ...] | None
) -> tuple[pa.Array, np.ndarray]:
    """Return n-grams instead of words; the order within a row doesn't matter."""
    if widths is None:
        return words, lengths
    ends = np.cumsum(lengths)
    owners = np.repeat(np.arange(len(lengths)), lengths)
    left = ends[owners] - np.arange(len(words))  # words of the row from here on
    found, of_rows = [], []
    for width in widths:
        starts = np.flatnonzero(left >= width)
        run = [words.take(pa.array(starts + i)) for i in range(width)]
        found.append(run[0] if width == 1 else pc.binary_join_element_wise(*run, " "))
        of_rows.append(owners[starts])
    rows = np.concatenate(of_rows)
    order = np.argsort(rows, kind="stable")
    grams = pa.concat_arrays(found).take(pa.array(order))
    return grams, np.bincount(rows, minlength=len(lengths))


def _cut_by_tensorflow(texts: pa.Array, want: Vocabulary) -> tuple[pa.Array, np.ndarray]:
    import tensorflow as tf

    with tf.device("CPU:0"):
        words = tf.constant(texts.to_numpy(zero_copy_only=False), tf.string)
        how = want.standardize
        if callable(how):
            words = how(tf.expand_dims(words, -1))
            words = tf.squeeze(words, -1)
        else:
            if "lower" in (how or ""):
                words = tf.strings.lower(words)
            if "strip_punctuation" in (how or ""):
                words = tf.strings.regex_replace(words, _PUNCTUATION, "")
        if callable(want.split):
            words = want.split(words)
        elif want.split == "character":
            words = tf.strings.unicode_split(words, "UTF-8")
        elif want.split is not None:
            words = tf.strings.split(words)
        else:
            words = tf.expand_dims(words, -1)
        if want.ngrams is not None:
            words = tf.strings.ngrams(words, ngram_width=want.ngrams, separator=" ")
        if not isinstance(words, tf.RaggedTensor):
            words = tf.RaggedTensor.from_tensor(words)
        flat = pa.array(words.flat_values.numpy().tolist(), pa.binary()).cast(pa.string())
        return flat, words.row_lengths().numpy()


class _Counted(_Gathering):
    """Token counts of a partition."""

    def __init__(self, place: int, want: Vocabulary) -> None:
        super().__init__(place, want)
        self._held: list[pa.Table] = []
        self._size = 0
        self._plain: list[pa.Array] = []
        self._needs_documents = want.needs_documents
        # Words are counted as written, and the distinct ones standardised.
        self._standard_later = (
            want.is_text
            and want.split == "whitespace"
            and want.ngrams is None
            and not (callable(want.standardize) or want.needs_documents)
        )

    def add(self, column: pa.Array) -> Iterator[pa.RecordBatch]:
        if self._standard_later:
            values, lengths = pc.ascii_split_whitespace(column).flatten(), _NO_LENGTHS
        else:
            values, lengths = tokens(column, self.want)
        if not self._needs_documents or (lengths == 1).all():
            self._plain.append(values)
        else:
            self._count(values, lengths)
        if sum(map(len, self._plain)) > _MOST_PLAIN:
            self._count_plain()
        if self._size > _MOST_TOKENS:
            self._merge()
            if self._size > _MOST_TOKENS // 2:
                yield from self.end()

    def _count_plain(self) -> None:
        """Count tokens without their rows."""
        if self._plain:
            found = pc.value_counts(pa.chunked_array(self._plain))
            token, n = found.flatten()
            if self._standard_later and isinstance(self.want, Vocabulary):
                token = _standard(token, self.want.standardize)
            self._hold(token, n, n)
            self._plain = []

    def _count(self, values: pa.Array, lengths: np.ndarray) -> None:
        coded = values.dictionary_encode()
        codes = coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        kinds = len(coded.dictionary)
        counts = np.bincount(codes, minlength=kinds)
        owners = np.repeat(np.arange(len(lengths)), lengths)
        # Each token once for each row. numpy's unique() takes several times as long.
        pairs = np.sort(owners * kinds + codes)
        is_first = np.diff(pairs, prepend=-1) > 0
        documents = np.bincount(pairs[is_first] % kinds, minlength=kinds)
        self._hold(coded.dictionary, counts, documents)

    def _hold(self, token: Any, n: Any, documents: Any) -> None:
        self._held.append(pa.table({"token": token, "n": n, "documents": documents}))
        self._size += len(token)

    def state(self) -> bytes:
        return b""

    def _merge(self) -> None:
        table = pa.concat_tables(self._held).group_by("token")
        merged = table.aggregate([("n", "sum"), ("documents", "sum")])
        self._held = [merged.rename_columns(["token", "n", "documents"])]
        self._size = merged.num_rows

    def end(self) -> Iterator[pa.RecordBatch]:
        self._count_plain()
        if not self._held:
            return
        self._merge()
        for batch in self._held[0].to_batches():
            token, n, documents = batch.columns
            nothing = pa.nulls(len(token))
            is_text = pa.types.is_string(token.type) or pa.types.is_large_string(token.type)
            pair = (token, nothing) if is_text else (nothing, token)
            yield _batch(self.place, *pair, n, documents, nothing)
        self._held, self._size = [], 0


class _Moving:
    """Running mean and sum of squared differences over batches of rows.

    Batches are combined with the formula of Chan, Golub and LeVeque, "Updating formulae and a
    pairwise algorithm for computing sample variances" (1979).
    """

    def __init__(self) -> None:
        self.count, self.mean, self.squares = 0, np.zeros(0), np.zeros(0)

    def add(self, rows: np.ndarray) -> None:
        """Add a batch."""
        rows = rows.astype(np.float64, copy=False)
        mean = rows.mean(axis=0)
        self.merge(len(rows), mean, np.square(rows - mean).sum(axis=0))

    def merge(self, count: int, mean: np.ndarray, squares: np.ndarray) -> None:
        """Add another part."""
        if not self.count:
            self.count, self.mean, self.squares = count, mean, squares
        elif count:
            total, apart = self.count + count, mean - self.mean
            self.squares = self.squares + squares + apart**2 * (self.count * count / total)
            self.mean = self.mean + apart * (count / total)
            self.count = total

    def state(self) -> bytes:
        """Return the state as bytes: the axes of a row, then all numbers."""
        shape = np.asarray([self.count, *self.mean.shape], np.int64)
        head = np.asarray([len(shape)], np.int64)
        return b"".join(
            part.tobytes() for part in (head, shape, self.mean.ravel(), self.squares.ravel())
        )


def merged(states: Sequence[bytes]) -> tuple[int, np.ndarray, np.ndarray]:
    """Return count, mean and variance of the parts of all partitions.

    Raises `ValueError`: Their rows have different shapes.
    """
    whole = _Moving()
    for state in states:
        axes = int(np.frombuffer(state, np.int64, 1)[0])
        count, *shape = np.frombuffer(state, np.int64, axes, 8).tolist()
        if count:
            mean, squares = np.frombuffer(state, np.float64, offset=8 * (axes + 1)).reshape(
                2, *shape
            )
            if whole.count and mean.shape != whole.mean.shape:
                msg = f"rows have the shapes {whole.mean.shape} and {mean.shape}"
                raise ValueError(msg)
            whole.merge(count, mean, squares)
    return whole.count, whole.mean, whole.squares / max(whole.count, 1)


def _batch(want: int, *columns: Any) -> pa.RecordBatch:
    arrays = [
        column.cast(field.type) if isinstance(column, pa.Array) else pa.array(column, field.type)
        for column, field in zip(columns, list(PART)[1:], strict=True)
    ]
    wants = pa.array(np.full(len(arrays[0]), want, np.int32))
    return pa.RecordBatch.from_arrays([wants, *arrays], schema=PART)

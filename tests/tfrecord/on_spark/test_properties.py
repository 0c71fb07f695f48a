"""Random schemas and values, both ways, with TensorFlow in between."""

from __future__ import annotations

import os
import shutil
import tempfile

import judge
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import types as sparktypes

floats = st.floats(width=32, allow_nan=False)
ELEMENTS = {
    sparktypes.LongType(): ("i", st.integers(-(2**63), 2**63 - 1)),
    sparktypes.IntegerType(): ("i", st.integers(-(2**31), 2**31 - 1)),
    sparktypes.ShortType(): ("i", st.integers(-(2**15), 2**15 - 1)),
    sparktypes.ByteType(): ("i", st.integers(-128, 127)),
    sparktypes.BooleanType(): ("i", st.booleans()),
    sparktypes.FloatType(): ("f", floats),
    sparktypes.DoubleType(): ("f", floats),
    sparktypes.StringType(): ("b", st.text(max_size=8)),
    sparktypes.BinaryType(): ("b", st.binary(max_size=8).map(bytearray)),
}
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5)
# To shrink a failure would take many more jobs than the time limit allows.
SLOW = settings(
    max_examples=int(os.environ.get("GRIDFLOW_TFRECORD_EXAMPLES", "20")),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)


@st.composite
def frames(draw, most_depth):
    """A schema and rows. Names differ in more than case, as Spark's do."""
    wanted = st.lists(names, min_size=1, max_size=5, unique_by=lambda n: n.lower().casefold())
    fields, kinds, cells = [], [], []
    for name in draw(wanted):
        type_ = draw(st.sampled_from(list(ELEMENTS)))
        kind, values = ELEMENTS[type_]
        for _ in range(draw(st.integers(0, most_depth))):
            type_, values = sparktypes.ArrayType(type_), st.lists(values, max_size=4)
        fields.append(sparktypes.StructField(name, type_))
        kinds.append(kind)
        cells.append(st.none() | values)
    rows = draw(st.lists(st.tuples(*cells), max_size=6))
    return sparktypes.StructType(fields), kinds, rows


def plain(kind, values):
    """The values as protobuf gives them."""
    encode = {
        "i": int,
        "f": float,
        "b": lambda v: v.encode() if isinstance(v, str) else bytes(v),
    }
    return kind, [encode[kind](v) for v in values]


def expected(schema, kinds, row):
    features, lists = {}, {}
    for field, kind, cell in zip(schema, kinds, row, strict=True):
        if cell is None:
            continue
        if not isinstance(field.dataType, sparktypes.ArrayType):
            features[field.name] = plain(kind, [cell])
        elif isinstance(field.dataType.elementType, sparktypes.ArrayType):
            lists[field.name] = [plain(kind, step) for step in cell]
        else:
            features[field.name] = plain(kind, cell)
    return features, lists


def sorted_by_text(items):
    return sorted(items, key=repr)


@pytest.mark.interface
@given(frames(1))
@SLOW
def test_examples_are_what_tensorflow_reads_and_come_back(spark, given_frame):
    schema, kinds, rows = given_frame
    folder = tempfile.mkdtemp()
    try:
        frame = spark.createDataFrame(rows, schema)
        frame.write.format("tfrecord").mode("overwrite").save(folder)
        records = [judge.parsed(record) for record in judge.records(folder)]
        wanted = [expected(schema, kinds, row)[0] for row in rows]
        assert sorted_by_text(sorted(r.items()) for r in records) == sorted_by_text(
            sorted(w.items()) for w in wanted
        )
        back = spark.read.format("tfrecord").schema(schema).load(folder)
        assert sorted_by_text(back.collect()) == sorted_by_text(frame.collect())
    finally:
        shutil.rmtree(folder)


@given(frames(2))
@SLOW
def test_sequences_that_tensorflow_wrote_are_read(spark, given_frame):
    schema, kinds, rows = given_frame
    folder = tempfile.mkdtemp()
    try:
        records = [judge.sequence(*expected(schema, kinds, row)) for row in rows]
        judge.write(folder + "/part-0", records)
        reader = spark.read.format("tfrecord").option("recordType", "SequenceExample")
        back = reader.schema(schema).load(folder).collect()
        assert back == spark.createDataFrame(rows, schema).collect()
        spark.createDataFrame(rows, schema).coalesce(1).write.format("tfrecord").option(
            "recordType", "SequenceExample"
        ).save(folder + "/ours")
        ours = [judge.parsed(r, tf.train.SequenceExample) for r in judge.records(folder + "/ours")]
        assert ours == [judge.parsed(r, tf.train.SequenceExample) for r in records]
    finally:
        shutil.rmtree(folder)


def test_a_data_frame_is_parsed_in_tf_data_without_a_spec_by_hand(spark, tmp_path):
    from gridflow import tfrecord

    frame = spark.range(10).selectExpr(
        "id label",
        "array(cast(id as float), 2f, 3f) x",
        "sequence(0L, id) seen",
        "'n' || id name",
        "if(id = 3, null, id) gap",
    )
    frame.coalesce(1).write.format("tfrecord").save(str(tmp_path / "x"))
    spec = tfrecord.feature_spec(frame, shapes={"x": [3]}, defaults={"gap": -1})
    dataset = tf.data.TFRecordDataset(judge.files(tmp_path / "x")).batch(10)
    batch = next(iter(dataset.map(lambda records: tf.io.parse_example(records, spec))))
    assert batch["label"].numpy().tolist() == list(range(10))
    assert batch["x"].shape == (10, 3)
    assert batch["seen"].row_lengths().numpy().tolist() == list(range(1, 11))
    assert batch["gap"].numpy()[3] == -1
    assert batch["name"].numpy()[9] == b"n9"


def test_sequences_are_parsed_in_tf_data_too(spark, tmp_path):
    from gridflow import tfrecord

    frame = spark.sql("select 1L label, array(array(1f, 2f), array(3f, 4f)) x, array(array('a')) t")
    frame.write.format("tfrecord").option("recordType", "SequenceExample").save(str(tmp_path / "x"))
    context, lists = tfrecord.sequence_feature_spec(frame.schema, shapes={"x": [2]})
    features, steps, _ = tf.io.parse_sequence_example(
        judge.records(tmp_path / "x"), context_features=context, sequence_features=lists
    )
    assert features["label"].numpy().tolist() == [1]
    assert steps["x"].numpy().tolist() == [[[1, 2], [3, 4]]]
    assert steps["t"].to_list() == [[[b"a"]]]

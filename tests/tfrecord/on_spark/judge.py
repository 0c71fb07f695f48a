"""TensorFlow as the judge: files that it writes, and what it reads in ours."""

from __future__ import annotations

import warnings
from pathlib import Path

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import tensorflow as tf


def feature(values):
    """Make a Feature; the kind by the first value."""
    if values is None:
        return tf.train.Feature()
    kind, values = values
    if kind == "i":
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))
    if kind == "f":
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))


def example(**features):
    named = {name: feature(values) for name, values in features.items()}
    return tf.train.Example(features=tf.train.Features(feature=named)).SerializeToString()


def sequence(context, lists):
    steps = {
        name: tf.train.FeatureList(feature=[feature(step) for step in values])
        for name, values in lists.items()
    }
    return tf.train.SequenceExample(
        context=tf.train.Features(feature={n: feature(v) for n, v in context.items()}),
        feature_lists=tf.train.FeatureLists(feature_list=steps),
    ).SerializeToString()


def write(path, records, compression=None):
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for record in records:
            writer.write(record)


def files(folder):
    return sorted(str(path) for path in Path(folder).rglob("part-*"))


def records(folder, compression=None):
    """All records of a folder, as TensorFlow reads them."""
    dataset = tf.data.TFRecordDataset(files(folder), compression_type=compression or "")
    return [record.numpy() for record in dataset]


def value_of(feature):
    kind = feature.WhichOneof("kind")
    return None if kind is None else (kind[0], list(getattr(feature, kind).value))


def parsed(record, message=tf.train.Example):
    parsed = message.FromString(record)
    if message is tf.train.Example:
        return {name: value_of(f) for name, f in parsed.features.feature.items()}
    return (
        {name: value_of(f) for name, f in parsed.context.feature.items()},
        {
            name: [value_of(step) for step in steps.feature]
            for name, steps in parsed.feature_lists.feature_list.items()
        },
    )

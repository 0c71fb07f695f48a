"""Serialized Examples and SequenceExamples with a few bytes changed."""

from __future__ import annotations

import random

#: The names that features have before a mutation changes one.
NAMES = ["a", "b", "key", "", "ü"]


def value(kind, rng):
    count = rng.choice([0, 1, 1, 2, 5])
    if kind == "int64_list":
        return [
            rng.choice([0, 1, -1, 127, 128, 300, 2**31, -(2**63), 2**63 - 1]) for _ in range(count)
        ]
    if kind == "float_list":
        return [rng.choice([0.0, 1.5, -2.25]) for _ in range(count)]
    return [rng.randbytes(rng.randrange(4)) for _ in range(count)]


def fill(feature, rng):
    kind = rng.choice(["int64_list", "float_list", "bytes_list", None])
    if kind:
        getattr(feature, kind).value.extend(value(kind, rng))
        getattr(feature, kind).SetInParent()


def mutate(data, rng):
    data = bytearray(data)
    for _ in range(rng.choice([0, 1, 1, 2, 3])):
        at = rng.randrange(len(data) + 1)
        how = rng.randrange(6)
        if how == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif how == 1 and at < len(data):
            data[at] = rng.choice([0, 1, 2, 7, 8, 10, 13, 18, 26, 0x7F, 0x80, 0xFF, 11, 12])
        elif how == 2:
            data[at:at] = rng.randbytes(rng.randrange(1, 3))
        elif how == 3:
            del data[at : at + rng.randrange(1, 4)]
        elif how == 4:
            part = data[at : at + rng.randrange(1, 12)]
            to = rng.randrange(len(data) + 1)
            data[to:to] = part
        else:
            del data[at:]
    return bytes(data)


def mutants(message_type, seed, count):
    rng = random.Random(seed)
    for _ in range(count):
        message = message_type()
        is_sequence = hasattr(message, "context")
        features = message.context if is_sequence else message.features
        for name in rng.sample(NAMES, rng.randrange(4)):
            fill(features.feature[name], rng)
        if is_sequence:
            for name in rng.sample(["a", "s"], rng.randrange(3)):
                steps = message.feature_lists.feature_list[name]
                for _ in range(rng.randrange(3)):
                    fill(steps.feature.add(), rng)
        data = message.SerializeToString()
        yield mutate(data, rng)

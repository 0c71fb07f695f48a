"""What goes over the wire is one of the messages that both sides know, formed as it has to be."""

from __future__ import annotations

import dataclasses
import functools
import json
import socket
import threading
import typing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridflow._coordinator.environments import environment_failures
from gridflow._spec.cluster import Task
from gridflow._spec.place import Count, Place
from gridflow._wire import child, commands, headers, reports
from gridflow._wire.channel import Channel
from gridflow._wire.failures import TaskFailure
from gridflow._wire.messages import Family
from gridflow.errors import WireError

FAMILIES = {
    "commands": commands.COMMANDS,
    "reports": reports.REPORTS,
    "to child": child.TO_CHILD,
    "from child": child.FROM_CHILD,
    "uploads": headers.UPLOADS,
}
ALL = [(family, each) for family in FAMILIES.values() for each in family._types.values()]
texts, numbers = st.text(max_size=5), st.floats(allow_nan=False)
plain = st.dictionaries(texts, st.one_of(texts, numbers, st.none(), st.booleans()), max_size=3)
failures = st.builds(
    TaskFailure, task=texts, host=texts, kind=st.just("exit"), summary=texts, signal=texts
)
places = st.builds(Place, *[st.integers(0, 9)] * 3)


def values_of(hint):
    """Return a strategy for the values of a field."""
    known = {
        str: texts,
        bytes: st.binary(max_size=5),
        int: st.integers(-9, 9),
        float: numbers,
        bool: st.booleans(),
        Place: places,
        TaskFailure: failures,
        type(None): st.none(),
        typing.Any: st.one_of(texts, plain),
    }
    if hint in known:
        return known[hint]
    if hint == Count:
        return st.integers(0, 9)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is list:
        return st.lists(values_of(arguments[0]), max_size=3)
    if origin is tuple and ... not in arguments:
        return st.tuples(*map(values_of, arguments))
    if origin is tuple:
        return st.lists(values_of(arguments[0]), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(texts, values_of(arguments[1]), max_size=2)
    return st.one_of([values_of(each) for each in arguments])


@functools.cache
def messages_of(kind):
    hints = typing.get_type_hints(kind, include_extras=True)
    fields = {each.name: values_of(hints[each.name]) for each in dataclasses.fields(kind)}
    return st.builds(kind, **fields)


@pytest.mark.parametrize(("family", "kind"), ALL, ids=lambda each: getattr(each, "kind", ""))
@given(data=st.data())
@settings(max_examples=20)
def test_every_message_comes_back_as_it_was(family, kind, data):
    message = data.draw(messages_of(kind))
    assert family.decode(json.loads(json.dumps(family.encode(message)))) == message


@pytest.mark.parametrize("name", FAMILIES)
def test_kinds_are_names_of_one_message_each(name):
    known = FAMILIES[name]._types
    assert len(known) == len({each.__name__ for each in known.values()})
    assert all(kind == each.kind for kind, each in known.items())


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (
            {"kind": "dance"},
            "sent an unknown message: 'dance'; known: .*clear",
        ),
        ({}, "sent an unknown message: None"),
        ({"kind": "clear", "generation": 1}, "ill-formed 'clear': .*restart"),
        (
            {"kind": "clear", "generation": "1", "restart": True},
            "ill-formed 'clear': .*genera",
        ),
        ({"kind": "close", "in": 5}, "sent 'close' with unknown fields: in"),
    ],
)
def test_what_is_no_message_is_named(data, words):
    with pytest.raises(WireError, match=words) as caught:
        commands.COMMANDS.decode(data)
    assert str(caught.value).startswith("the coordinator sent")


def test_a_side_sends_what_its_family_has():
    with pytest.raises(WireError, match="the coordinator can't send a Leave"):
        commands.COMMANDS.encode(child.Leave())
    assert isinstance(commands.COMMANDS, Family)


def test_what_comes_through_a_channel_is_looked_at_too():
    ours, theirs = Channel.pair()
    their_end = Channel(theirs, child.FROM_CHILD, child.TO_CHILD)
    ours.send(child.Leave())
    assert next(their_end.receive()) == child.Leave()
    their_end.send(child.Hello(7))
    theirs.sendall(b'{"kind": "hello", "pid": "seven"}\n')
    received = ours.receive()
    assert next(received) == child.Hello(7)
    with pytest.raises(WireError, match="the training process sent an ill-formed 'hello'"):
        next(received)
    theirs.shutdown(socket.SHUT_RDWR)
    ours.close()
    their_end.close()


@pytest.mark.parametrize(
    "line", [b"[" * 100_000, b"9" * 5000, b"\xff\xfe", b"[1]", b"5"], ids=lambda each: each[:3]
)
def test_a_line_that_is_no_message_is_an_error_of_the_wire(line):
    ours, theirs = Channel.pair()
    with theirs:
        sender = threading.Thread(target=theirs.sendall, args=(line + b"\n",))
        sender.start()
        with pytest.raises(WireError, match="the training process sent"):
            next(ours.receive())
        sender.join()
    ours.close()


def test_another_version_of_gridflow_on_an_executor_is_named():
    versions = {"python": "3.11.7", "tensorflow": "2.21.0", "gridflow": "0.0.1"}
    members, ours = {Task("worker", 0): ("a", versions)}, {"gridflow": "0.1.0"}
    (failure,) = environment_failures(members, 0, needs=("tensorflow",), driver=ours)
    assert (failure.task, failure.host, failure.kind) == ("worker:0", "a", "environment")
    assert failure.summary == "it has gridflow 0.0.1, but the driver has 0.1.0"

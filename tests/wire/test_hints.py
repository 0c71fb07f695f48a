"""What is known of causes by their words."""

from __future__ import annotations

import signal

import pytest

from gridflow._wire.failures import hint_for

APART = (
    "InternalError: Collective ops is aborted by: Collective instance 382 expected type 0 and "
    "data_type 1 but got type 2 and data_type 1"
)


def test_ranks_in_different_operations_are_no_echo_of_one_that_is_gone():
    for kind in ("InternalError", "AbortedError"):
        hint, is_echo = hint_for(kind, APART)
        assert not is_echo
        assert "ctx.broadcast(value)" in hint
    assert hint_for("AbortedError", "Collective ops is aborted by: Socket closed") == ("", True)


def test_an_abort_of_gloo_is_told_from_its_greeting():
    greeting = (
        "[Gloo] Rank 1 is connected to 1 peer ranks. Expected number of connected peer ranks is : 1"
    )
    apart = (
        "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n"
        "  what():  [enforce fail at external/gloo/gloo/transport/tcp/pair.cc:459] "
        "op.preamble.length <= op.nbytes. 48 vs 4. Received data size doesn't match expected size. "
        "Is there a distributed collective mismatch in your code?"
    )
    hint, is_echo = hint_for("", f"{greeting}\n{apart}", -signal.SIGABRT)
    assert not is_echo
    assert "ctx.broadcast(value)" in hint
    hint, is_echo = hint_for("", f"{greeting}\nterminate called", -signal.SIGABRT)
    assert not is_echo
    assert "native code aborted" in hint
    lost = "[gloo/transport/tcp/pair.cc:545] Connection closed by peer [127.0.0.1]:9644"
    assert hint_for("", f"{greeting}\n{lost}", -signal.SIGABRT) == ("", True)


@pytest.mark.parametrize(
    "words",
    [
        "BlockingIOError: [Errno 11] Unable to synchronously create file (unable to lock file)",
        "FileExistsError: [Errno 17] File exists: '/shared/logs'",
        "zipfile.BadZipFile: Bad CRC-32 for file 'model.weights.h5'",
        "OSError: Unable to synchronously open file (file signature not found)",
    ],
)
def test_files_that_several_ranks_write_have_a_hint(words):
    hint, is_echo = hint_for(words.partition(":")[0], words)
    assert not is_echo
    assert "several ranks" in hint
    assert "ctx.barrier()" in hint


@pytest.mark.parametrize(
    "words",
    [
        "PicklingError: Can't pickle <function square>: attribute lookup square on __main__ failed",
        "AttributeError: Can't get attribute 'square' on <module '__main__' from '/a/main.py'>",
    ],
)
def test_what_multiprocessing_looks_for_in_the_script_is_named(words):
    hint, is_echo = hint_for(words.partition(":")[0], words)
    assert not is_echo
    assert "can't find 'square' there" in hint


def test_a_type_that_tensorflow_does_not_send_is_named():
    words = (
        "InvalidArgumentError: Value for attr 'T' of bfloat16 is not in the list of allowed values:"
        " bool, float, half, double, int32, int64\n\t; NodeDef: {{node CollectiveBcastSend}}"
    )
    hint, is_echo = hint_for("InvalidArgumentError", words)
    assert not is_echo
    assert "variables of bfloat16" in hint
    assert "mixed_bfloat16" in hint
    assert not hint_for("InvalidArgumentError", words.partition(";")[0])[0]  # some other operation

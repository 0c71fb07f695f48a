"""Memory that a feeder and a node share: theirs alone."""

from __future__ import annotations

from gridflow.compat.tfos import _memory


def test_only_the_memory_that_was_offered_is_read(tmp_path, no_leaks):
    lent, other = _memory.Lent(2, 1 << 16), _memory.Lent(2, 1 << 16)
    number, place = lent.take(5)
    lent.view(place)[:] = b"there"
    offer = lent.offer
    found = _memory.borrowed(offer)
    assert (number, bytes(found[place]), found.readonly) == (1, b"there", True)
    with open(tmp_path / "file", "wb+") as file:
        file.write(bytes(1 << 20))
        for wrong in (
            {"token": other.offer["token"]},
            {"file": other.offer["file"]},
            {"size": offer["size"] + 1},
            {"file": file.fileno()},
            {"file": 99_999},
            {"process": 1 << 30},
        ):
            assert _memory.borrowed({**offer, **wrong}) is None
    assert lent.take((1 << 16) + 1) is None
    assert lent.take(1 << 16) is not None
    assert lent.take(1) is None
    lent.close()
    other.close()
    assert _memory.borrowed(offer) is None
    assert bytes(found[place]) == b"there"  # who has it keeps it

"""Methods that several patches concern: each is replaced once, and their order is declared."""

from __future__ import annotations

import pytest

from gridflow._keras.patches.methods import Layer, wrap
from gridflow._keras.patches.private_parts import MissingPart


def owner_of(calls):
    """Return a class that notes its calls."""

    class Base:
        def fit(self, x, *, epochs=1):
            """Fit."""
            calls.append(("fit", x, epochs))
            return x

    class Owner(Base):
        pass

    return Owner


def noting(name, calls):
    """Return a wrapper that notes when it is entered and left."""

    def wrapper(original, self, *args, **kwargs):
        calls.append(name)
        result = original(self, *args, **kwargs)
        calls.append(f"{name} left")
        return result

    return wrapper


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
def test_the_order_of_wrappers_is_that_of_their_layers(order):
    calls = []
    owner = owner_of(calls)
    layers = (Layer.CHECK, Layer.DEADLINES, Layer.ROWS, Layer.BUG)
    for place in order:
        wrap(owner, "fit", noting(layers[place].name, calls), layers[place])
    assert owner().fit(7, epochs=2) == 7
    assert calls[:5] == ["CHECK", "DEADLINES", "ROWS", "BUG", ("fit", 7, 2)]
    assert calls[5:] == [f"{each} left" for each in reversed(calls[:4])]


def test_within_a_layer_the_last_one_is_the_outermost():
    calls = []
    owner = owner_of(calls)
    for name in ("first", "second"):
        wrap(owner, "fit", noting(name, calls), Layer.BUG)
    owner().fit(1)
    assert calls[:2] == ["second", "first"]


def test_a_method_is_replaced_once_and_keeps_its_name_and_signature():
    owner = owner_of([])
    inherited = owner.fit
    wrap(owner, "fit", noting("one", []), Layer.BUG)
    replaced = owner.fit
    wrap(owner, "fit", noting("two", []), Layer.CHECK)
    assert owner.fit is replaced
    assert replaced.__wrapped__ is inherited
    assert replaced.__doc__ == "Fit."
    assert owner.__mro__[1].fit is inherited


def test_a_static_method_stays_static():
    class Owner:
        @staticmethod
        def zip(*given):
            return given

    for number in (1, 2):
        wrap(Owner, "zip", lambda original, *args, n=number: (n, *original(*args)), Layer.CHECK)
    assert Owner.zip("a") == Owner().zip("a") == (2, 1, "a")


def test_a_method_that_is_missing_is_a_part_that_is_missing():
    with pytest.raises(MissingPart, match="predict"):
        wrap(owner_of([]), "predict", noting("one", []), Layer.BUG)

"""What is imported to stay is no matter for the collector of garbage.

TensorFlow, Spark and Keras bring millions of objects. Each full collection walks them all, a second
of every few tests, and finds nothing.
"""

import gc
import sys

import pytest

#: So many modules more than there were are worth setting aside.
_MANY = 300
_modules = {"seen": 0}


def _set_aside():
    if len(sys.modules) < _modules["seen"] + _MANY:
        return
    _modules["seen"] = len(sys.modules)
    gc.collect()  # what is garbage by now goes, with whatever it holds
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish():
    _set_aside()


@pytest.hookimpl(trylast=True)
def pytest_runtest_logfinish():
    _set_aside()

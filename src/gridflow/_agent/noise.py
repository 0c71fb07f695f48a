"""Keeps meaningless messages of TensorFlow's libraries out of the logs. Pure.

Some are printed before a log level can be set; others are harmless "errors": a GPU build looks for
a driver wherever it runs, and reports a missing one as an error. Only lines of TensorFlow's own C++
files that begin with known words are left out; every other error is passed on.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from gridflow._spec.gpus import VISIBLE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: TensorFlow's own variable: 0 asks for all messages. JAX sets 1 wherever it is imported.
LEVEL_VARIABLE: Final = "TF_CPP_MIN_LOG_LEVEL"
_TALKATIVE: Final = "0"
_NO_GPUS: Final = ("", "-1", "none", "void", "NoDevFiles")

#: As absl begins a line (``E0000 00:00:1795349661.766612   18460 port.cc:153] ``), and as
#: TensorFlow does (``2026-11-22 12:21:01.766612: I tensorflow/core/util/port.cc:153] ``).
_BEGIN: Final = (
    r"^(?:[IWE]\d{4} [\d:.]+ +\d+ |\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWE] )[\w./]+\.cc:\d+\] "
)
_ALWAYS: Final = (
    r"oneDNN custom operations are on\.",
    r"This TensorFlow binary is optimized ",
    r"Unable to register cu\w+ factory: ",
    r"computation placer already registered\.",
)
#: True and harmless for a task without a GPU. With a GPU, they say why it can't be used.
_WITHOUT_GPUS: Final = (
    r"failed call to cuInit: ",
    r"INTERNAL: CUDA Runtime error: Failed call to cudaGetRuntimeVersion: ",
    r"Could not find cuda drivers on your machine, GPU will not be used\.",
    r"Cannot dlopen some GPU libraries\.",
)
_WHOLE: Final = (
    r"^WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR$",
    r"^To enable the following instructions: .* rebuild TensorFlow with the appropriate ",
)


def silencer(environment: Mapping[str, str]) -> Callable[[list[str]], list[str]]:
    """Return a function that removes the meaningless lines from a process's output.

    `environment`: The process's. Nothing is removed if `LEVEL_VARIABLE` asks for all messages.
    """
    if environment.get(LEVEL_VARIABLE) == _TALKATIVE:
        return lambda lines: lines
    begun = list(_ALWAYS)
    if environment.get(VISIBLE, "all") in _NO_GPUS:
        begun += _WITHOUT_GPUS
    noise = re.compile("|".join((f"{_BEGIN}(?:{'|'.join(begun)})", *_WHOLE)))
    return lambda lines: [line for line in lines if noise.match(line) is None]

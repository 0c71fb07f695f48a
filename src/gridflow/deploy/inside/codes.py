"""The exit codes of `gridflow launch` that are its own; all others are the program's.

From 1 to 127 a failure is permanent, from 128 it is worth another try, as after a signal.
"""

from __future__ import annotations

from typing import Final

#: What a shell adds to the number of the signal that ended a process.
SIGNALLED: Final = 128
#: sysexits.h, EX_USAGE: the job is wrong.
USAGE: Final = 64
#: Another task has failed for good, so this one was ended, too.
GIVEN_UP: Final = 113
#: The deadline has passed; timeout(1) ends so, too.
OVERDUE: Final = 124
NOT_EXECUTABLE: Final = 126
NOT_FOUND: Final = 127
#: sysexits.h, EX_UNAVAILABLE: the program failed because a peer was gone.
PEER_LOST: Final = SIGNALLED + 69
#: sysexits.h, EX_TEMPFAIL: a peer's name never resolved.
TRY_AGAIN: Final = SIGNALLED + 75

"""A lease on a folder of checkpoints in HDFS or an object store: one job at a time owns it.

These have no locks, and pyarrow can't create a file exclusively there. So a lease consists of
files, where T is the owner's token (a number that only grows) and J its job:

    owner-T-J.claim   J wants the folder, or has it; rewritten while J is alive
    owner-T-J.won     J has it; owners with smaller tokens have lost it
    owner-T-J.json    the checkpoints that count: those taken over, and those with T-J in the name
    owner-T-J.done    J has succeeded: none counts any more

A claim is dead when its content hasn't changed for `LEASE_SECONDS` while another job watched it:
no clocks are compared. A job that wants the folder writes a claim, and then lists the folder. It
has won if all other claims are dead and have smaller tokens. Of two that claim at the same moment,
the second to write sees the first, so at most one wins, however long either of them stands still.

A job that lost the folder without noticing (its process was frozen, its network cut) may still
write checkpoints. They don't count: its successor's record doesn't name them. It looks for a
successor after each one, before it reports the checkpoint as stored.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gridflow._features.checkpoints.owner import about, taken, whose
from gridflow._files import transfer
from gridflow.errors import GridflowError, JobExists

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gridflow._files.systems import Where

#: How long a claim must stay unchanged before another job takes over its folder.
LEASE_SECONDS: Final = 30.0
#: How often a claim is rewritten, and checked, in that time.
_BEATS, _LOOKS = 6, 30
_OWNER_FILE: Final = re.compile(r"owner-(\d{8,})-([^.]+)\.(claim|won|json|done)")
#: In a checkpoint's name: its owner, and how many that one had written before.
_MARK: Final = re.compile(r"\.(\d{8,})-([^.]+)\.\d{6,}(?=\.|$)")


class Owner(NamedTuple):
    """A past, present or would-be owner of a folder. Later ones are greater."""

    token: int
    job: str

    def __str__(self) -> str:
        return f"{self.token:08}-{self.job}"


def _owner(name: str) -> Owner | None:
    """Return the owner of a file; None if it has none."""
    found = _OWNER_FILE.fullmatch(name)
    return Owner(int(found[1]), found[2]) if found else None


def _owners(names: Iterable[str], kind: str = "") -> set[Owner]:
    """Return the owners that have a file of a kind, or any file."""
    return {owner for name in names if name.endswith(kind) and (owner := _owner(name))}


def without_mark(name: str) -> str:
    """Return a checkpoint's name without its owner's mark."""
    return _MARK.sub("", name)


class Lease:
    """A folder in another file system, leased against other jobs until `release`.

    `job`: The job's unique id; refused jobs are told it.
    `say`: Tells the user.
    `seconds`: How long a claim must stay unchanged to count as dead. Default: `LEASE_SECONDS`.
    Raises `JobExists`: Another live job has it.
    Raises `GridflowError`: The folder can't be read or written.
    `accepted`: Checkpoints of earlier owners that count, with their other files.
    `lost`: Set once another job has taken over the folder.
    """

    def __init__(
        self, folder: Where, job: str, say: Callable[[str], None], seconds: float | None = None
    ) -> None:
        self.lost: JobExists | None = None
        self.place = folder.complete(folder.path)
        self._folder, self._job, self._say = folder, job, say
        self._seconds = LEASE_SECONDS if seconds is None else seconds
        self._lock = threading.RLock()
        self._beat = self._written = 0
        self._closed = threading.Event()
        try:
            self.owner = self._win()
            try:
                self.accepted = self._take_over()
            except BaseException:
                self._withdraw(self.owner)
                raise
        except JobExists:
            raise
        except GridflowError as error:
            raise GridflowError(f"can't use checkpoint_dir={self.place!r}: {error}") from error
        self._thread = threading.Thread(target=self._keep, name="gridflow-lease", daemon=True)
        self._thread.start()

    def new_mark(self) -> str:
        """Return the mark in the names of this owner's next files, before the suffix."""
        self._written += 1
        return f".{self.owner}.{self._written:06}"

    def check(self) -> list[str]:
        """Return the names in the folder.

        A successor finds everything that this owner wrote before the call.

        Raises `JobExists`: Another job has taken over the folder.
        Raises `GridflowError`: The folder can't be listed.
        """
        with self._lock:
            if self.lost is not None:
                raise self.lost
            names = self._names()
            if not names:
                transfer.check_folder(self._folder)  # or a share may not be mounted just now
            self._look_for_successor(names, "claim", "won", "json")
            return names

    def finish(self) -> None:
        """Note that the job has succeeded: its checkpoints no longer count."""
        self.check()
        self._write("done", about(self._job))

    def release(self, *, is_empty: bool) -> None:
        """Release the folder for other jobs at once.

        `is_empty`: Whether no checkpoint is left.
        """
        self._closed.set()
        self._thread.join(self._seconds)
        kinds = ["won", "claim"]  # the claim last: once it is gone the folder is free
        if is_empty and self.lost is None:
            kinds = ["json", "done", *kinds]
        self._delete(*(f"owner-{self.owner}.{kind}" for kind in kinds))

    # ---------------------------------------------------------------------------------------------

    def _win(self) -> Owner:
        """Wait until no other owner is alive; raise if one is."""
        watch = _Watch(self._seconds)
        mine: Owner | None = None
        has_said = False
        try:
            while True:
                names = self._names()
                waiting = self._living(watch, _owners(names, "claim"), mine)
                top = max((each.token for each in _owners(names) if each != mine), default=0)
                if mine is not None and not waiting and mine.token > top:
                    self.owner = mine
                    self._write("won", about(self._job))
                    return mine
                if mine is not None and (not waiting or min(waiting) < mine):
                    self._withdraw(mine)  # the other goes first
                    mine = None
                if mine is None and not waiting:
                    mine = Owner(top + 1, self._job)
                    self._write_claim(mine)
                    continue
                if not has_said and mine is None:
                    has_said = True
                    who = whose(self._read(f"owner-{min(waiting)}.claim"), min(waiting).job)
                    self._say(
                        f"waiting: checkpoint_dir={self.place!r} belongs to {who}. This job takes "
                        f"it over if that one shows no sign of life for {self._seconds:g} seconds"
                    )
                time.sleep(self._seconds / _LOOKS)
        except BaseException:
            if mine is not None:
                self._withdraw(mine)
            raise

    def _living(self, watch: _Watch, claims: set[Owner], mine: Owner | None) -> list[Owner]:
        """Return the other owners that may be alive; raise if one is."""
        for other in watch.look(claims, mine):
            content = self._read(f"owner-{other}.claim")
            if watch.has_changed(other, content):
                raise taken(self.place, whose(content, other.job))
        return watch.waiting()

    def _withdraw(self, owner: Owner) -> None:
        with contextlib.suppress(GridflowError):  # it dies
            self._delete(f"owner-{owner}.won", f"owner-{owner}.claim")

    def _take_over(self) -> tuple[str, ...]:
        """Record which checkpoints count from now on; return them."""
        names = self._names()
        self._look_for_successor(names, "claim", "won")
        accepted = tuple(sorted(self._that_count(names)))
        self._write("json", {**about(self._job), "accepted": accepted})
        self._beat = 1  # for those who watch the claim
        self._write_claim(self.owner)
        self.check()
        dead = {each for each in names if (owner := _owner(each)) and owner < self.owner}
        with contextlib.suppress(GridflowError):  # the next one deletes them, and this one's
            self._delete(*dead, *(each for each in names if each.startswith(".incoming-")))
        return accepted

    def _that_count(self, names: list[str]) -> set[str]:
        """Return the checkpoints that count, with their other files."""
        found = {name for name in names if name.startswith("checkpoint-")}
        before = max(_owners(names, "json"), default=None)
        if before is None:  # a gridflow without owners wrote them
            return {name for name in found if not _MARK.search(name)}
        if before in _owners(names, "done"):
            return set()
        record = transfer.read(self._at(f"owner-{before}.json"))
        try:
            accepted = {str(name) for name in json.loads(record)["accepted"]}
        except (ValueError, KeyError, TypeError) as error:
            raise GridflowError(
                f"owner-{before}.json, which lists the checkpoints that count, is damaged. Delete "
                "the folder to start over."
            ) from error
        return {name for name in found if name in accepted or f".{before}." in name}

    def _look_for_successor(self, names: list[str], *kinds: str) -> None:
        """Raise if another job has taken over the folder."""
        later = [each for each in _owners(names, "won") if each > self.owner]
        if not later and {f"owner-{self.owner}.{kind}" for kind in kinds} <= {*names}:
            return
        who = "another job, which has ended since,"
        if later:
            who = whose(self._read(f"owner-{max(later)}.won"), max(later).job)
        self.lost = JobExists(
            f"{who[0].upper()}{who[1:]} has taken over checkpoint_dir={self.place!r}: it saw no "
            f"sign of life of job {self._job} there for {self._seconds:g} seconds. This job "
            "ends, and its later checkpoints don't count."
        )
        raise self.lost

    def _keep(self) -> None:
        """Keep showing that this owner is alive."""
        is_refused = False
        while not self._closed.wait(self._seconds / _BEATS):
            try:
                with self._lock:
                    self.check()
                    self._beat += 1
                    self._write_claim(self.owner)
                is_refused = False
            except JobExists:
                return
            except GridflowError as error:
                if not is_refused:
                    self._say(f"can't renew the lease on checkpoint_dir=: {error}")
                is_refused = True

    def _write_claim(self, owner: Owner) -> None:
        # In place: a file that is renamed over it would let it vanish for a moment on HDFS.
        content = {**about(self._job), "beat": self._beat}
        transfer.write(self._at(f"owner-{owner}.claim"), content, in_place=True)

    def _write(self, kind: str, content: dict[str, Any]) -> None:
        transfer.write(self._at(f"owner-{self.owner}.{kind}"), content)

    def _read(self, name: str) -> bytes:
        """Return a file's content; empty if it is gone, or being written."""
        try:
            return transfer.read(self._at(name))
        except GridflowError:
            return b""

    def _delete(self, *names: str) -> None:
        problem: GridflowError | None = None
        for name in names:
            try:
                transfer.delete(self._at(name))
            except GridflowError as error:
                problem = problem or error
        if problem is not None:
            raise problem

    def _names(self) -> list[str]:
        return transfer.names_in(self._folder)

    def _at(self, name: str) -> Where:
        return self._folder.at(f"{self._folder.path.rstrip('/')}/{name}")


class _Watch:
    """Claims of others, and for how long each has been unchanged."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._contents: dict[Owner, bytes] = {}
        self._unchanged: dict[Owner, float] = {}
        self._looked_at = time.monotonic()

    def look(self, there: set[Owner], mine: Owner | None) -> list[Owner]:
        """Start another check of the existing claims of others."""
        now = time.monotonic()
        # A late check, after this process stood still, doesn't show that the others did.
        passed = min(now - self._looked_at, 2 * self._seconds / _LOOKS)
        self._looked_at = now
        before, others = self._unchanged, there - {mine}
        self._unchanged = {each: before.get(each, -passed) + passed for each in others}
        return sorted(self._unchanged)

    def has_changed(self, owner: Owner, content: bytes) -> bool:
        """Note a claim's content; return whether it has changed."""
        before = self._contents.get(owner)
        if content:
            self._contents[owner] = content
        return bool(before and content and before != content)

    def waiting(self) -> list[Owner]:
        """Return those that aren't known to be dead."""
        return [each for each, seconds in self._unchanged.items() if seconds < self._seconds]

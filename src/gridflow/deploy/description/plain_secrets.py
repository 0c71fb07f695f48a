"""Secrets in plain sight: by the names of variables and options, and by how values look.

A description names secrets and never holds one, as documents are stored, sent and printed. What
this finds is what people usually write; a secret under an innocent name stays unseen.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: Words that end so mean a secret, alone or glued to what it is for: PGPASSWORD, AUTHTOKEN.
_ENDS: Final = ("PASSWORD", "PASSWD", "PASSPHRASE", "SECRET", "TOKEN", "CREDENTIAL", "CREDENTIALS")
_WORDS: Final = frozenset({"PASS", "PWD", "APIKEY", "SECRETKEY", "ACCESSKEY", "PRIVATEKEY", "PAT"})
_KEY_BEFORE: Final = frozenset(
    {"API", "ACCESS", "PRIVATE", "SECRET", "ACCOUNT", "AUTH", "ENCRYPTION", "SIGNING", "SSH", "JWT"}
)
#: Tokens of texts, which language models have, and the working directory.
_INNOCENT: Final = re.compile(
    r"(OLD)?PWD|(.*_)?(BOS|EOS|PAD|UNK|SEP|CLS|MASK|START|END|STOP|SPECIAL|NEXT|PER|MAX|MIN|NUM)"
    r"_TOKEN|TOKENS?_(PER|LIMIT|COUNT|LENGTH|BUDGET|SIZE)(_.*)?|GOOGLE_APPLICATION_CREDENTIALS"
)
#: Endings that say the variable holds a place, not the secret itself.
_PLACES: Final = ("_FILE", "_PATH", "_DIR", "_URL", "_NAME", "_TTL", "_REGION")
_VALUES: Final = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"
    # GitHub, GitLab, Hugging Face, Slack, Stripe, Google
    r"|\b(?:gh[pousr]_|github_pat_|glpat-|hf_|xox[abprs]-|[sr]k_live_)[\w-]{20,}|\bAIza[\w-]{35}\b"
    # user:password@host, but for a password that the shell fills in
    r"|\b[a-z][a-z0-9+.-]*://[^\s/:@]*:(?!\$)[^\s/@]+@"
)
_OPTION: Final = re.compile(r"--?(?P<name>[A-Za-z][\w.-]*)(?:=(?P<value>.*))?\Z", re.DOTALL)
_ASSIGNMENT: Final = re.compile(r"(?P<name>[A-Za-z_]\w*)=(?P<value>.*)\Z", re.DOTALL)
#: What stands in a shell's command line: words, with their quotes.
_SHELL_WORD: Final = re.compile(r"""(?:[^\s"';&|()]|"[^"]*"|'[^']*')+""")
HIDDEN: Final = "…"


def holds_secret(name: str) -> bool:
    """Return whether a variable or option of this name usually holds a secret itself."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+", "_", name).upper().strip("_")
    if _INNOCENT.fullmatch(words) or words.endswith(_PLACES):
        return False
    parts = words.split("_")
    if any(part in _WORDS or part.endswith(_ENDS) for part in parts):
        return True
    return any(a in _KEY_BEFORE and b == "KEY" for a, b in pairwise(parts))


def is_secret(value: str) -> bool:
    """Return whether a value is a secret by its looks: a key, a token, a password in a URL."""
    return bool(_VALUES.search(value))


def in_words(words: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yield place and name of every secret among the words of a command line.

    ``--token=x``, ``--token x`` and ``TOKEN=x``, each also inside a text for a shell.
    """
    words = list(words)
    for index, word in enumerate(words):
        names = [name for name, place in _named([word, *words[index + 1 : index + 2]]) if not place]
        if " " in word.strip():
            names += [name for name, _ in _named(_SHELL_WORD.findall(word))]
        if is_secret(word):
            names.append("a value")
        yield from ((index, name) for name in dict.fromkeys(names))


def _named(words: list[str]) -> Iterator[tuple[str, int]]:
    for index, word in enumerate(words):
        found = _OPTION.match(word) or _ASSIGNMENT.match(word)
        if not found or not holds_secret(found["name"]):
            continue
        value = found["value"]
        if value is None:
            value = words[index + 1] if index + 1 < len(words) else ""
            value = "" if value.startswith("-") else value
        if _is_plain(value):
            yield word.partition("=")[0], index


def _is_plain(value: str) -> bool:
    """Tell a secret itself from a place of one, and from what a shell or a program fills in."""
    bare = value.strip("\"'")
    return bool(bare) and not bare.startswith(("/", "./", "$", "${", "env:", "file:"))


def hide(assignment: str) -> str:
    """Return an ``a.b=value`` of a command line, the value hidden where it may be a secret."""
    path, sign, value = assignment.partition("=")
    steps = [step.strip('"') for step in path.split(".")]
    inside = {"env", "args", "command", "conf", "secrets", "credentials", "overrides"} & set(steps)
    whole = value.strip()[:1] in {"{", "["}
    if sign and (inside or whole or is_secret(value) or any(map(holds_secret, steps))):
        return f"{path}={HIDDEN}"
    return assignment

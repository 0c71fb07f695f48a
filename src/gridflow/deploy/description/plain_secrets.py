"""Finds secrets in plain text, by the names of variables and options and by the form of values.

A description refers to secrets and never contains one, because documents are stored, sent and
printed. This is a guess by common patterns (docs/job-files.md says so): it misses a secret with an
inconspicuous name.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: Names with these endings are secrets, with or without a prefix: PGPASSWORD, AUTHTOKEN.
_ENDS: Final = (
    *("PASSWORD", "PASSWORDS", "PASSWD", "PASSPHRASE", "PASSCODE"),
    *("SECRET", "TOKEN", "CREDENTIAL", "CREDENTIALS"),
)
_WORDS: Final = frozenset(
    {
        *("PASS", "PASSIN", "PASSOUT", "PW", "PWD", "PAT", "COOKIE"),
        *("APIKEY", "SECRETKEY", "ACCESSKEY", "PRIVATEKEY"),
    }
)
_KEY_BEFORE: Final = frozenset(
    {"API", "ACCESS", "PRIVATE", "SECRET", "ACCOUNT", "AUTH", "ENCRYPTION", "SIGNING", "SSH", "JWT"}
)
#: Tokens of language models, and the working directory.
_INNOCENT: Final = re.compile(
    r"(OLD)?PWD|(.*_)?(BOS|EOS|PAD|UNK|SEP|CLS|MASK|START|END|STOP|SPECIAL|NEXT|PER|MAX|MIN|NUM)"
    r"_TOKEN|TOKENS?_(PER|LIMIT|COUNT|LENGTH|BUDGET|SIZE)(_.*)?|GOOGLE_APPLICATION_CREDENTIALS"
)
#: Endings of variables that contain a location, not the secret itself.
_PLACES: Final = ("_FILE", "_PATH", "_DIR", "_URL", "_NAME", "_TTL", "_REGION")
#: Each looks only so far ahead: the time for a long text is in proportion to its length.
_LOOKS: Final = (
    # Private keys, also in base64
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY",
    r"LS0tLS1CRUdJTi(?:BQUklW|BSU0Eg|BFQyBQ|BPUEVO|BFTkNS|BEU0Eg)",
    r"\bAGE-SECRET-KEY-1",
    # AWS; Google: keys of APIs, OAuth, and service accounts' files in base64
    r"\b(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}\b",
    r"\bAIza[\w-]{35}|\bya29\.[\w-]{20}|\bGOCSPX-[\w-]{20}",
    r"\beyJ0eXBlIjo(?:gInNlcnZpY2Vf|ic2VydmljZV9)",
    # GitHub, GitLab, Slack, Docker Hub, Vault
    r"\b(?:gh[pousr]_|github_pat_|dckr_pat_)\w{20}|\bgl[a-z]{1,7}-[\w-]{20}",
    r"\bxox[abceoprs](?:\.xox[bp])?-[\w-]{10}|\bxapp-[\w-]{20}|\bhv[sbr]\.[\w-]{20}",
    # Hugging Face, OpenAI and Anthropic, Databricks
    r"\b(?:hf|api_org)_[A-Za-z0-9]{20}|\bdapi[0-9a-f]{32}",
    r"\bsk-(?=[\w-]{0,200}\d)(?=[\w-]{0,200}[A-Z])[\w-]{20}",
    # Stripe, npm, PyPI, DigitalOcean, SendGrid
    r"\b[sr]k_(?:live|test)_\w{16}|\bnpm_[A-Za-z0-9]{30}|\bpypi-[\w-]{30}",
    r"\bdo[por]_v1_[0-9a-f]{32}|\bSG\.[\w-]{16,64}\.[\w-]{16}",
    # JSON web tokens, signed or encrypted, and headers that hold a token or a password
    r"(?<![\w-])eyJ[\w-]{10,}\.(?:eyJ[\w-]{8,}\.|[\w-]*\.[\w-]{8})",
    r"(?i:\bauthorization[\"']?\s?[:=]\s?[\"']?(?:bearer|basic|token|apikey)\s{1,9})[^\s$<{]{4}",
    r"(?i:\bbearer\s{1,9})(?=\S{0,200}\d)[\w.~+/=-]{16}",
    # Cookies, and lines of a .netrc
    r"(?i:\bcookie[\"']?\s{0,9}[:=]\s{0,9}[\"']?)[\w.-]{1,99}=(?![$<{*])[^\s;]{4}",
    r"(?i:\blogin\s{1,9}\S{1,200}\s{1,9}password\s{1,9})(?![$<{*])\S",
    # Web hooks, and addresses that are signed
    r"\bhooks\.slack(?:-gov)?\.com/(?:services|workflows|triggers)/\w",
    r"\bdiscord(?:app)?\.com/api/webhooks/\d|\bwebhook\.office\.com/webhookb2/\w",
    r"\bapi\.telegram\.org/bot\d",
    r"(?i:[?&;](?:sig|x-amz-signature|x-goog-signature)=)[\w%+/=-]{16}",
    r"(?i:\bSharedAccessSignature\s{0,9}=\s{0,9})[^\s$]",
    # user:password@host, except for placeholders; token@host
    r"(?i:\b[a-z][a-z0-9+.-]{0,30}://)[^\s/:@]{0,200}:(?![$<{*])[^\s/@]{1,2000}@",
    r"(?i:\bhttps?://)(?=[^\s/:@]{0,200}\d)[\w-]{20,2000}@",
)
_VALUES: Final = re.compile("|".join(_LOOKS))
#: ``name=value``, ``"name": value`` and ``name: value`` in a text, but not in a path.
_INSIDE: Final = re.compile(
    r"(?<![\w./-])-{0,2}(?P<name>[A-Za-z_][\w.-]*)"
    r"(?:\\?[\"']\s*[:=]|\s*=|:(?:\s|(?!//)(?=[\w+/=.-]{16})))\s*"
    # A lookahead, because the value may contain another name. Its beginning tells enough.
    r"(?=(?P<value>\\?\"(?:[^\"\\]|\\.){0,64}|'[^']{0,64}|[^\s\"',;&]{1,64}))"
)
#: Values that aren't passwords.
_HARMLESS: Final = re.compile(r"(?i:true|false|null|none|yes|no|\d{1,3}(\.\d+)?)\Z")
_LEAST: Final = 4
#: A password in a connection string; in upper case it is the working directory.
_ODBC: Final = ("Pwd", "pwd")
_OPTION: Final = re.compile(r"--?(?P<name>[A-Za-z][\w.-]*)(?:=(?P<value>.*))?\Z", re.DOTALL)
_ASSIGNMENT: Final = re.compile(r"(?P<name>[A-Za-z_]\w*)=(?P<value>.*)\Z", re.DOTALL)
#: Short options that take a password, in the word itself or in the next one, by the program.
_MYSQL: Final = r"(?P<name>-p)(?P<value>\S+)"
_NEXT_OR_SAME: Final = r"(?P<name>-p) ?(?P<value>\S+)"
_PROGRAMS: Final = {
    "curl": re.compile(
        r"(?P<name>-[A-Za-z]{0,20}[uU]|--(?:proxy-)?user)[ =]?[^\s:]{0,200}:(?P<value>\S+)"
        r"|(?:-b|--cookie)[ =]?[^\s=/]{1,200}=(?P<cookie>\S+)"
    ),
    "redis-cli": re.compile(r"(?P<name>-a) ?(?P<value>\S+)"),
    **dict.fromkeys(("mariadb", "mysql", "mysqladmin", "mysqldump"), re.compile(_MYSQL)),
    **dict.fromkeys(("mongo", "mongodump", "mongosh", "sshpass"), re.compile(_NEXT_OR_SAME)),
}
#: Words of a shell command, with their quotes.
_SHELL_WORD: Final = re.compile(r"""(?:[^\s"';&|()]|"[^"]*"|'[^']*')+""")
#: Prefixes of a secret's location, and of values that a shell or program fills in.
_FILLED_IN: Final = (
    *("/", "./", "$", "env:", "file:", "vault:", "`", "<", "{{", "%("),
    *("os.environ", "os.getenv", "getenv(", "environ[", "args.", "self."),
)
_DIGITS: Final = "0123456789"
HIDDEN: Final = "…"


def holds_secret(name: str) -> bool:
    """Return whether a variable or option of this name usually contains a secret."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+", "_", name).upper().strip("_")
    words = words.rstrip(_DIGITS).rstrip("_")  # DB_PASSWORD1, API_KEY_2
    if _INNOCENT.fullmatch(words) or words.endswith(_PLACES):
        return False
    parts = [part.rstrip(_DIGITS) for part in words.split("_")]
    if any(part in _WORDS or part.endswith(_ENDS) for part in parts):
        return True
    return any(a in _KEY_BEFORE and b == "KEY" for a, b in pairwise(parts))


def is_secret(value: str) -> bool:
    """Return whether a text looks like it contains a secret: a key, a token, a password in a URL.

    Also recognizes names in it: ``AccountKey=…`` in a connection string, ``"client_secret": …`` in
    JSON.
    """
    return (
        bool(_VALUES.search(value))
        or any(
            (holds_secret(found["name"]) or found["name"] in _ODBC) and _is_password(found["value"])
            for found in _INSIDE.finditer(value)
            if found["name"].lower() != "cookie"  # the value tells: "Cookie: name=value"
        )
        or any(True for _ in _of_programs(_SHELL_WORD.findall(value)))
    )


def in_words(words: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yield the index and name of each secret in a command.

    Finds ``--token=x``, ``--token x`` and ``TOKEN=x``, also inside shell code.
    """
    words = list(words)
    options = {index: name for name, index in _of_programs(words)}
    for index, word in enumerate(words):
        names = [options[index]] if index in options else []
        following = words[index + 1 : index + 2]
        names += [name for name, place in _named([word, *following]) if not place]
        if " " in word.strip():
            names += [name for name, _ in _named(_SHELL_WORD.findall(word))]
        if not names and is_secret(word):
            names.append("a value")
        yield from ((index, name) for name in dict.fromkeys(names))


def _of_programs(words: list[str]) -> Iterator[tuple[str, int]]:
    """Yield the option and index of each password that a known program is called with."""
    rule = None
    for index, (word, following) in enumerate(zip(words, [*words[1:], ""], strict=False)):
        program = word.strip("\"'").replace("=", "/").rpartition("/")[2]
        rule = _PROGRAMS.get(program, rule)
        if rule is None or not word.startswith("-"):
            continue
        found = rule.fullmatch(word) or rule.fullmatch(f"{word} {following}")
        if found and _is_plain(found["value"] or found.groupdict().get("cookie") or ""):
            yield found["name"] or "--cookie", index


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
    """Return whether a value is a secret itself, not its location or a placeholder."""
    bare = value.strip("\"'")
    return bool(bare) and not bare.startswith(_FILLED_IN)


def _is_password(value: str) -> bool:
    """Return whether a value after a name in JSON, properties or code looks like a password."""
    bare = value.lstrip("\\\"'").rstrip("})]")
    has_worth = len(bare) >= _LEAST and not _HARMLESS.match(bare)
    return has_worth and _is_plain(bare) and not bare.startswith(("{", "[", "="))


def hide(assignment: str) -> str:
    """Return an ``a.b=value`` from the command line, with a possible secret hidden."""
    path, sign, value = assignment.partition("=")
    steps = [step.strip('"') for step in path.split(".")]
    inside = {"env", "args", "command", "conf", "secrets", "credentials", "overrides"} & set(steps)
    whole = value.strip()[:1] in {"{", "["}
    if sign and (inside or whole or is_secret(value) or any(map(holds_secret, steps))):
        return f"{path}={HIDDEN}"
    return assignment

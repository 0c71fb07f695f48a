"""``gridflow tfrecord``: look into TFRecord files, check and convert them, without Spark."""

from __future__ import annotations

import base64
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from gridflow._files.local import replacing
from gridflow._spec.exits import exit_code
from gridflow._spec.printable import printable
from gridflow.errors import DataError, GridflowError, InvalidArgument
from gridflow.tfrecord.convert import (
    RECORD_TYPES,
    infer_schema,
    read_examples,
    read_table,
    write_table,
)
from gridflow.tfrecord.example import MalformedExample, parse_example
from gridflow.tfrecord.framing import (
    COMPRESSIONS,
    CorruptRecord,
    read_frames,
    read_records,
    write_records,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable

    Command = Callable[[argparse.Namespace], int]

#: What JSON lets through and a terminal obeys.
_UNSHOWN: Final = re.compile(r"[\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def files_of(paths: Iterable[str]) -> list[str]:
    """Return the files that are named, and those in folders that are named, sorted.

    Files whose name begins with a dot or an underscore are left out of folders, as Spark does.
    """
    files: list[str] = []
    for given in paths:
        path = Path(given)
        if path.is_dir():
            inside = (
                file
                for file in path.rglob("*")
                if file.is_file()
                and not any(p.startswith((".", "_")) for p in file.relative_to(path).parts)
            )
            files.extend(str(file) for file in sorted(inside))
        elif path.is_file():
            files.append(given)
        else:
            raise InvalidArgument(f"there is no file or folder {given!r}.")
    if not files:
        raise InvalidArgument(f"there are no files in {', '.join(paths)}.")
    return files


def _schema(args: argparse.Namespace) -> int:
    schema = infer_schema(
        files_of(args.paths),
        record_type=args.record_type,
        compression=args.compression,
        limit=args.limit,
    )
    for field in schema:
        print(f"{printable(field.name)}\t{printable(str(field.type))}")  # noqa: T201 -- the command's output
    return 0


def _plain(values: Any) -> Any:
    """Make values fit for JSON; bytes that are no text become base64, NaN and infinity text."""
    if isinstance(values, np.ndarray):
        numbers = values.tolist()
        if values.dtype.kind != "f" or np.isfinite(values).all():
            return numbers
        # JSON has no such numbers; protobuf's JSON writes the same words.
        words = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
        return [words.get(str(number), number) for number in numbers]
    if isinstance(values, bytes):
        try:
            return values.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(values).decode()}
    return [_plain(value) for value in values] if isinstance(values, list) else values


def _as_json(row: Any) -> str:
    """Return a line that a terminal shows: JSON itself escapes none of 128 to 159."""
    text = json.dumps(row, ensure_ascii=False)
    return _UNSHOWN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _head(args: argparse.Namespace) -> int:
    files = files_of(args.paths)
    if args.record_type == "ByteArray":
        rows = (
            _plain(record)
            for f in files
            for record in read_records(f, compression=args.compression)
        )
    else:
        rows = (
            {
                name: _plain(values)
                for name, values in (example.features | example.feature_lists).items()
            }
            for example in read_examples(
                files,
                sequence=args.record_type == "SequenceExample",
                compression=args.compression,
            )
        )
    for _, row in zip(range(args.records), rows, strict=False):
        print(_as_json(row))  # noqa: T201 -- the command's output
    return 0


def _count(args: argparse.Namespace) -> int:
    total = 0
    files = files_of(args.paths)
    for file in files:
        # Lengths are enough to count; `verify` looks at the rest.
        count = sum(1 for _ in read_frames(file, compression=args.compression, check_crc=False))
        print(f"{file}\t{count}")  # noqa: T201 -- the command's output
        total += count
    if len(files) > 1:
        print(f"total\t{total}")  # noqa: T201 -- the command's output
    return 0


def _verify(args: argparse.Namespace) -> int:
    bad = 0
    for file in files_of(args.paths):
        count = 0
        try:
            for count, (offset, record) in enumerate(  # noqa: B007 -- told below
                read_frames(file, compression=args.compression), start=1
            ):
                if args.record_type != "ByteArray":
                    parse_example(record, sequence=args.record_type == "SequenceExample")
        except CorruptRecord as error:
            bad += 1
            print(f"{file}\tbad: {printable(str(error))}")  # noqa: T201 -- the command's output
        except MalformedExample as error:
            bad += 1
            where = f"record {count - 1} at byte {offset}"
            print(f"{file}\tbad: {printable(str(error))} ({where})")  # noqa: T201 -- the command's output
        else:
            print(f"{file}\tok, {count} records")  # noqa: T201 -- the command's output
    return 1 if bad else 0


def _is_parquet(path: str) -> bool:
    return path.lower().endswith((".parquet", ".pq"))


def _read_parquet(source: str) -> pa.Table:
    import pyarrow.parquet as pq

    try:
        return pq.read_table(source)
    except pa.ArrowException as error:
        raise DataError(f"{source} can't be read: {error}") from error


def _convert(args: argparse.Namespace) -> int:
    import pyarrow.parquet as pq

    source, target = args.source, args.target
    if _is_parquet(source) and _is_parquet(target):
        raise InvalidArgument("one of the two files must be a TFRecord file, both are Parquet.")
    if _is_parquet(source):
        count = write_table(
            _read_parquet(source),
            target,
            record_type=args.record_type,
            compression=args.compression,
        )
    elif _is_parquet(target):
        table = read_table(
            files_of([source]), record_type=args.record_type, compression=args.source_compression
        )
        with replacing(target) as beside:
            pq.write_table(table, beside)
        count = table.num_rows
    else:
        files = files_of([source])
        if any(Path(file).resolve() == Path(target).resolve() for file in files):
            raise InvalidArgument(f"source and target are the same file, {target!r}.")
        records = (
            r for file in files for r in read_records(file, compression=args.source_compression)
        )
        count = write_records(target, records, compression=args.compression)
    print(f"{target}\t{count} records")  # noqa: T201 -- the command's output
    return 0


def _run(command: Command) -> Command:
    def run(args: argparse.Namespace) -> int:
        try:
            return command(args)
        except BrokenPipeError:
            raise  # `gridflow` has an exit code of its own for it
        except (GridflowError, OSError) as error:
            print(f"gridflow tfrecord: {printable(str(error))}", file=sys.stderr)  # noqa: T201 -- the error
            return exit_code(error)

    return run


def add_parser(subparsers: Any) -> None:
    """Add ``tfrecord`` to a command line; ``args.run(args)`` then returns the exit status.

    Parameters
    ----------
    subparsers
        What ``argparse.ArgumentParser.add_subparsers`` returned.
    """
    parser = subparsers.add_parser("tfrecord", help="inspect, check and convert TFRecord files")
    commands = parser.add_subparsers(dest="tfrecord_command", required=True, metavar="COMMAND")

    def add(name: str, text: str, command: Command) -> Any:
        added = commands.add_parser(name, help=text, description=text)
        added.set_defaults(run=_run(command))
        types = {"default": "Example", "choices": RECORD_TYPES, "help": "the content of a record"}
        if name != "count":
            added.add_argument("--record-type", **types)
        text = "by default from the file's suffix (.gz, .deflate)"
        added.add_argument("--compression", choices=COMPRESSIONS, help=text)
        return added

    for name, text, command in (
        ("schema", "the types of the features, found by reading the records", _schema),
        ("head", "the first records, one line of JSON each", _head),
        ("count", "the number of records", _count),
        ("verify", "check every record; report the first bad one's offset", _verify),
    ):
        added = add(name, text, command)
        added.add_argument("paths", nargs="+", help="files, or folders of files")
        if name == "schema":
            added.add_argument("--limit", type=int, help="read only this many records")
        if name == "head":
            added.add_argument("-n", "--records", type=int, default=10, help="how many (10)")
    added = add("convert", "TFRecord to Parquet, Parquet to TFRecord, or recompress", _convert)
    added.add_argument("source", help="a file, or a folder of TFRecord files")
    added.add_argument("target", help="a file; Parquet if it ends with .parquet")
    added.add_argument("--source-compression", choices=COMPRESSIONS, help="of the source")

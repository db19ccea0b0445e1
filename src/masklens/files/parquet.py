"""Parquet files with a checksum of the whole file, which detects any changed byte.

Parquet's own checksums leave out the footer and the page headers, where one changed bit can hide rows. Our
checksum stands in the metadata of the footer. It is computed with EMPTY in its own place.
"""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Mapping
from typing import IO, TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    import pyarrow as pa

NAME, EMPTY = b"masklens.checksum", b"crc32:00000000"
PLACE = re.compile(re.escape(NAME) + rb".{1,4}?(crc32:[0-9a-f]{8})", re.DOTALL)
END = 8
"""how many bytes follow the footer: its length and the magic bytes"""
CHUNK = 2**20


def column_types(hints: Mapping[str, Any]) -> dict[str, pa.DataType]:
    """The types of columns that hold values of these types of Python, by name."""
    return {name: column_type(hint) for name, hint in hints.items()}


def column_type(hint: Any) -> pa.DataType:
    """Of a column: a tuple is a list, a class with fields a struct; None may always be there."""
    import pyarrow as pa

    plain = {str: pa.string(), int: pa.int32(), float: pa.float64(), bool: pa.bool_()}
    if hint in plain:
        return plain[hint]
    inner = get_args(hint)
    if get_origin(hint) is Literal:
        return pa.string()
    if get_origin(hint) is tuple:
        return pa.list_(column_type(inner[0]))
    return column_type(inner[0]) if inner else pa.struct(column_types(get_type_hints(hint)))


def to_parquet(table: pa.Table) -> bytes:
    """A table as a Parquet file with its checksum."""
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(table.replace_schema_metadata({NAME: EMPTY}), buffer, compression="zstd")
    data = bytearray(buffer.getvalue())
    start, stop, _ = _place(buffer)
    data[start:stop] = _written(zlib.crc32(data))
    return bytes(data)


def check_whole(file: IO[bytes]) -> None:
    """A ValueError if a byte is not as it was written.

    A file without a checksum is another tool's. So is one that says EMPTY: a table that was read and written
    again, which takes the metadata along.
    """
    start, stop, found = _place(file)
    if found not in (b"", EMPTY) and found != _written(_checksum(file, start, stop)):
        raise ValueError("bytes were changed since it was written: the checksum differs")
    file.seek(0)


def _written(checksum: int) -> bytes:
    return b"crc32:%08x" % checksum


def _place(file: IO[bytes]) -> tuple[int, int, bytes]:
    """Where the checksum begins and ends in a file, and its value; an empty value if there is none."""
    size = file.seek(0, io.SEEK_END)
    file.seek(max(0, size - END))
    begin = max(0, size - END - int.from_bytes(file.read(4), "little"))
    file.seek(begin)
    places = [*PLACE.finditer(file.read())][-1:]  # a text may say the same: those of columns come before
    return next(((begin + one.start(1), begin + one.end(1), one[1]) for one in places), (0, 0, b""))


def _checksum(file: IO[bytes], start: int, stop: int) -> int:
    """The checksum of a file with EMPTY from `start` to `stop`."""
    checksum, at = 0, file.seek(0)
    while at < start:
        part = file.read(min(CHUNK, start - at))
        checksum, at = zlib.crc32(part, checksum), at + len(part)
    file.seek(stop)
    return zlib.crc32(EMPTY + file.read(), checksum)

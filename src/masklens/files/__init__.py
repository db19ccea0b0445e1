"""Files are written completely or not at all, and read through pydantic models that check every field."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Annotated, Any, BinaryIO, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, TypeAdapter, ValidationError

from ..errors import FileError, MasklensError

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)


def encodable(text: str) -> str:
    """The text, if it can be written in UTF-8. JSON can hold half of a surrogate pair, which UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"it has an invalid character: {text[error.start]!a}") from error
    return text


PlainText = Annotated[str, AfterValidator(encodable)]
"""a string that can be written in UTF-8"""


class FileModel(BaseModel):
    """A model of a file's content: fields of the right types, no other fields, and finite numbers."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


def validate(kind: type[T], data: Any, where: object) -> T:
    """Data as a model or a dataclass. Data that does not fit raises an error with its place and field."""
    adapter: TypeAdapter[T] = _adapter(kind)  # type: ignore[arg-type]
    return _fitted(lambda: adapter.validate_python(data), where, FileError)


_adapter = cache(TypeAdapter)


def parse(model: type[M], content: bytes, where: object, error: type[MasklensError] = FileError) -> M:
    """`validate` for the bytes of a JSON document, with an error of the given type."""
    return _fitted(lambda: model.model_validate_json(content), where, error)


def _fitted(make: Callable[[], T], where: object, error: type[MasklensError]) -> T:
    try:
        return make()
    except (ValidationError, MasklensError, RecursionError) as problem:
        raise error(f"{where} cannot be used: {describe(problem)}") from problem


def describe(error: Exception) -> str:
    """The first problem in one line: the field, what is wrong with it, and its value."""
    if not isinstance(error, ValidationError):
        return " ".join(str(error).split())
    first = error.errors(include_url=False)[0]
    field = ".".join(map(str, first["loc"]))
    if first["type"] == "missing":
        return f"there is no {field!r}"
    message = first["msg"].removeprefix("Value error, ")
    given = "" if first["type"] in ("value_error", "json_invalid") else f" ({first['input']!r:.60})"
    return f"{field + ': ' if field else ''}{message}{given}"


def reason(error: OSError) -> str:
    """The operating system's message, without the path."""
    return error.strerror or str(error) or type(error).__name__


def is_url(path: str) -> bool:
    return "://" in path


def open_binary(path: str) -> BinaryIO:
    """Open a local file, or a URL that fsspec knows, for reading."""
    if not is_url(path):
        return open(path, "rb")  # noqa: SIM115
    fs, name = file_system(path)
    return fs.open(name, "rb")


def file_system(url: str) -> tuple[Any, str]:
    """The fsspec file system of a path or URL, and its name in that file system."""
    import fsspec

    try:
        return fsspec.core.url_to_fs(url)
    except (ValueError, ImportError) as error:
        raise FileError(
            f"{url} cannot be reached: {error}; give a path or a URL that fsspec knows"
        ) from error


@contextmanager
def whole(path: Path, mark: str = "", sync: bool = False) -> Iterator[Path]:
    """A temporary path to write to. At the end it is renamed to `path`; after an exception it is removed.

    Args:
        mark: a part of the temporary name, for several processes that may write to one path.
        sync: sync the file to disk before it is renamed, so that it is complete even after a power cut.
    """
    _check_plain(path)
    path = Path(os.path.realpath(path))  # a link stays a link; its target is written
    part = path.with_name(f".{path.name}.{mark}part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield part
            if sync:
                _sync(part)
            os.replace(part, path)
            if sync:
                _sync(path.parent)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from error


def _sync(path: Path) -> None:
    """Sync a file, or the entries of a folder, to disk."""
    if os.name != "posix" and path.is_dir():
        return
    handle = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def cannot_write(path: object, error: OSError) -> FileError:
    return FileError(f"cannot write {path}: {reason(error)}; make room or give another place")


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise a FileError if a file cannot be written at this path; to be called before long work.

    As a test, a small file is written to the folder (or its nearest existing parent) and removed again.
    """
    path = Path(path)
    _check_plain(path)
    _check_folder(path, Path(os.path.realpath(path)).parent)


def _check_plain(path: Path) -> None:
    """Refuse to overwrite folders, devices and broken links."""
    if path.is_dir():
        raise FileError(f"cannot write {path}: it is a folder; give the name of a file")
    for one in (path, *path.parents):
        if one.is_symlink() and not one.exists():
            raise FileError(f"cannot write {path}: {one} is a link to {os.readlink(one)}, which is not there")
    if path.exists() and not path.is_file():
        raise FileError(f"cannot write {path}: it is not a regular file; give the name of one")


def check_folder_writable(path: str | os.PathLike[str]) -> None:
    """Raise a FileError if files cannot be written into this folder. The folder need not exist yet."""
    _check_folder(Path(path), Path(path))


def _check_folder(path: Path, folder: Path) -> None:
    while not os.path.lexists(folder) and folder != folder.parent:
        folder = folder.parent
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".masklens-") as file:
            file.write(b"\0" * 4096)
            file.flush()
    except NotADirectoryError as error:
        raise FileError(f"cannot write {path}: {folder} is a file, not a folder") from error
    except OSError as error:
        raise cannot_write(path, error) from error


@contextmanager
def held(path: Path, taken: MasklensError) -> Iterator[None]:
    """Lock a file that stands for a folder. Raises `taken` if another process or thread holds the lock.

    This is a lock of the operating system: it ends with the process, even if that is killed.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("ab")
    except OSError as error:
        raise cannot_write(path.parent, error) from error
    with file:
        try:
            _lock(file)
        except OSError as error:
            raise taken from error
        yield


def _lock(file: Any) -> None:
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def read_bytes(path: Path, error: type[MasklensError] = FileError, most: int | None = None) -> bytes:
    """A file's content, at most `most` bytes. A file that cannot be read raises an error that says why."""
    try:
        with path.open("rb") as file:
            content = file.read(-1 if most is None else most + 1)
    except OSError as problem:
        raise error(f"cannot read {path}: {reason(problem)}") from problem
    if most is not None and len(content) > most:
        raise error(f"{path} has more than {most:,} bytes; it was not written by masklens")
    return content

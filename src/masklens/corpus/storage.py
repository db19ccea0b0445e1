"""Where a corpus run writes: a local folder, or any folder that fsspec can reach by URL."""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import CorpusError

LOCK = ".lock"
LEASE_SECONDS = 60.0
"""a lock on storage without locks counts for this long after its owner last renewed it"""


def is_url(path: str) -> bool:
    return "://" in path


def open_binary(path: str) -> BinaryIO:
    """Open a local file or a URL for reading."""
    if not is_url(path):
        return open(path, "rb")  # noqa: SIM115
    import fsspec

    fs, name = fsspec.core.url_to_fs(path)
    return fs.open(name, "rb")


class Folder:
    """A folder whose files appear whole or not at all."""

    def __init__(self, url: str) -> None:
        import fsspec
        from fsspec.implementations.local import LocalFileSystem

        self.url = url
        if is_url(url):
            self.fs, self.root = fsspec.core.url_to_fs(url)
        else:
            self.fs, self.root = LocalFileSystem(), str(Path(url).absolute())
        self.local = isinstance(self.fs, LocalFileSystem)

    def path(self, name: str) -> str:
        return f"{self.root.rstrip('/')}/{name}"

    def names(self, under: str) -> list[str]:
        """The files in a folder below this one, in order, without unfinished ones."""
        if not self.fs.isdir(self.path(under)):
            return []
        found = (path.rsplit("/", 1)[-1] for path in self.fs.ls(self.path(under), detail=False))
        return sorted(name for name in found if not name.startswith("."))

    def open(self, name: str) -> BinaryIO:
        return self.fs.open(self.path(name), "rb")

    def read(self, name: str) -> bytes | None:
        """A file's content; None if there is no such file."""
        try:
            return self.fs.cat_file(self.path(name))
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        """Write a file: after a crash at any moment the old or the new one is there, whole.

        Object stores put a file at once. Locally it is written beside its place under a name of its own,
        brought to disk and renamed.
        """
        if not self.local:
            self.fs.pipe_file(self.path(name), data)
            return
        path = Path(self.path(name))
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
        try:
            with part.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)
        _sync_folder(path.parent)

    def remove(self, name: str) -> None:
        if self.fs.exists(self.path(name)):
            self.fs.rm_file(self.path(name))

    def clear_parts(self, under: str) -> None:
        """Remove what killed runs left unfinished; for the holder of the lock."""
        folder = Path(self.path(under))
        if self.local and folder.is_dir():
            for part in folder.glob(".*.part"):
                part.unlink(missing_ok=True)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold this folder; a second holder is refused. The lock goes with its process."""
        with _file_lock(self) if self.local and os.name == "posix" else _lease(self):
            yield


def _sync_folder(folder: Path) -> None:
    """Bring a rename to disk."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _refused(folder: Folder) -> CorpusError:
    return CorpusError(f"another run is writing to {folder.url}; wait for it to end, or use another folder")


@contextmanager
def _file_lock(folder: Folder) -> Iterator[None]:
    """The operating system's lock: it is gone when the process is, however it ended."""
    import fcntl

    path = Path(folder.path(LOCK))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise _refused(folder) from error
        yield


@contextmanager
def _lease(folder: Folder) -> Iterator[None]:
    """A lock for storage that has none: a file that its owner renews; one not renewed has no owner."""
    owner = uuid.uuid4().hex
    held = _lease_of(folder)
    if held and time.time() - held["time"] < LEASE_SECONDS:
        raise _refused(folder)
    _renew(folder, owner)
    if (_lease_of(folder) or {}).get("owner") != owner:
        raise _refused(folder)
    done = threading.Event()

    def keep_renewing() -> None:
        while not done.wait(LEASE_SECONDS / 4):
            _renew(folder, owner)

    thread = threading.Thread(target=keep_renewing, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        folder.remove(LOCK)


def _lease_of(folder: Folder) -> dict[str, Any] | None:
    content = folder.read(LOCK)
    return json.loads(content) if content else None


def _renew(folder: Folder, owner: str) -> None:
    folder.write(LOCK, json.dumps({"owner": owner, "time": time.time()}).encode())

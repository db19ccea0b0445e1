"""Where a corpus run writes: a local folder, or any folder that fsspec can reach by URL."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from ..errors import CorpusError
from ..files import FileModel, file_system, held, is_url, parse, reason, whole

LOCK = ".lock"
LEASE_SECONDS = 60.0
"""on storage without file locks: how long a lock stays valid after its owner last renewed it"""


class Folder:
    """A folder in which a file appears completely or not at all."""

    def __init__(self, url: str) -> None:
        from fsspec.implementations.local import LocalFileSystem

        self.url = url
        self.fs, self.root = file_system(url if is_url(url) else str(Path(url).absolute()))
        self.local = isinstance(self.fs, LocalFileSystem)

    def path(self, name: str) -> str:
        return f"{self.root.rstrip('/')}/{name}"

    @contextmanager
    def _told(self, verb: str, name: str) -> Iterator[None]:
        """Turn an error of the storage into one that names the file."""
        try:
            yield
        except OSError as error:
            raise CorpusError(f"cannot {verb} {self.path(name)}: {reason(error)}") from error

    def names(self, under: str) -> list[str]:
        """The files in a folder below this one, in order, without unfinished ones."""
        if not self.fs.isdir(self.path(under)):
            return []
        with self._told("read", under):
            found = [path.rsplit("/", 1)[-1] for path in self.fs.ls(self.path(under), detail=False)]
        return sorted(name for name in found if not name.startswith("."))

    def open(self, name: str) -> BinaryIO:
        with self._told("read", name):
            return self.fs.open(self.path(name), "rb")

    def holds(self, name: str) -> bool:
        return self.fs.exists(self.path(name))

    def read(self, name: str) -> bytes | None:
        """A file's content; None if there is no such file."""
        with self._told("read", name):
            try:
                return self.fs.cat_file(self.path(name))
            except FileNotFoundError:
                return None

    def write(self, name: str, data: bytes) -> None:
        """Write a file. After a crash at any moment, the complete old or the complete new file is there.

        Object stores do this by themselves. A local file is written under a temporary name in the same
        folder, synced to disk and renamed.
        """
        if not self.local:
            with self._told("write", name):
                self.fs.pipe_file(self.path(name), data)
            return
        with whole(Path(self.path(name)), mark=f"{uuid.uuid4().hex}.", sync=True) as part:
            part.write_bytes(data)

    def remove(self, name: str) -> None:
        if self.holds(name):
            with self._told("remove", name):
                self.fs.rm_file(self.path(name))

    def clear(self, under: str) -> None:
        """Remove the files in a folder below this one."""
        for name in self.names(under):
            self.remove(f"{under}/{name}")

    def clear_parts(self, under: str) -> None:
        """Remove unfinished files of killed runs. Only the holder of the lock may call this."""
        if self.local:
            for part in Path(self.path(under)).glob(".*.part"):
                part.unlink(missing_ok=True)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock this folder; a second process is refused. The lock ends with its process."""
        with held(Path(self.path(LOCK)), _refused(self)) if self.local else _lease(self):
            yield


def _refused(folder: Folder) -> CorpusError:
    return CorpusError(f"another run is writing to {folder.url}; wait for it to end, or use another folder")


@contextmanager
def _lease(folder: Folder) -> Iterator[None]:
    """A lock for storage without file locks: a file that its owner keeps renewing. An old file is ignored."""
    owner = uuid.uuid4().hex
    held = _lease_of(folder)
    if held and time.time() - held.time < LEASE_SECONDS:
        raise _refused(folder)
    _renew(folder, owner)
    now = _lease_of(folder)
    if now is None or now.owner != owner:
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


class Lease(FileModel):
    """The owner of a lock, and when it was last renewed."""

    owner: str
    time: float


def _lease_of(folder: Folder) -> Lease | None:
    content = folder.read(LOCK)
    return parse(Lease, content, folder.path(LOCK), CorpusError) if content else None


def _renew(folder: Folder, owner: str) -> None:
    folder.write(LOCK, Lease(owner=owner, time=time.time()).model_dump_json().encode())

"""Work in parts. Each part is written to a file as soon as it is done, and is not done again.

A part has a name, such as "lens/inputs/0", and a file below OUT/parts. A run that was stopped goes on with
the parts that are missing. Several processes may work in one folder, each at its own parts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from masklens.errors import FileError, MethodError

from .results import commit, write_json

Found = Mapping[str, Any]
"""what a part found, as plain data"""


@dataclass(frozen=True)
class Parts:
    """The parts of one model, or of one run."""

    folder: Path
    settings: Found
    """the settings of the parts, which are written into each part, with the commit"""

    @property
    def title(self) -> str:
        return self.folder.name

    def path(self, name: str) -> Path:
        return self.folder / f"{name.replace('/', '-')}.json"

    def do(self, name: str, work: Callable[[], Found | None], tell: Callable[[str], None]) -> None:
        """Do a part unless it is done. A part that cannot be done here is reported and left out.

        Work that writes its part itself returns None.
        """
        if self.path(name).exists():
            return
        commit()  # now: another commit may be checked out when the work ends
        start = time.perf_counter()
        try:
            found = work()
        except MethodError as error:
            tell(f"{self.title}: {name}: left out ({error})")
            return
        seconds = time.perf_counter() - start
        if found is not None:
            self.write(name, found, seconds)
        tell(f"{self.title}: {name}: {seconds:.1f} s")

    def write(self, name: str, found: Found, seconds: float) -> None:
        about = {"settings": {**self.settings, "commit": commit()}, "seconds": seconds}
        write_json(self.path(name), {**found, **about})

    def read(self, name: str) -> Any:
        if not self.path(name).exists():
            raise MethodError(f"{name} has to be done first")
        return json.loads(self.path(name).read_text(encoding="utf-8"))

    def done(self, names: Iterable[str]) -> dict[str, Any]:
        """Those of these parts that are done."""
        return {name: self.read(name) for name in names if self.path(name).exists()}


def check_out(out: Path) -> None:
    """Refuse a folder that has results but no parts: results are written from the parts, and would be
    lost."""
    if (out / "results.json").exists() and not (out / "parts").exists():
        raise FileError(
            f"{out} has results, but not the parts they were made of, and they would be overwritten; "
            "give another --out, or remove results.json"
        )


def asked_for(names: Sequence[str], wanted: Sequence[str] | None) -> list[str]:
    """The names that are wanted, or all: "lens" stands for every part whose name begins with "lens/"."""
    return [name for name in names if wanted is None or any(_within(name, one) for one in wanted)]


def check_wanted(wanted: Sequence[str] | None, names: Sequence[str]) -> None:
    for one in wanted or ():
        if not any(_within(name, one) for name in names):
            raise MethodError(f"no part {one!r}; there are {', '.join(names)}")


def _within(name: str, wanted: str) -> bool:
    return name == wanted or name.startswith(f"{wanted}/")


@contextmanager
def only_one(path: Path) -> Iterator[None]:
    """A lock: one process at a time is inside the block, the others wait. It ends with the process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        except ImportError:  # Windows: two processes that want the same part both do it
            pass
        yield

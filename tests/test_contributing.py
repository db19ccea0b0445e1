"""The changes that CONTRIBUTING.md shows can be made, and the tests of each pass with it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TESTS = {
    "tests/test_contract.py": "state_norm or ernie",
    "tests/tasks/test_tasks.py": "median",
    "tests/evaluation/test_faithfulness.py": "divergence_without",
    "tests/test_cli.py": "completed_methods",
}


def hunks() -> Iterator[tuple[str, list[str]]]:
    """Of every change shown: the file, and lines that begin with "+" (new) or a space (there already)."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for block in re.findall(r"```diff\n(.*?)```", page, re.DOTALL):
        for part in re.split(r"(?m)^--- .*\n\+\+\+ b/", block)[1:]:
            file, _, lines = part.partition("\n")
            for hunk in re.split(r"(?m)^@@.*\n", lines):
                if hunk.strip():
                    yield file, hunk.splitlines()


def changed(before: str, hunk: list[str]) -> str:
    """The text with the new lines after those that are there already, or at its end."""
    there = "\n".join(line[1:] for line in hunk if line.startswith(" "))
    after = "\n".join(line[1:] for line in hunk)
    if not there:
        return f"{before.rstrip()}\n\n\n{after}\n".lstrip()
    assert before.count(there) == 1, f"{there!r} is in the file {before.count(there)} times"
    return before.replace(there, after)


def apply(folder: Path) -> None:
    for name, hunk in hunks():
        file = folder / name
        file.write_text(changed(file.read_text() if file.exists() else "", hunk))


def copied(folder: Path) -> Path:
    for name in ("src", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def test_every_change_that_is_shown_fits_the_files(tmp_path):
    files = {name for name, _ in hunks()}
    assert len(files) >= 7
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, tmp_path / name)
    apply(tmp_path)
    for name in files:
        compile((tmp_path / name).read_text(), name, "exec")


@pytest.mark.slow
@pytest.mark.parametrize("file", TESTS)
def test_the_tests_pass_with_the_changes(tmp_path, file):
    folder = copied(tmp_path)
    apply(folder)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", file, "-k", TESTS[file]]
    environment = os.environ | {"PYTHONPATH": f"{folder / 'src'}{os.pathsep}{folder}"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-2000:]

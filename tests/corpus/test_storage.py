"""Files that appear whole or not at all, and folders that have one writer."""

import os

import pytest

from masklens.corpus import storage
from masklens.corpus.storage import Folder
from masklens.errors import CorpusError, FileError


@pytest.fixture(params=["local", "store"])
def folder(request, tmp_path):
    return Folder(str(tmp_path / "out") if request.param == "local" else f"memory://{tmp_path.name}")


def test_what_was_written_is_read(folder):
    assert folder.read("data/x") is None and folder.names("data") == []
    folder.write("data/x", b"one")
    folder.write("data/x", b"two")
    assert folder.read("data/x") == b"two" and folder.names("data") == ["x"]
    folder.remove("data/x")
    folder.remove("data/x")
    assert folder.names("data") == []


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    folder = Folder(str(tmp_path))
    folder.write("data/x", b"old")

    def fail(*paths):
        raise OSError("disk full")

    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, fail)
            with pytest.raises(FileError, match="cannot write .*data/x: disk full"):
                folder.write("data/x", b"new")
        assert folder.read("data/x") == b"old"
    assert list((tmp_path / "data").iterdir()) == [tmp_path / "data" / "x"]


def test_unfinished_files_are_no_files_and_can_be_cleared(tmp_path):
    folder = Folder(str(tmp_path))
    folder.write("data/x", b"whole")
    (tmp_path / "data" / ".y.123.part").write_bytes(b"hal")
    assert folder.names("data") == ["x"]
    folder.clear_parts("data")
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["x"]


def test_a_second_holder_is_refused(folder):
    with folder.lock(), pytest.raises(CorpusError, match="another run"), Folder(folder.url).lock():
        pass
    with folder.lock():
        pass


def test_a_lease_that_nobody_renews_runs_out(monkeypatch):
    folder = Folder("memory://leased")
    storage._renew(folder, "someone who was killed")
    with pytest.raises(CorpusError), folder.lock():
        pass
    monkeypatch.setattr(storage, "LEASE_SECONDS", 0.0)
    with folder.lock():
        pass

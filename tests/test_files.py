"""Writing: a file-system error is one typed line, told before the work where it can be."""

import errno
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

import masklens as ml
import tiny
from masklens.cli.main import app
from masklens.corpus import Job, run
from masklens.errors import FileError, MasklensError
from masklens.files import check_folder_writable, check_writable, whole
from masklens.reports.export import write
from records import make


@pytest.fixture
def bad_places(tmp_path):
    """Paths at which no file can be written, by what is wrong with them."""
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "link.json").symlink_to(tmp_path / "nowhere" / "x.json")
    (tmp_path / "lost").symlink_to(tmp_path / "gone")
    return {
        "is a file": tmp_path / "file" / "x.json",
        "it is a folder": tmp_path / "folder.json",
        "link.json is a link to": tmp_path / "link.json",
        "lost is a link to": tmp_path / "lost" / "x.json",
        "not a regular file": Path("/dev/null"),
    }


def test_bad_places_are_told_before_and_while_writing(bad_places):
    for words, path in bad_places.items():
        with pytest.raises(FileError, match=words):
            check_writable(path)
        with pytest.raises(FileError, match=f"cannot write {path}"), whole(path) as part:
            part.write_text("x")
        if path.suffix == ".json":
            with pytest.raises(FileError):
                ml.save([make()], path)
            with pytest.raises(FileError):
                write([make()], path)
    assert Path("/dev/null").is_char_device()


def test_a_check_leaves_nothing_behind(tmp_path):
    check_writable(tmp_path / "a" / "b" / "x.json")
    check_folder_writable(tmp_path / "c" / "d")
    assert not list(tmp_path.iterdir())
    with pytest.raises(FileError, match="is a file, not a folder"):
        (tmp_path / "x").touch()
        check_folder_writable(tmp_path / "x")


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "real.json").write_text("old")
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    ml.save([make()], tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink() and ml.load(tmp_path / "real.json") == [make()]


def test_a_full_disk_is_one_line_and_leaves_the_old_file(tmp_path, monkeypatch):
    ml.save([make()], tmp_path / "x.json")
    subject = tiny.subject("bert")
    with pytest.warns(UserWarning):
        lens = ml.DiffMask.fit(subject, ["a dull plot", "a fast car"] * 4, steps=1, sites=[1])
    lens.save_pretrained(tmp_path / "lens")

    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    for action in (
        lambda: ml.save([make(method="lime")], tmp_path / "x.json"),
        lambda: ml.report([make()], tmp_path / "x.html"),
        lambda: lens.save_pretrained(tmp_path / "lens"),
    ):
        with pytest.raises(FileError, match="No space left on device"):
            action()
    monkeypatch.undo()
    assert ml.load(tmp_path / "x.json") == [make()]
    ml.DiffMask.from_pretrained(tmp_path / "lens", subject)
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.skipif(not Path("/proc/mounts").exists(), reason="looks for a mounted read-only place")
def test_a_read_only_place_is_told():
    with pytest.raises(FileError, match="cannot write /proc/x.json"):
        check_writable("/proc/x.json")
    with pytest.raises(FileError, match="cannot write /proc/x"):
        check_folder_writable("/proc/x")


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("explain", "out.json"),
        ("report", "out.html"),
        ("fit", "lens"),
        ("evaluate", "table.json"),
        ("demo", "out"),
    ],
)
def test_commands_look_at_the_output_before_the_work(command, name, tmp_path, monkeypatch):
    for module in ("explain", "report", "fit", "evaluate", "demo"):
        begun = lambda *a, **k: pytest.fail("the work has begun")  # noqa: E731
        monkeypatch.setattr(f"masklens.cli.{module}.load_subject", begun)
    (tmp_path / "file").write_text("a dull plot\n")
    texts = {"fit": ["--data", str(tmp_path / "file")], "demo": []}.get(command, ["a dull plot"])
    model = [] if command in ("explain", "report", "demo") else ["--model", "nowhere"]
    done = CliRunner().invoke(app, [command, *texts, *model, "--out", str(tmp_path / "file" / name)])
    assert done.exit_code == 2 and "is a file, not a folder" in done.stderr and "\n" not in done.stderr[:-1]


def test_a_corpus_run_looks_at_its_folder_before_the_work(tmp_path):
    (tmp_path / "file").write_text("x")
    for out in (tmp_path / "file", tmp_path / "file" / "out"):
        with pytest.raises(MasklensError, match="is a file, not a folder"):
            run(Job("nowhere", "nothing.txt"), str(out))


def test_device_map_says_what_to_install(monkeypatch, tmp_path):
    import transformers.modeling_utils
    from transformers.integrations import accelerate

    tiny.model("bert").save_pretrained(tmp_path)
    for module in (transformers.modeling_utils, accelerate):
        monkeypatch.setattr(module, "is_accelerate_available", lambda *a, **k: False, raising=False)
    with pytest.raises(MasklensError, match="pip install accelerate"):
        ml.Subject.from_pretrained(tmp_path, device_map="auto")

"""Attributions in files: every ending, whole files only, one shape of JSON."""

import json
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure

from masklens.attribution import load, record, save
from masklens.errors import FileError
from masklens.files import whole
from masklens.reports.export import write
from records import make

STARTS = {
    ".png": b"\x89PNG",
    ".svg": b"<?xml",
    ".html": b"<!doctype html>",
    ".json": b"[{",
    ".parquet": b"PAR1",
}


@pytest.mark.parametrize("ending", STARTS)
def test_every_ending_is_written_whole(ending, tmp_path):
    path = tmp_path / "new" / f"x{ending}"
    write([make(), make(method="lime")], path)
    assert path.read_bytes().startswith(STARTS[ending])
    assert list(path.parent.iterdir()) == [path]


def test_other_endings_are_refused_before_anything_is_written(tmp_path):
    for path in (tmp_path / "x.docx", tmp_path / "x"):
        with pytest.raises(FileError, match=r"\.png, \.svg, \.html"):
            write([make()], path)
        with pytest.raises(FileError, match=r"use \.parquet or \.json"):
            save([make()], path)
    assert not list(tmp_path.iterdir())


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "x.png"
    path.write_text("old")

    def fail(figure, file, **options):
        file.write_text("half")
        raise KeyboardInterrupt

    monkeypatch.setattr(Figure, "savefig", fail)
    with pytest.raises(KeyboardInterrupt):
        write([make()], path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_too_many_for_one_picture_is_told(tmp_path):
    tall = make(scores=np.ones((60, 3)))
    with pytest.raises(FileError, match=r"40 attributions are too many .* \.html"):
        write([tall] * 40, tmp_path / "x.png")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["good", ("a question", "a context")])
@pytest.mark.parametrize("ending", [".json", ".parquet"])
def test_what_is_saved_is_loaded(ending, text, tmp_path):
    attributions = [make(text=text, settings={"n_steps": 50, "absolute": False}), make(text="other")]
    save(attributions, tmp_path / f"x{ending}")
    assert load(tmp_path / f"x{ending}") == attributions


def test_json_is_readable_by_people_and_strict_parsers(tmp_path):
    attribution = make(scores=np.array([[np.nan, 1.0, -np.inf]]), settings={"n_steps": 50}, text=("a", "ü"))
    save([attribution], tmp_path / "x.json")

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    text = (tmp_path / "x.json").read_text(encoding="utf-8")
    (found,) = json.loads(text, parse_constant=refuse)
    assert found["settings"] == {"n_steps": 50}
    assert found["text"] == ["a", "ü"]
    assert found["scores"] == [[None, 1.0, None]]
    assert found == json.loads(json.dumps(record(attribution)))
    assert np.isnan(load(tmp_path / "x.json")[0].scores[0, [0, 2]]).all()


def test_a_text_stays_a_string_in_json():
    assert record(make(text="good"))["text"] == "good"
    assert record(replace(make(), text=("a", "b")))["text"] == ("a", "b")


def test_whole_makes_folders(tmp_path):
    with whole(tmp_path / "a" / "b.txt") as part:
        part.write_text("x")
        assert not (tmp_path / "a" / "b.txt").exists()
    assert (tmp_path / "a" / "b.txt").read_text() == "x"

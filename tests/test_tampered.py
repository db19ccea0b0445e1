"""Files that somebody or something changed: each gives a typed error in one line, or what it gave before."""

import json
import shutil
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import masklens as ml
import tiny
from masklens.attribution import MOST_CELLS, schema
from masklens.corpus import Job, read_back, run
from masklens.diffmask.saved import SavedLens
from masklens.errors import CorpusError, FileError, LensError, MasklensError
from masklens.evaluation.imported import read_attributions
from masklens.reports.document import report_html
from masklens.reports.page import Entry, report_data
from records import make
from tampering import changed, damage, often, one_line

TEXTS = ["a dull plot", "a fast , funny car"]


@pytest.fixture(scope="module")
def lens(tmp_path_factory):
    """A model, the folder of a lens of it, and what it gives."""
    subject = tiny.subject("bert")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = ml.DiffMask.fit(subject, TEXTS * 4, steps=2, sites=[1, 2])
    folder = made.save_pretrained(tmp_path_factory.mktemp("lens"))
    return subject, folder, [a.scores for a in made.explain(TEXTS)]


def right_or_told(lens, change):
    subject, folder, scores = lens
    with tempfile.TemporaryDirectory() as other:
        shutil.copytree(folder, other, dirs_exist_ok=True)
        change(Path(other))
        try:
            found = ml.DiffMask.from_pretrained(other, subject)
        except LensError as error:
            return one_line(error)
        given = [a.scores for a in found.explain(TEXTS)]
        assert all(np.array_equal(a, b) for a, b in zip(given, scores, strict=True))


@settings(often, max_examples=30)
@given(st.data())
def test_a_lens_with_another_description(lens, data):
    def change(folder):
        about = json.loads((folder / "lens.json").read_text())
        (folder / "lens.json").write_text(json.dumps(changed(data.draw, about)))

    right_or_told(lens, change)


@settings(often, max_examples=30)
@given(st.data())
def test_a_lens_with_other_bytes(lens, data):
    name = data.draw(st.sampled_from(["lens.json", "lens.safetensors", "lens.safetensors"]))
    right_or_told(lens, lambda folder: damage(data.draw, folder / name))


@settings(often, max_examples=30)
@given(st.data())
def test_a_lens_with_other_weights_and_no_hash(lens, data):
    """Sizes and names of weights are checked also where nobody wrote down their hash."""
    from safetensors.torch import load_file, save_file

    def change(folder):
        about = json.loads((folder / "lens.json").read_text()) | {"weights": None}
        (folder / "lens.json").write_text(json.dumps(about))
        tensors = load_file(folder / "lens.safetensors")
        name = data.draw(st.sampled_from(sorted(tensors)))
        value = tensors.pop(name)
        kind = data.draw(st.sampled_from(["gone", "nan", "int", "wide", "renamed"]))
        if kind != "gone":
            wide = value.reshape(-1).repeat(2)
            made = {"nan": value * float("nan"), "int": value.long(), "wide": wide, "renamed": value}[kind]
            tensors["other" if kind == "renamed" else name] = made
        save_file(tensors, folder / "lens.safetensors")

    subject, folder, _ = lens
    with tempfile.TemporaryDirectory() as other:
        shutil.copytree(folder, other, dirs_exist_ok=True)
        change(Path(other))
        with pytest.raises(LensError):
            ml.DiffMask.from_pretrained(other, subject)


def test_sizes_in_a_lens_take_no_memory(lens):
    subject, folder, _ = lens
    about = json.loads((folder / "lens.json").read_text())
    with tempfile.TemporaryDirectory() as other:
        for settings_, places_ in (({"hidden": 10**9}, 0), ({"hidden": 10**30}, 0), ({}, 10**6)):
            shutil.copytree(folder, other, dirs_exist_ok=True)
            changed_ = about | {"settings": about["settings"] | settings_, "places": places_}
            Path(other, "lens.json").write_text(json.dumps(changed_))
            if settings_:
                with pytest.raises(LensError, match="does not hold the weights"):
                    ml.DiffMask.from_pretrained(other, subject)
    SavedLens.model_validate_json((folder / "lens.json").read_bytes())


def usable(attributions):
    """Whether attributions can be shown and saved."""
    for a in attributions:
        assert a.scores.shape == (len(a.sites), len(a.tokens)) and not np.isinf(a.scores).any()
        a.words()
    report_html(report_data([Entry(a, "x") for a in attributions], title="x")).encode()
    with tempfile.TemporaryDirectory() as folder:
        assert ml.load(ml.save(attributions, Path(folder) / "x.parquet")) == attributions


GOOD = [make(), replace(make(), text=("good", "movie"), segments=(0, 0, 1))]


@settings(often, max_examples=60)
@given(st.data(), st.sampled_from([".json", ".parquet"]))
def test_attributions_with_other_values(data, ending):
    with tempfile.TemporaryDirectory() as folder:
        path = ml.save(GOOD, Path(folder) / f"x{ending}")
        rows = json.loads(path.read_text()) if ending == ".json" else pq.read_table(path).to_pylist()
        rows = changed(data.draw, rows)
        try:
            if ending == ".json":
                path.write_text(json.dumps(rows))
            else:
                pq.write_table(pa.Table.from_pylist(rows), path)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, ValueError, OverflowError):
            return  # no such table can be written
        except (AttributeError, TypeError):
            return
        for read in (ml.load, read_attributions):
            try:
                found = read(path)
            except FileError as error:
                one_line(error)
            else:
                usable(found)


def test_a_flipped_bit_anywhere_in_a_parquet_file_is_noticed(tmp_path):
    """Also in its footer and in the headers of its pages, which have no checksum by themselves."""
    raw = ml.save(GOOD, tmp_path / "x.parquet").read_bytes()
    other, noticed = tmp_path / "y.parquet", 0
    for place in range(0, len(raw), 11):
        other.write_bytes(raw[:place] + bytes([raw[place] ^ 1 << place % 8]) + raw[place + 1 :])
        try:
            assert ml.load(other) == GOOD, place
        except FileError as error:
            one_line(error)
            noticed += 1
    assert noticed > 0.9 * len(raw) / 11


def test_a_parquet_file_that_another_tool_wrote_again_is_read(tmp_path):
    """A table takes the checksum's place along, which then says nothing about the new file."""
    table = pq.read_table(ml.save([*GOOD, *GOOD], tmp_path / "x.parquet"))
    pq.write_table(table.slice(1), tmp_path / "y.parquet")
    assert ml.load(tmp_path / "y.parquet") == [*GOOD, *GOOD][1:]
    assert list(read_attributions(tmp_path / "y.parquet")) == [*GOOD, *GOOD][1:]


def test_a_text_that_looks_like_a_checksum(tmp_path):
    one = replace(GOOD[0], text="masklens.checksum: crc32:00000000", offsets=((0, 0), (0, 8), (0, 0)))
    raw = ml.save([one], tmp_path / "x.parquet").read_bytes()
    assert ml.load(tmp_path / "x.parquet") == [one]
    column = pq.read_metadata(tmp_path / "x.parquet").row_group(0).column(0)
    assert column.statistics.min == column.statistics.max == one.text  # as it was written
    (tmp_path / "y.parquet").write_bytes(raw.replace(b"masklens.checksum: c", b"masklens.checksum: d", 1))
    with pytest.raises(FileError):
        ml.load(tmp_path / "y.parquet")


@settings(often, max_examples=60)
@given(st.data(), st.sampled_from([".json", ".parquet"]))
def test_attributions_with_other_bytes(data, ending):
    with tempfile.TemporaryDirectory() as folder:
        path = ml.save(GOOD, Path(folder) / f"x{ending}")
        damage(data.draw, path)
        for read in (ml.load, read_attributions):
            try:
                found = read(path)
            except FileError as error:
                one_line(error)
            else:
                usable(found)
                assert ending == ".json" or found == GOOD


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scores": [[1.0, 2.0]]}, "one per token"),
        ({"scores": [[1.0, float("nan"), 0.0]]}, "finite number"),
        ({"scores": [[1.0, 1e39, 0.0]]}, "less than or equal"),
        ({"scores": [[1.0] * 3] * 3}, "one each is needed"),
        ({"offsets": [[0, 0], [0, 99], [0, 0]]}, "0 to 99 are not in the text"),
        ({"offsets": [[0, 0], [3, 1], [0, 0]]}, "3 to 1 are not in the text"),
        ({"segments": [0, 1, 0]}, "there is one text"),
        ({"special": [True]}, "one per token"),
        ({"merge": "median"}, "merge"),
        ({"sites": [-1]}, "sites"),
        ({"text": "\ud800ovie"}, "text.*invalid character"),
        ({"tokens": ["a", "\ud800", "b"]}, "tokens.1.*invalid character"),
        ({"settings": {"x": "\ud800"}}, "invalid character"),
        ({"settings": "["}, "settings"),
    ],
)
def test_what_is_wrong_with_attributions_is_said(change, message, tmp_path):
    row = json.loads(ml.save([make()], tmp_path / "x.json").read_text())[0]
    (tmp_path / "x.json").write_text(json.dumps([row | change]))
    with pytest.raises(FileError, match=f"row 1 of .*x.json cannot be used: .*{message}"):
        ml.load(tmp_path / "x.json")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"tokens": ["a", "film"], "scores": [1, 2]}, "'film'.*number 2.* not in its text"),
        ({"tokens": ["plot", "a"], "scores": [1, 2]}, "'a'.* not in its text after"),
        ({"tokens": ["a", "plot"], "scores": [1]}, "2 tokens and 1 scores"),
        ({"tokens": ["a", "plot"], "scores": [1, float("inf")]}, "finite number"),
        ({"tokens": ["a", "plot"], "scores": [[1, 2], [3]]}, "2 tokens and 1 scores"),
        ({"tokens": ["a", "plot"], "scores": [[1, 2], [3, 4]], "sites": [1]}, "one each is needed"),
        ({"tokens": [], "scores": []}, "tokens"),
        ({"tokens": ["a", None], "scores": [1, 2]}, "tokens.1"),
        ({"tokens": ["a", "plot"], "scores": ["1", "2"]}, "scores"),
    ],
)
def test_attributions_of_other_tools_are_checked(row, message, tmp_path):
    for ending, form in ((".json", "[{}]"), (".jsonl", "{}")):
        path = tmp_path / f"x{ending}"
        path.write_text(form.format(json.dumps({"text": "a plot"} | row)))
        with pytest.raises(FileError, match=f"row 1 of .*{message}"):
            read_attributions(path)


def test_special_tokens_and_sub_words_of_other_tools_are_found(tmp_path):
    row = {
        "text": "Café plots",
        "tokens": ["[CLS]", "cafe", "plot", "##s", "</s>"],
        "scores": [0, 1, 2, 3, 4],
    }
    (tmp_path / "x.json").write_text(json.dumps([row]))
    (found,) = read_attributions(tmp_path / "x.json")
    assert found.offsets == ((0, 0), (0, 4), (5, 9), (9, 10), (0, 0)) and found.special[0]
    row = {"text": "a 好 plot , mostly", "tokens": ["a", "[UNK]", "plot", "mostly"], "scores": [0, 1, 2, 3]}
    (tmp_path / "x.json").write_text(json.dumps([row]))
    (found,) = read_attributions(tmp_path / "x.json")
    assert [found.text[start:end] for start, end in found.offsets] == ["a", "好", "plot", "mostly"]


def test_a_small_file_that_holds_a_lot_is_refused(tmp_path, monkeypatch):
    """Without a limit such a file took gigabytes."""
    rows = pq.read_table(ml.save([make()], tmp_path / "one.parquet")).to_pylist() * 40_000
    pq.write_table(pa.Table.from_pylist(rows, schema=schema(pa)), tmp_path / "x.parquet")
    monkeypatch.setattr("masklens.attribution.MOST_CELLS", MOST_CELLS // 100)
    with pytest.raises(FileError, match="more than can be taken into memory"):
        ml.load(tmp_path / "x.parquet")
    with pytest.raises(FileError, match="more than can be taken into memory"):
        read_attributions(tmp_path / "x.parquet")


@pytest.fixture(scope="module")
def corpus_run(tmp_path_factory):
    """A finished corpus run, its job, and its rows."""
    folder = tmp_path_factory.mktemp("corpus")
    tiny.model("bert").save_pretrained(folder / "model")
    tiny.FAMILIES["bert"].tokenizer().save_pretrained(folder / "model")
    (folder / "x.txt").write_text("\n".join(TEXTS * 4))
    job = Job(str(folder / "model"), str(folder / "x.txt"), "random", shard_rows=4, verify=False)
    run(job, str(folder / "out"))
    return job, folder / "out", rows_of(folder / "out")


def rows_of(folder):
    return [(row.row_id, row.attribution, row.label) for row in read_back(str(folder))]


@settings(often, max_examples=60)
@given(st.data())
def test_a_corpus_folder_with_other_bytes(corpus_run, data):
    job, folder, rows = corpus_run
    with tempfile.TemporaryDirectory() as other:
        shutil.copytree(folder, other, dirs_exist_ok=True)
        files = sorted(path for path in Path(other).rglob("*") if path.is_file() and path.name != ".lock")
        damage(data.draw, data.draw(st.sampled_from(files)))
        for action in (lambda: None, lambda: run(job, other)):
            try:
                action()
                assert rows_of(other) == rows
            except MasklensError as error:
                one_line(error)


@settings(often, max_examples=20)
@given(st.data())
def test_a_manifest_with_other_values(corpus_run, data):
    job, folder, rows = corpus_run
    with tempfile.TemporaryDirectory() as other:
        shutil.copytree(folder, other, dirs_exist_ok=True)
        manifest = json.loads((folder / "manifest.json").read_text())
        Path(other, "manifest.json").write_text(json.dumps(changed(data.draw, manifest)))
        for action in (lambda: None, lambda: run(job, other)):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    action()
                    assert rows_of(other) == rows
            except CorpusError as error:
                one_line(error)

"""`masklens report`: what it explains and verifies, from texts or from attributions."""

import json
import re

import pytest
from typer.testing import CliRunner

import masklens as ml
import tiny
from masklens.cli.main import app
from masklens.errors import FileError, MethodError
from masklens.evaluation.imported import holds_attributions
from masklens.evaluation.verify import Question, Verifier
from masklens.methods.ways import find_ways
from masklens.reports.report import first_texts, named, prove
from records import make

TEXTS = ["a good film", "the plot is bad", "good good bad"]


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def data_in(path):
    html = path.read_text(encoding="utf-8")
    return json.loads(re.search(r'id="data">(.*?)</script>', html, re.DOTALL).group(1))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A checkpoint, texts with labels, and attributions of them."""
    root = tmp_path_factory.mktemp("report")
    subject = tiny.subject("bert")
    subject.module.save_pretrained(root / "model")
    subject.tokenizer.save_pretrained(root / "model")
    labels = subject.task.labels
    rows = "".join(f"{text},{labels[i]}\n" for i, text in enumerate(TEXTS))
    (root / "texts.csv").write_text("text,label\n" + rows)
    ml.save(ml.explain(subject, TEXTS, "gradient", sites="all"), root / "made.parquet")
    return root


def test_every_site_has_the_proof_that_verify_gives(bert):
    made = ml.explain(bert, TEXTS, "gradient", sites=[0, 2])
    shown = list(prove(made, "name", Verifier(bert, TEXTS)))
    assert [entry.attribution for entry in shown] == list(made)
    for row, site in enumerate((0, 2)):
        assert [entry.proofs[row] for entry in shown] == ml.verify(bert, made, site=site)
    assert all(entry.proofs == [] for entry in prove(made, "name"))


def test_a_lens_brings_its_own_baseline(bert):
    texts = tiny.texts("bert", "classification")
    with pytest.warns(UserWarning):
        lens = ml.DiffMask.fit(bert, texts * 4, over="states", steps=2, batch_size=4, sites=[1, 2])
    made = lens.explain(texts)
    assert made[0].settings["over"] == "states"
    assert list(named(made)) == ["diffmask (states)"]
    proofs = [
        entry.proofs for entry in prove(made, "lens", Verifier(bert, texts), [lens], Question(keep=0.7))
    ]
    for row, site in enumerate(lens.sites):
        assert [found[row] for found in proofs] == ml.verify(
            lens.subject, made, replace=lens, keep=0.7, site=site
        )


def test_texts_are_explained_and_verified(folder):
    out = folder / "one.html"
    common = ("--model", folder / "model", "--input", folder / "texts.csv", "--label-column", "label")
    done = call(
        "report", *common, "--method", "gradient", "--method", "attention", "--games", "--out", out, "--json"
    )
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["methods"] == ["gradient", "attention"]
    data = data_in(out)
    assert [text["text"] for text in data["texts"]] == [[text] for text in TEXTS]
    assert all(text["label"] for text in data["texts"])
    assert all(m["proofs"] for text in data["texts"] for m in text["maps"])
    assert {"The hiding game", "The revealing game", "Verification", "Which method?"} <= {
        p["title"] for p in data["parts"]
    }


def test_several_targets_and_columns_of_the_file(folder):
    out = folder / "three.html"
    first, second = tiny.subject("bert").task.labels[:2]
    common = (
        "--model",
        folder / "model",
        "--input",
        folder / "texts.csv",
        "--method",
        "gradient",
        "--out",
        out,
    )
    done = call("report", *common, "--target", first, "--target", second, "--slice-column", "label")
    assert done.exit_code == 0, done.stderr
    data = data_in(out)
    assert [[m["target"] for m in text["maps"]] for text in data["texts"]] == [[first, second]] * len(TEXTS)
    assert all(set(text["columns"]) == {"label"} for text in data["texts"])
    ranking = next(part for part in data["parts"] if part["title"] == "Which method?")
    assert f"of {len(TEXTS)} texts" in ranking["note"]  # each text counts once
    one = call("report", *common, "--target", first)
    assert one.exit_code == 0, one.stderr
    alone = next(part for part in data_in(out)["parts"] if part["title"] == "Which method?")
    assert [row for row in alone["rows"] if row[0] == "random order"] == [
        row for row in ranking["rows"] if row[0] == "random order"
    ]
    games = call("report", *common, "--target", first, "--target", second, "--games")
    assert games.exit_code == 2 and "--games needs one target" in games.stderr


def test_a_column_to_slice_by_needs_a_file(folder):
    done = call("report", "a text", "--model", folder / "model", "--slice-column", "label")
    assert done.exit_code == 2 and "--slice-column needs a file" in done.stderr


def test_attributions_are_shown_as_they_are_and_verified_with_a_model(folder):
    out = folder / "two.html"
    assert call("report", "--input", folder / "made.parquet", "--out", out, "--limit", 2).exit_code == 0
    data = data_in(out)
    assert len(data["texts"]) == 2 and data["parts"] == []
    assert "proofs" not in data["texts"][0]["maps"][0]
    model = ("--model", folder / "model")
    assert call("report", "--input", folder / "made.parquet", "--out", out, *model).exit_code == 0
    shown = data_in(out)["texts"][0]["maps"][0]
    assert len(shown["proofs"]) == len(shown["sites"]) > 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "gradient"], "--method needs texts"),
        (["a text"], "a text needs texts"),
        (["--games"], "--games needs the model"),
        (["--out", "x.pdf"], "end the name in .html"),
    ],
)
def test_options_that_would_do_nothing_are_errors(folder, arguments, message):
    done = call("report", "--input", folder / "made.parquet", *arguments)
    assert done.exit_code == 2
    assert message in done.stderr and done.stderr.count("\n") == 1


def test_files_of_attributions_and_of_texts(folder):
    assert holds_attributions(str(folder / "made.parquet"))
    (folder / "made.json").write_text('[{"text": "a", "tokens": ["a"], "scores": [1]}]')
    assert holds_attributions(str(folder / "made.json"))
    (folder / "texts.json").write_text('[{"text": "a"}]')
    assert not holds_attributions(str(folder / "texts.json"))
    assert not holds_attributions(str(folder / "texts.csv"))
    assert not holds_attributions("none.parquet")


def test_what_is_chosen():
    class Lens:
        over = "inputs"

    assert list(find_ways([], "lime")) == ["lime"]
    assert list(find_ways([], "lime", [Lens()])) == ["diffmask (inputs)"]
    assert list(find_ways(["diffmask", "lime"], "lime", [Lens()])) == ["diffmask (inputs)", "lime"]
    assert find_ways(["decoded_gradcam"], "lime", lm_head="head")["decoded_gradcam"].options == {
        "lm_head": "head"
    }
    with pytest.raises(MethodError, match="lm_head= is for decoded_gradcam"):
        find_ways(["lime"], "lime", lm_head="head")
    with pytest.raises(MethodError, match="no method 'nonsense'"):
        find_ways(["nonsense"], "lime")


def test_the_python_call(tmp_path, bert):
    made = ml.explain(bert, TEXTS, "gradient")
    path = ml.report({"mine": made}, tmp_path / "new" / "x.html", title="T", subject=bert)
    assert data_in(path)["texts"][0]["maps"][0]["name"] == "mine"
    with pytest.raises(FileError, match="end the name in .html"):
        ml.report(made, tmp_path / "x.txt")
    assert first_texts([make(text=t) for t in "abab"], 1) == [make(text="a"), make(text="a")]

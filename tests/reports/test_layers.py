"""What each layer would predict, in the data of a report."""

import json
import re

import pytest
from typer.testing import CliRunner

import masklens as ml
import tiny
from masklens.cli.main import app
from masklens.reports.labels import visible
from masklens.reports.layers import layers_data, read_layers
from records import make


def texts_in(path):
    html = path.read_text(encoding="utf-8")
    return json.loads(re.search(r'id="data">(.*?)</script>', html, re.DOTALL).group(1))["texts"]


@pytest.mark.parametrize(
    ("family", "head"),
    [("bert", "classification"), ("electra", "multi_label"), ("gpt2", "causal"), ("bert", "mlm")],
)
def test_a_report_has_the_predictions_of_the_layers(family, head, tmp_path):
    subject, texts = tiny.subject(family, head), tiny.texts(family, head)
    sets = {name: ml.explain(subject, texts, name) for name in ("gradient", "grad_x_input")}
    shown = texts_in(ml.report(sets, tmp_path / "made.html", subject=subject))
    for text, expected in zip(shown, ml.layer_predictions(subject, texts), strict=True):
        row = text["layers"]
        assert text["logit_lens_sites"] == list(expected.sites)
        assert [name for name, _ in row["lens"]] == [visible(name) for name in expected.predictions]
        assert [share for _, share in row["lens"]] == pytest.approx(expected.probabilities, abs=1e-4)
        assert (row["piece"], row["settled"]) == (visible(expected.answer), expected.settled)
        assert ("trained for the last layer only" in row["note"]) == (
            head in ("classification", "multi_label")
        )


def test_a_report_without_verification_has_them_too(bert, tmp_path):
    """They cost one run of the model, and are no part of the verification."""
    texts, out = ["a good film", "the plot"], tmp_path / "made.html"
    expected = [visible(found.answer) for found in ml.layer_predictions(bert, texts)]
    made = ml.explain(bert, texts, "gradient")
    assert '"proofs":' in ml.report(made, out, subject=bert).read_text(encoding="utf-8")
    shown = texts_in(ml.report(made, out, subject=bert, verify=False))
    assert [text["layers"]["piece"] for text in shown] == expected
    assert '"proofs":' not in out.read_text(encoding="utf-8")


def test_explain_without_verification_writes_them_into_its_report(tmp_path):
    command = ["explain", "a fine film", "--method", "gradient", "--no-verify", "--out"]
    done = CliRunner().invoke(app, [*command, str(tmp_path / "made.html"), "--json"])
    assert done.exit_code == 0, done.stderr
    (shown,) = texts_in(tmp_path / "made.html")
    (expected,) = ml.layer_predictions(ml.Subject.default(), ["a fine film"])
    assert shown["layers"]["settled"] == expected.settled


def test_none_without_a_subject_or_where_there_are_none(bert, tmp_path):
    made = ml.explain(bert, ["a good film"], "gradient")
    assert "layers" not in texts_in(ml.report(made, tmp_path / "made.html"))[0]
    numbers = tiny.subject("bert", "regression")
    shown = texts_in(ml.report(ml.explain(numbers, ["a film"]), tmp_path / "made.html", subject=numbers))
    assert "layers" not in shown[0] and "logit_lens_sites" not in shown[0]


def test_a_text_is_read_once_whatever_the_number_of_methods_and_targets(bert, monkeypatch):
    read, layer_predictions = [], ml.layer_predictions

    def counted(subject, texts):
        read.extend(texts)
        return layer_predictions(subject, texts)

    monkeypatch.setattr("masklens.methods.logit_lens.layer_predictions", counted)
    texts = ["a good film", "the plot", "bad"]
    made = [ml.explain(bert, texts, name) for name in ("gradient", "attention", "random")]
    found = read_layers(bert, [one for some in made for one in some])
    assert sorted(read) == sorted(texts) == sorted(found)


def test_a_text_that_cannot_be_read_is_left_out():
    subject = tiny.subject("bert", "mlm")
    texts = ["a [MASK] film", "no mask", "the plot is [MASK]"]
    assert set(read_layers(subject, [make(text=text) for text in texts])) == {texts[0], texts[2]}


def test_the_data_is_plain_and_has_no_hidden_characters():
    (found,) = ml.layer_predictions(tiny.subject("bert"), ["a good film"])
    hostile = type(found)(**{**vars(found), "predictions": ("\u202ea\x1b",) * 5, "answer": "\x00"})
    said = json.dumps(layers_data(hostile), ensure_ascii=False)
    assert not any(one in said for one in "\u202e\x1b\x00") and "U+202E" in said
    assert layers_data(None) == {}

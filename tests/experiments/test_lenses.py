"""The lenses experiment on a tiny random model and a few made-up texts."""

import json

import pytest
from experiments.lenses import experiment as lenses
from experiments.lenses import report as lenses_report

import tiny
from experiments import classifier
from masklens.errors import MethodError

SENTENCES = ["a fast , funny movie .", "the plot is dull .", "a dull car", "the movie is funny"] * 5


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("lenses")
    models, data = root / "models", root / "data"
    tiny.model("bert", "classification").save_pretrained(models / "minilm-sst2")
    tiny.wordpiece().save_pretrained(models / "minilm-sst2")
    (data / "sst").mkdir(parents=True)
    trees = [f"(4 {' '.join(f'(2 {word})' for word in text.split())})\n" for text in SENTENCES]
    for split in ("train", "test"):
        (data / "sst" / f"{split}.txt").write_text("".join(trees))
    return models, data


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(lenses, "MOST_SITES", 2)
    monkeypatch.setattr(classifier, "VALIDATION", 4)


@pytest.mark.filterwarnings("ignore")
def test_everything_on_a_small_scale(folders, small, tmp_path):
    told = []
    how = {"limit": 12, "steps": 2, "device": "cpu"}
    lenses.run(*folders, tmp_path, tell=told.append, **how)
    found = json.loads((tmp_path / "results.json").read_text())
    parts = found["models"]["minilm-sst2"]
    assert set(parts) == set(lenses.parts_for("minilm-sst2"))
    assert found["summary"]["sites"] == sum(
        len(parts[f"lens/{o}/{k}"]["diagnostics"]) for o in lenses.OVERS for k in (0, 1)
    )
    assert parts["alone/1"]["diagnostics"][0]["site"] == 1 and len(parts["alone/1"]["diagnostics"]) == 1
    page = (tmp_path / "results.md").read_text()
    assert "## Two seeds" in page and "## Sites alone" in page and "minilm-sst2" in page
    told.clear()
    lenses.run(*folders, tmp_path, tell=told.append, **how)
    assert told == []  # nothing is done twice


def test_texts_of_the_three_sets_are_kept_apart(folders, small, tmp_path):
    run = lenses.LensRun(*folders, tmp_path, "minilm-sst2", "cpu", None, None, None, 0)
    train, validation, test = run.lens_texts
    assert len(validation) == 4 and len(train) == len(SENTENCES) - 4 and len(test) == len(SENTENCES)
    assert sorted(train + validation) == sorted(SENTENCES)


def test_a_part_that_is_not_there(folders, tmp_path):
    with pytest.raises(MethodError, match="no part 'nothing'"):
        lenses.run(*folders, tmp_path, part=["nothing"])


def site(number, divergence, kept):
    return {"site": number, "divergence": divergence, "kept": kept, "agreement": 1.0}


def test_what_is_counted():
    part = {"diagnostics": [site(0, 0.05, 0.5), site(1, 0.2, 0.4)]}
    models = {"minilm-sst2": {"lens/inputs/0": part, "alone/1": {"diagnostics": [site(1, 0.1, 0.2)]}}}
    assert lenses_report.summary(models, 0.1) == {"sites": 2, "within": 1, "largest": 2.0}
    assert "| minilm-sst2 | 1 | 0.80 | 0.75 |" in lenses_report._alone_lines(models)

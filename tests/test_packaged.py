"""The model that ships inside the package: small, right, and with lenses that keep their margins."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from experiments.sst.treebank import read_split
from safetensors.torch import load_file

import masklens as ml
from masklens.cli import demo
from masklens.model import int8
from masklens.model.default import HOME, OVER
from masklens.reports.terminal import LABEL_WIDTH, blocks


@pytest.fixture(scope="module")
def subject():
    return ml.Subject.default()


def test_it_is_small_and_in_8_bits():
    files = [path for path in HOME.parent.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 17_000_000
    matrices = {name: value for name, value in load_file(HOME / int8.FILE).items() if value.dim() == 2}
    kept = {value.dtype for name, value in matrices.items() if not name.endswith(int8.SCALE)}
    assert kept == {torch.int8}


def test_it_is_an_ordinary_model_in_memory(subject):
    module = subject.module
    assert {p.dtype for p in module.parameters()} == {torch.float32}
    assert type(module).__name__ == "BertForSequenceClassification" and module.name_or_path == str(HOME)


def test_it_reads_reviews(subject):
    texts, labels = demo.read_reviews()
    found = ml.explain(subject, texts, "gradient")
    right = np.mean([a.prediction == label for a, label in zip(found, labels, strict=True)])
    assert right >= 0.85
    assert not any("[UNK]" in a.tokens for a in ml.explain(subject, ["xylophonists quetzal"], "gradient"))


def test_its_language_model_head_decodes_its_states(subject):
    (found,) = ml.explain(subject, ["a fast , funny movie"], "decoded_gradcam", lm_head=HOME)
    own = ml.explain(subject, ["a fast , funny movie"], "decoded_gradcam")[0]
    assert found.scores.max() > 0
    np.testing.assert_allclose(found.scores, own.scores, atol=1e-6)


@pytest.mark.parametrize("over", OVER)
def test_its_lenses_keep_their_margins(subject, over):
    lens = ml.DiffMask.default(subject, over)
    assert lens.sites == subject.sites and lens.over == over
    assert all(d.ok and d.divergence <= lens.settings.margin for d in lens.diagnostics)
    assert min(d.kept for d in lens.diagnostics) < 0.6
    frame = lens.diagnostics.to_pandas()
    assert list(frame.kept) == [d.kept for d in lens.diagnostics]
    assert frame.index[-1] == f"block {lens.sites[-1] - 1}" and frame.ok.all()
    texts, _ = demo.read_reviews()
    proofs = ml.verify(lens.subject, lens.explain(texts), replace=lens)
    assert np.mean([proof.prediction_kept for proof in proofs]) >= 0.8
    assert np.mean([proof.share_removed for proof in proofs]) >= 0.3


def test_the_demo_shows_a_text_whose_layers_differ_on_80_columns(subject):
    shown = demo.most_changing(ml.DiffMask.default(subject).explain(demo.read_reviews()[0]))
    kept = (shown.scores > 0.5).sum(1)
    assert len(set(kept.tolist())) >= 3
    assert len(list(blocks([max(len(token), 5) for token in shown.tokens], 80 - LABEL_WIDTH))) == 1


@pytest.mark.slow
def test_the_demo_ends_in_a_report_and_a_summary(tmp_path):
    from typer.testing import CliRunner

    from masklens.cli.main import app

    done = CliRunner().invoke(app, ["demo", "--out", str(tmp_path), "--json"])
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert (tmp_path / "report.html").stat().st_size > 50_000
    assert "24 reviews" in said["summary"] and "hiding game" in said["summary"]


@pytest.mark.slow
def test_it_is_right_on_the_dev_set_of_sst2_as_its_card_says(subject):
    data = Path(__file__).parents[2] / "shared" / "data"
    if not (data / "sst2" / "dev.tsv").exists():
        pytest.skip("the SST-2 dev set is not beside the repository")
    dev = read_split(data, "sst2", "dev")
    predicted = ml.explain(subject, dev.texts, "random")
    names = [subject.task.labels[label] for label in dev.labels]
    right = np.mean([a.prediction == name for a, name in zip(predicted, names, strict=True)])
    said = re.search(r"dev set: ([\d.]+)%", (HOME / "README.md").read_text(encoding="utf-8"))
    assert 100 * right == pytest.approx(float(said[1]), abs=0.2)  # a text or two may be on the edge

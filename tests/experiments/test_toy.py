"""The toy task: its data, its model, its ground truth, and a small run of the whole command."""

import json
import math
import subprocess
from dataclasses import asdict

import numpy as np
import pytest
import torch
from experiments.toy import digits, ground_truth
from experiments.toy import experiment as toy
from experiments.toy import report as toy_report
from experiments.toy import truth as toy_truth

import masklens
from experiments import results
from masklens.diffmask.trainer import Settings


@pytest.fixture(scope="module")
def data():
    return digits.generate(4000, seed=0)


def test_the_data_are_as_described(data):
    lengths = data.valid.sum(1)
    assert set(lengths.tolist()) == set(range(1, 11))
    assert (data.query[:, 0] != data.query[:, 1]).all()
    assert data.in_query.sum() / data.valid.sum() == pytest.approx(0.5, abs=0.02)
    assert data.label.float().mean() == pytest.approx(0.366, abs=0.03)
    assert data.in_query.any(1).float().mean() == pytest.approx(0.899, abs=0.02)


def test_labels_and_query_positions_counted_slowly(data):
    for query, row, valid, label, inside in zip(*data, data.in_query, strict=True):
        seen = [d for d, v in zip(row.tolist(), valid.tolist(), strict=True) if v]
        n, m = query.tolist()
        assert label == int(seen.count(n) > seen.count(m))
        assert inside[: len(seen)].tolist() == [d in (n, m) for d in seen]


def test_same_seed_same_data():
    one, two, other = (digits.generate(50, seed) for seed in (3, 3, 4))
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    assert not torch.equal(one.digits, other.digits)


def test_texts_encode_to_the_same_digits(data):
    part = data.rows(torch.arange(20))
    batch = digits.encode(part.texts())
    length = batch.shape[1]
    assert torch.equal(batch.inputs["digits"], part.digits[:, :length])
    assert torch.equal(batch.valid, part.valid[:, :length])
    assert batch.tokens[0] == tuple(
        str(int(d)) for d, v in zip(part.digits[0], part.valid[0], strict=True) if v
    )


def test_padding_does_not_change_the_model():
    torch.manual_seed(0)
    subject = digits.subject_for(digits.DigitCounter())
    texts = [("8 1", "8 8 3"), ("0 2", "1 2 3 4 5 6 7 8 9 0")]
    together = subject.states(digits.encode(texts)).output
    alone = torch.cat([subject.states(digits.encode([text])).output for text in texts])
    assert torch.allclose(together, alone, atol=1e-6)


def test_against_truth_is_the_mean_divergence_from_even():
    truth = torch.tensor([[True, True, False], [False, False, False], [True, False, False]])
    scores = np.array([[0.2, 0.6, 0.2], [1.0, 0.0, 0.0], [0.5, 0.5, 0.0]])
    expected = (0.5 * math.log(0.5 / 0.2) + 0.5 * math.log(0.5 / 0.6) + math.log(1 / 0.5)) / 2
    assert toy_truth.against_truth(scores, truth)["kl"] == pytest.approx(expected)
    assert toy_truth.against_truth(np.array([[1.0, 0, 0]] * 3), truth)["kl"] is None


def test_ground_truth_by_hand():
    truth, scores = np.array([[1.0, 1.0, 0.0]]), np.array([[2.0, 1.0, 1.0]])
    assert ground_truth.kl(truth, scores)[0] == pytest.approx(0.5 * np.log(1) + 0.5 * np.log(2))
    middle = np.array([0.5, 0.375, 0.125])
    p, q = np.array([0.5, 0.5, 0.0]), np.array([0.5, 0.25, 0.25])
    by_hand = 0.5 * np.sum(p[:2] * np.log(p[:2] / middle[:2])) + 0.5 * np.sum(q * np.log(q / middle))
    assert ground_truth.js(truth, scores)[0] == pytest.approx(by_hand)
    assert np.isinf(ground_truth.kl(truth, np.array([[1.0, 0.0, 0.0]])))[0]
    assert ground_truth.js(np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]]))[0] == pytest.approx(np.log(2))
    with pytest.raises(ValueError, match="below 0"):
        ground_truth.kl(truth, -scores)


def test_a_linear_classifier_on_separable_points():
    x = torch.tensor([[0.0, 0], [0, 1], [5, 0], [5, 1]])
    y = torch.tensor([0, 0, 1, 1])
    assert toy_truth._linear(x, y, x, y, 2) == 1.0
    assert toy_truth._linear(x, y, x, 1 - y, 2) == 0.0


def test_the_whole_command_on_a_small_scale(tmp_path, monkeypatch):
    for name in ("integrated_gradients", "information_bottleneck", "guan"):
        monkeypatch.setitem(toy_truth.OPTIONS, name, {**toy_truth.OPTIONS[name], "n_steps": 5})
    monkeypatch.setitem(toy_truth.OPTIONS, "diffmask", {**toy_truth.OPTIONS["diffmask"], "steps": 5})
    train = digits.train_model
    monkeypatch.setattr(toy, "train_model", lambda a, b, seed: train(a, b, seed, epochs=1))
    said: list[str] = []
    toy.run(tmp_path, [0, 3], count=700, steps=30, tell=said.append)
    assert [line.split(": ")[1] for line in said] == ["seed/0", "detail/0", "seed/3"]
    toy.run(tmp_path, [0, 3], count=700, steps=30, tell=said.append)
    assert len(said) == 3  # nothing is done again
    found = json.loads((tmp_path / "results.json").read_text())
    rows = found["seeds"]
    assert [one["seed"] for one in rows] == [0, 3]
    first = rows[0]
    assert first["diffmask"] == found["table1"]["diffmask"] and first["figure3e"] == found["figure3e"]
    assert rows[1]["diffmask"] != first["diffmask"]
    lenses = found["settings"]["lenses"]
    assert lenses["states"] == asdict(Settings(margin=toy.MARGIN, steps=30))  # else the defaults
    assert lenses["inputs"] == asdict(Settings(margin=toy.INPUT_MARGIN, steps=30))
    assert found["commits"] == [results.commit()]
    assert set(toy_report.PAPER) <= set(found["table1"])
    assert set(found["figure3e"]) == {"conditioned_on_input", "conditioned_on_hidden"}
    assert 0 <= found["accuracy"] <= 1 and found["seed"] == 0
    text = (tmp_path / "results.md").read_text()
    assert "paper D_KL" in text and results.commit() in text
    assert all(f"| {seed} | {one['accuracy']:.1%} |" in text for seed, one in zip((0, 3), rows, strict=True))
    for name in ("figure3", "figure11"):
        assert (tmp_path / f"{name}.png").stat().st_size > 5_000


def test_a_seed_is_solved_by_what_it_reaches():
    assert toy_report.at_most(0.05, {"kl": 0.05}, {"kl": 0.0})
    assert not toy_report.at_most(0.05, {"kl": 0.0}, {"kl": 0.051})
    assert not toy_report.at_most(0.05, {"kl": None})  # infinite


def test_results_name_the_commit_or_the_version(monkeypatch):
    def git(*arguments):
        raise subprocess.CalledProcessError(128, "git")

    monkeypatch.setattr(results, "_git", git)
    assert results.commit.__wrapped__() == masklens.__version__
    answers = {"rev-parse": "1234abc"}
    monkeypatch.setattr(results, "_git", lambda folder, what, *_: answers.get(what, ""))
    assert results.commit.__wrapped__() == "1234abc"
    answers["status"] = " M lens.py"
    assert results.commit.__wrapped__() == "1234abc with changes"


@pytest.mark.slow
@pytest.mark.xfail(reason="the default lens keeps digits that do not count: D_KL 0.3 to 0.5 (docs/limits.md)")
def test_the_toy_task_is_solved(tmp_path):
    found = toy.run(tmp_path, [1])
    assert found["accuracy"] >= 0.99
    assert found["table1"]["diffmask"]["kl"] <= 0.004 and found["table1"]["diffmask"]["js"] <= 0.0015
    assert all(entry["kl"] <= 0.05 for entry in found["figure3e"].values())
    assert found["table1"]["erasure"]["kl"] is None
    assert found["table1_solved"] and found["figure3e_solved"]

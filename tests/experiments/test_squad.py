"""The question answering experiments on a tiny random model and made-up questions, measures by hand."""

from __future__ import annotations

import json
import lzma
import warnings
from dataclasses import asdict

import numpy as np
import pytest
import torch
from experiments.results import commit
from experiments.squad import experiment as squad
from experiments.squad import figures as squad_figures
from experiments.squad import groups as squad_groups
from experiments.squad import masks as squad_masks
from experiments.squad import report as squad_report
from experiments.squad.questions import Question, gold_spans, read_questions, shuffled, that_fit
from test_sst import Tagger

import tiny
from masklens import Subject, verify
from masklens.diffmask.lens import DiffMask
from masklens.diffmask.trainer import Settings
from masklens.errors import FileError, MethodError
from masklens.tasks.answers import exact_match

PASSAGES = {
    "John Smith lives in Paris . the plot is dull": {"who lives in Paris ?": ["John Smith", "John"]},
    "a fast funny movie is a movie": {"what is fast ?": ["movie"], "what is it ?": ["a fast funny movie"]},
}


def entry(context, question, answers):
    golds = [
        {"text": a, "answer_start": context.index(a), "n_occ": context.count(a)} for a in answers + answers
    ]
    return {"id": question, "question": f" {question}", "answers": golds}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("squad")
    tiny.model("bert", "qa").save_pretrained(root / "models" / "minilm-squad")
    tiny.wordpiece().save_pretrained(root / "models" / "minilm-squad")
    paragraphs = [
        {"context": context, "qas": [entry(context, q, a) for q, a in asked.items()]}
        for context, asked in PASSAGES.items()
    ]
    (root / "data" / "squad").mkdir(parents=True)
    for split, times in (("train", 40), ("dev", 4)):
        articles = {"data": [{"title": "x", "paragraphs": paragraphs}] * times}
        with lzma.open(root / "data" / "squad" / f"{split}.json.xz", "wt") as file:
            json.dump(articles, file)
    return root / "models", root / "data"


@pytest.fixture(scope="module")
def lens():
    """Gates of all kinds: some shut, some open."""
    subject = tiny.subject("bert", "qa")
    pairs = [(q, context) for context, asked in PASSAGES.items() for q in asked]
    with pytest.warns(UserWarning, match="few"):
        made = DiffMask.fit(subject, pairs * 8, "inputs", 1.0, steps=2, batch_size=4)
    with torch.no_grad():
        for gate in made.probe.gates:
            gate.bias.fill_(1.0)
            torch.nn.init.normal_(gate.outer.weight, std=0.05)
    return made


@pytest.fixture(scope="module")
def questions(folders):
    return read_questions(folders[1], "dev")[:3]


def test_questions_are_read(folders, questions):
    first, second, _ = questions
    assert first.pair == ("who lives in Paris ?", "John Smith lives in Paris . the plot is dull")
    assert first.answers == ("John Smith", "John") and first.once
    assert second.answers == ("movie",) and not second.once  # it occurs twice
    with pytest.raises(FileError, match="--data"):
        read_questions(folders[0], "dev")
    again = shuffled(questions, 3)
    assert sorted(again) == sorted(questions) and again == shuffled(questions, 3)


def test_only_what_fits_is_used(questions):
    subject = tiny.subject("bert", "qa")
    lengths = [len(subject.encode([q.pair]).tokens[0]) for q in questions]
    assert that_fit(subject, questions, max(lengths)) == questions
    fewer = that_fit(subject, questions, min(lengths))
    assert fewer == [q for q, n in zip(questions, lengths, strict=True) if n == min(lengths)]


def test_gold_spans_of_several_answers(questions):
    subject = tiny.subject("bert", "qa")
    batch = subject.encode([questions[0].pair])
    spans = gold_spans(batch, 0, questions[0])
    words = [" ".join(batch.tokens[0][a : b + 1]) for a, b in spans]
    assert len(spans) == 2 and words[0].startswith(words[1]) and spans[0][0] == spans[1][0]
    cut = Subject(subject.module, subject.tokenizer, truncate=True, max_length=12)
    late = Question((questions[0].pair[0], questions[0].pair[1]), ("dull",), True)
    assert gold_spans(cut.encode([late.pair]), 0, late) == []  # the answer was cut off


def test_sites_are_what_the_lens_itself_finds(lens, questions):
    """Against one question at a time, through `DiffMask.verify`."""
    found = squad_masks.measure(lens, questions)
    shares = []
    for i, site in enumerate(lens.sites):
        slow = [verify(lens.subject, lens.explain([q.pair]), replace=lens, site=site)[0] for q in questions]
        at = found["sites"][i]
        assert at["divergence"] == pytest.approx(np.mean([v.divergence for v in slow]), abs=1e-5)
        assert at["spans_kept"] == pytest.approx(np.mean([v.prediction_kept for v in slow]))
        lengths = [len(lens.subject.encode([q.pair]).tokens[0]) for q in questions]
        removed = np.average([v.share_removed for v in slow], weights=lengths)
        assert at["masked"] == pytest.approx(removed)
        assert at["ok"] == (at["divergence"] <= 1.0)
        shares.append(at["masked"])
    assert 0.02 < shares[0] < 0.98  # the test means something
    answers = [a.prediction for a in lens.explain([q.pair for q in questions])]
    right = [exact_match(said, q.answers) for said, q in zip(answers, questions, strict=True)]
    assert found["before"]["em"] == pytest.approx(np.mean(right))


def test_what_is_kept_is_written_and_read(lens, questions, tmp_path):
    cost = squad_masks.write_kept(lens, questions, tmp_path / "kept.npz")
    assert cost["ratio"] > 0 and cost["questions"] == 3
    kept = squad_masks.read_kept(tmp_path / "kept.npz")
    slow = lens.explain([q.pair for q in questions])
    for one, keep in zip(slow, kept.keep, strict=True):
        np.testing.assert_allclose(keep, one.scores, atol=0.5 / 255 + 1e-6)
    again = squad_groups.attributions(lens.subject, questions, kept, "inputs")
    assert [a.prediction for a in again] == [a.prediction for a in slow]
    assert [a.tokens for a in again] == [a.tokens for a in slow]


def test_groups_by_hand(questions):
    subject = tiny.subject("bert", "qa")
    batch = subject.encode([q.pair for q in questions])
    rng = np.random.default_rng(0)
    keep = [rng.random((2, int(batch.valid[i].sum()))).astype(np.float32) for i in range(3)]
    golds = gold_spans(batch, 0, questions[0])
    right = squad_masks.Kept(keep, np.array([golds[1], (1, 1), (1, 1)]))
    found = squad_groups.group_means(subject, questions, right)
    asked = [
        keep[i][
            :, [t for t in range(keep[i].shape[1]) if not batch.special[i, t] and batch.segments[i, t] == 0]
        ]
        for i in range(3)
    ]
    assert found["question"]["by_site"] == pytest.approx(np.mean([k.mean(1) for k in asked], 0), rel=1e-5)
    each = [keep[0][:, a : b + 1].mean(1) for a, b in golds]
    third = gold_spans(batch, 2, questions[2])
    last = keep[2][:, third[0][0] : third[0][1] + 1].mean(1)
    assert found["gold"]["by_site"] == pytest.approx((np.max(each, 0) + last) / 2, rel=1e-5)
    assert found["gold"]["questions"] == 2  # the second question's answer occurs twice
    assert found["gold_wrong"]["questions"] == 1  # the first one's is right: one of several gold answers
    assert found["gold_wrong"]["by_site"] == pytest.approx(last, rel=1e-5)


def run_small(folders, out, **options):
    said = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few texts
        squad.run(*folders, out, limit=6, steps=2, tell=said.append, **options)
    return [line.split(": ")[1] for line in said]


@pytest.mark.slow
def test_everything_is_done_once(folders, tmp_path, monkeypatch):
    monkeypatch.setattr("masklens.analysis.load_spacy", Tagger)
    done = run_small(folders, tmp_path)
    assert [p for p in squad.parts_for() if p not in done] == []
    found = json.loads((tmp_path / "results.json").read_text())["minilm-squad"]
    keys = {"site", "masked", "spans_kept", "divergence", "em", "f1", "ok"}
    for over in squad.OVERS:
        assert all(keys <= set(site) for site in found[over]["sites"])
        assert set(found[over]["margins"]) == {"0.2", "0.5", "1.0"}
        assert {"question", "passage", "gold"} <= set(found[over]["groups"])
        assert set(found[over]["speech"]) == {"question", "passage"}
    for name in squad_report.FIGURES:
        if not name.startswith("figure15") or (tmp_path / f"{name}.png").exists():
            assert (tmp_path / f"{name}.png").stat().st_size > 1000, name
    text = (tmp_path / "results.md").read_text()
    assert "The paper's claims" in text and "margin 0.5: every site" in text
    assert run_small(folders, tmp_path) == []


def test_a_lens_is_fitted_by_the_defaults(folders, tmp_path):
    assert run_small(folders, tmp_path, part=["lens/states/0.5"]) == ["lens/states/0.5"]
    made = [p.name for p in (tmp_path / "lenses").iterdir() if p.is_dir()]
    assert made == ["minilm-squad-states-0.5-seed0-first6-steps2"]
    results = json.loads((tmp_path / "results.json").read_text())
    by_default = Settings(margin=0.5, steps=2, batch_size=6)
    assert results["minilm-squad"]["lenses"]["states-0.5"]["lens"] == asdict(by_default)
    assert results["commits"] == [commit()]


def test_what_is_not_there_is_an_error(folders, tmp_path):
    with pytest.raises(MethodError, match="no part 'best'"):
        squad.run(*folders, tmp_path, part=["best"])
    with pytest.raises(FileError, match="mpnet-squad"):
        squad.run(tmp_path, folders[1], tmp_path)


def test_claims_can_hold_and_fail():
    site = {"masked": 0.97, "spans_kept": 0.92}
    assert squad_report._deepest({"inputs": {"sites": [site]}})[1]
    assert not squad_report._deepest({"inputs": {"sites": [site | {"spans_kept": 0.8}]}})[1]
    groups = {"question": {"by_site": [0.9, 0.5]}, "passage": {"by_site": [0.8, 0.1]}}
    judge = squad_report._questions_longer("inputs")
    assert judge({"inputs": {"groups": groups}})[1]
    groups["passage"]["by_site"] = [1.0, 0.9]
    assert not judge({"inputs": {"groups": groups}})[1]


def test_the_example_is_the_papers_where_it_is_there(questions):
    broncos = Question((squad_figures.EXAMPLE, "The Broncos practiced ."), ("Stanford",), False)
    assert squad_figures.example([*questions, broncos]) == broncos
    assert squad_figures.example(questions) == questions[0]

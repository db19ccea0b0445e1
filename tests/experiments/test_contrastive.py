"""Prompts with known evidence: the measure by hand, and a run on a model that reads one word alone."""

import json
import lzma
from dataclasses import replace

import numpy as np
import pytest
import torch
from experiments.contrastive import experiment, lenses
from experiments.contrastive.prompts import Prompt, alignment, evidence_tokens, read_prompts

import tiny
from masklens import DiffMask, explain
from masklens.diffmask.judging import judge
from masklens.diffmask.texts import FrozenTexts
from masklens.diffmask.trainer import Training
from masklens.errors import FileError


@pytest.fixture
def data(tmp_path):
    """Two sets of prompts in words that the tiny tokenizers know; one pair of words cannot be compared."""
    rows = ["the plot is dull and,car,movie,plot", "she sold the red car to,Paris,the,red", "a,plot,plots,a"]
    return written(tmp_path / "data", [*(f"one,{row}" for row in rows), f"two,{rows[0]}"])


def written(data, rows):
    """The data folder with these prompts."""
    folder = data / "contrastive"
    folder.mkdir(parents=True)
    with lzma.open(folder / "evidence.csv.xz", "wt", encoding="utf-8") as file:
        file.write("\n".join(["set,prefix,good,bad,evidence", *rows]) + "\n")
    return data


def asked_about(data):
    """Six reviews and news each, to fit on and to measure with."""
    reviews = "sentence\tlabel\n" + "".join(f"the plot is {word}\t1\n" for word in "abcdef")
    (data / "sst2").mkdir()
    (data / "sst2" / "dev.tsv").write_text(reviews)
    (data / "sst").mkdir()
    trees = [f"(3 (2 the) (2 plot) (2 is) (2 {word}))\n" for word in "abcdef"]
    (data / "sst" / "train.txt").write_text("".join(trees))
    (data / "agnews").mkdir()
    (data / "agnews" / "test.csv").write_text("".join(f"1,Paris,a {word}\n" for word in "abcdef"))
    with lzma.open(data / "agnews" / "train_subset.csv.xz", "wt") as file:
        file.write("text,label\n" + "".join(f"John {word},1\n" for word in "abcdef"))


def test_alignment_by_hand():
    """Tokens: a marker, two of the evidence, two others."""
    evidence = np.array([False, True, True, False, False])
    counted = np.array([False, True, True, True, True])
    scores = np.array([[9, 1, 3, 2, -2], [9, 0, 0, 4, 0], [9, 0, 0, 0, 0], [9, -1, 0, 2, 1]], dtype=float)
    ranks, shares = alignment(scores, evidence, counted)
    assert ranks.tolist() == [1, 1 / 2.5, 1 / 2, 1 / 3]
    assert shares.tolist() == [4 / 8, 0, 0, -1 / 4]


def test_evidence_is_a_whole_word_and_no_marker():
    prompt = Prompt("a car , the plot and a", "x", "y", "a")
    (made,) = explain(tiny.subject("llama", "causal"), [prompt.prefix], method="gradient")
    found = evidence_tokens(prompt, made)
    assert [made.tokens[i] for i in found.nonzero()[0]] == ["▁a", "▁a"]


def test_prompts_are_drawn_with_a_seed(data):
    assert {name: len(some) for name, some in read_prompts(data, 2, 0).items()} == {"one": 2, "two": 1}
    assert read_prompts(data, 2, 0) == read_prompts(data, 2, 0)
    with pytest.raises(FileError, match="give --data the folder"):
        read_prompts(data / "none", 2, 0)


def test_a_run_writes_its_results_and_does_not_do_a_part_twice(data, tmp_path, monkeypatch):
    subject = tiny.subject("gpt2", "causal")
    monkeypatch.setattr(experiment, "load", lambda model, device: subject)
    keep = ("random", "grad_x_input", "decoded_gradcam_own")
    monkeypatch.setattr(experiment, "VARIANTS", {name: experiment.VARIANTS[name] for name in keep})
    said = []
    experiment.run(tmp_path / "out", data, limit=3, tell=said.append)
    found = json.loads((tmp_path / "out" / "results.json").read_text())["models"]["smollm2"]
    assert found["settings"] == {"model": "smollm2", "limit": 3, "seed": 0, "device": "cpu", "steps": None}
    one = found["sets"]["one"]
    assert 0 <= one["accuracy"] <= 1 and set(one["methods"]) == set(keep)
    assert one["methods"]["grad_x_input"]["prompts"] == 2, "plot and plots cannot be compared"
    assert len(one["methods"]["grad_x_input"]["mrr"]) == len(subject.sites)
    page = (tmp_path / "out" / "results.md").read_text()
    assert "| layer |" in page and "block 3" in page and "`decoded_gradcam_own`" in page
    done = len(said)
    experiment.run(tmp_path / "out", data, limit=3, tell=said.append)
    assert len(said) == done


def test_the_mean_over_prompts_is_that_of_ranks_read_off_one_by_one(data):
    subject = tiny.subject("gpt2", "causal")
    prompts = experiment.comparable(subject, read_prompts(data, 3, 0)["one"])
    found = experiment.aligned(subject, prompts, "occlusion", 0)
    made = explain(
        subject,
        [p.prefix for p in prompts],
        method="occlusion",
        target=[p.target for p in prompts],
        sites=[0],
    )
    slow = []
    for prompt, one in zip(prompts, made, strict=True):
        order = [one.tokens[i].strip("Ġ") for i in np.argsort(-one.scores[0])]
        slow.append(1 / (1 + order.index(prompt.evidence)))
    assert found["mrr"] == pytest.approx([np.mean(slow)])


def test_a_lens_is_fitted_on_other_prompts(data):
    measured = read_prompts(data, 1, 0)
    taken = {prompt.prefix for some in measured.values() for prompt in some}
    found = lenses.other_prompts(data, measured, 10, 0)
    every = {prompt.prefix for some in read_prompts(data, 9, 0).values() for prompt in some}
    assert set(found) == every - taken and len(found) == len(set(found)) == 3 - len(taken)
    assert lenses.other_prompts(data, measured, 1, 0) == found[:1]


def test_no_prompt_to_fit_on_has_all_of_a_measured_one_in_common(tmp_path):
    """In a causal model a measured prompt that begins another one has all its states there too."""
    rows = ["the plot", "the plot is", "the", "a plot", "the plots are"]
    data = written(tmp_path, [f"one,{row},car,movie,plot" for row in rows])
    measured = {"one": [Prompt("the plot", "car", "movie", "plot")]}
    assert sorted(lenses.other_prompts(data, measured, 9, 0)) == ["a plot", "the plots are"]


def test_what_a_lens_keeps_of_the_evidence_by_hand():
    """One prompt of five tokens, the evidence second to last: kept at the first site, alone at the second."""
    prompt = Prompt("the plot is dull and", "car", "movie", "plot")
    (made,) = explain(tiny.subject("llama", "causal"), [prompt.prefix], method="gradient", sites=[0, 1])
    evidence, special = evidence_tokens(prompt, made), np.array(made.special)
    other = ~evidence & ~special
    scores = np.ones(made.scores.shape)
    scores[1] = np.where(evidence, 0.9, 0.2)
    found = lenses.on_evidence([prompt], [replace(made, scores=scores)])
    assert found["evidence_kept"] == [1, 1] and found["other_kept"] == [1, 0]
    assert found["mrr"] == pytest.approx([1 / (1 + other.sum() / 2), 1]) and found["prompts"] == 1
    assert found["difference_interval"] == [[0, 0], [1, 1]]


def test_a_run_with_lenses_has_a_table_for_each(tmp_path, monkeypatch):
    data = written(
        tmp_path / "data", [f"one,the plot is {word} and,car,movie,plot" for word in "abcdefghijkl"]
    )
    subject = tiny.subject("gpt2", "causal")
    monkeypatch.setattr(lenses, "TRAIN", 6)
    monkeypatch.setattr(lenses, "VALIDATION", 2)
    monkeypatch.setattr(experiment, "load", lambda model, device: subject)
    asked_about(data)
    ways = {"limit": 1, "device": "cpu", "steps": 2, "tell": lambda line: None}
    experiment.run(tmp_path, data, part=["lens"], **ways)
    found = json.loads((tmp_path / "results.json").read_text())["models"]["smollm2"]["lenses"]
    assert list(found) == ["lens/inputs", "lens/states", "lens/reviews", "lens/news"]
    assert found["lens/inputs"]["settings"]["steps"] == 2 and len(found["lens/states"]["mrr"]) == len(
        subject.sites
    )
    page = (tmp_path / "results.md").read_text()
    assert "a lens over states" in page and "| evidence kept |" in page
    questions = found["lens/reviews"]
    assert questions["measured"] == 3 and questions["example"].startswith("Review: the plot is")
    assert len(questions["random"]) == len(questions["diagnostics"]) == len(subject.sites)
    assert "a lens over inputs, news" in page and "| at random |" in page


def test_a_lens_is_not_fitted_again_after_a_failure(tmp_path, monkeypatch):
    data = written(
        tmp_path / "data", [f"one,the plot is {word} and,car,movie,plot" for word in "abcdefghijkl"]
    )
    monkeypatch.setattr(lenses, "TRAIN", 6)
    monkeypatch.setattr(lenses, "VALIDATION", 2)
    monkeypatch.setattr(experiment, "load", lambda model, device: tiny.subject("gpt2", "causal"))
    ways = {"limit": 1, "device": "cpu", "steps": 2, "part": ["lens/inputs"], "tell": lambda line: None}
    steps, one_step, on_evidence = [], Training._one_step, lenses.on_evidence

    def counted(self):
        steps.append(self.step)
        return one_step(self)

    def fails(*given):
        raise RuntimeError("no memory")

    monkeypatch.setattr(Training, "_one_step", counted)
    monkeypatch.setattr(lenses, "on_evidence", fails)
    with pytest.raises(RuntimeError):
        experiment.run(tmp_path, data, **ways)
    monkeypatch.setattr(lenses, "on_evidence", on_evidence)
    experiment.run(tmp_path, data, **ways)
    assert steps == [0, 1]
    assert not list(tmp_path.rglob("training-*"))


def test_at_random_as_many_tokens_go_but_others():
    draw = torch.Generator().manual_seed(0)
    removable = torch.rand(50, 9, generator=draw) < 0.7
    kept = (torch.rand(2, 50, 9, generator=draw) < 0.5) & removable
    drawn = lenses.as_many(kept, removable, draw)
    assert torch.equal(drawn.sum(-1), kept.sum(-1)) and not (drawn & ~removable).any()
    assert 0.1 < float((drawn != kept).float().mean()) < 0.5  # 0.32 of all tokens on average


def test_at_random_a_lens_that_keeps_all_moves_nothing_and_one_that_drops_all_moves_as_far():
    subject = tiny.subject("gpt2", "causal")
    texts = [f"the plot is {word}" for word in ("dull and", "fast", "funny and highly enjoyable")]
    with pytest.warns(UserWarning):
        lens = DiffMask.fit(subject, texts, "inputs", steps=2, sites=[0, 2], held_out=texts)
    moves = {}
    for bias in (30.0, -30.0):
        for one in lens.probe.biases:
            one.data.fill_(bias)
        frozen = FrozenTexts(subject, texts, lens.probe.reads, 0)
        moves[bias] = (
            lenses.at_random(lens, texts, 0),
            [one.divergence for one in judge(lens.probe, frozen)],
        )
    assert moves[30.0] == ([0, 0], [0, 0])
    assert moves[-30.0][0] == pytest.approx(moves[-30.0][1]) and min(moves[-30.0][0]) > 0

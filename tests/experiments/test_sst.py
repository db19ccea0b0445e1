"""The sentiment experiments on tiny random models and made-up trees, and their measures by hand."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from experiments.labelled import Labelled
from experiments.measures import corpus_statistics
from experiments.results import commit
from experiments.sst import analysis as sst_analysis
from experiments.sst import experiment as sst
from experiments.sst import figures as sst_figures
from experiments.sst import table2 as sst_table2
from experiments.sst import treebank
from experiments.sst.faithfulness import BOUND, KEEP, batch_f1, macro_f1, mask_texts, measure
from experiments.sst.stability import stability

import tiny
from experiments import classifier
from masklens import verify
from masklens.diffmask.lens import DiffMask
from masklens.diffmask.trainer import Settings, Training
from masklens.errors import FileError, LensError, MethodError
from records import make

TREES = [
    "(4 (2 a) (4 (3 fast) (4 (3 funny) (2 movie))))",
    "(1 (2 the) (1 (2 plot) (1 (2 is) (0 dull))))",
    "(2 (2 a) (2 (2 car) (2 (2 -LRB-) (2 plot))))",
    "(3 (2 the) (3 (2 movie) (3 (2 is) (4 funny))))",
    "(0 (2 the) (0 (2 car) (0 (2 is) (1 dull))))",
]


@pytest.fixture(autouse=True)
def few_set_aside(monkeypatch):
    monkeypatch.setattr(classifier, "VALIDATION", 4)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A five-class checkpoint and trees in the layout of the reference ones."""
    root = tmp_path_factory.mktemp("sst")
    names = dict(enumerate(treebank.LABELS))
    made = tiny.model("bert", "classification", id2label=names, label2id={v: k for k, v in names.items()})
    made.save_pretrained(root / "models" / "minilm-sst5")
    tiny.wordpiece().save_pretrained(root / "models" / "minilm-sst5")
    (root / "data" / "sst").mkdir(parents=True)
    for split in ("train", "dev", "test"):
        (root / "data" / "sst" / f"{split}.txt").write_text("\n".join(TREES * 4) + "\n")
    (root / "data" / "sst2").mkdir()
    (root / "data" / "sst2" / "dev.tsv").write_text("sentence\tlabel\na fast funny movie \t1\n")
    return root / "models", root / "data"


def test_trees_are_read():
    sentence = treebank.parse("(2 (2 -LRB-) (1 (0 Bad\\/sad) (2 -RRB-)))")
    assert sentence.words == ("(", "Bad/sad", ")") and sentence.word_labels == (2, 0, 2)
    assert sentence.text == "( Bad/sad )" and sentence.label == 2
    for start, end, _ in sentence.spans:
        assert sentence.text[start:end] in sentence.words
    assert [label for *_, label in sentence.spans] == ["neutral", "very negative", "neutral"]


def test_two_classes_leave_neutral_sentences_out_except_to_fit_on(folders):
    data = folders[1]
    assert treebank.read_split(data, "sst2", "test").labels == [1, 0, 1, 0] * 4
    assert len(treebank.read_split(data, "sst2", "train").texts) == 20
    assert treebank.read_split(data, "sst2", "dev") == Labelled(["a fast funny movie"], [1])
    assert treebank.read_split(data, "sst5", "dev").labels[:3] == [4, 1, 2]
    with pytest.raises(FileError, match="--data"):
        treebank.read_split(folders[0], "sst5", "dev")


def test_f1_by_hand():
    gold, said = np.array([0, 0, 1, 2]), np.array([0, 1, 1, 1])
    # class 0: P 1, R 1/2, F 2/3; class 1: P 1/3, R 1, F 1/2; class 2: never predicted
    assert macro_f1(said, gold, 3)[0] == pytest.approx((2 / 3 + 1 / 2) / 3)
    # batches of two: in the first class 1 is absent (R 1, P 0), in the second class 0 (neither: F 0)
    first, second = (2 / 3 + 0 + 0) / 3, (0 + 2 / 3 + 0) / 3
    assert batch_f1(said, gold, 3, size=2) == pytest.approx((first + second) / 2)
    twice_the_first = np.array([[2.0, 0, 1, 1]])
    assert macro_f1(said, gold, 3, twice_the_first)[0] == pytest.approx((1 + 2 / 3) / 3)


@pytest.fixture(scope="module")
def lens():
    subject = tiny.subject("bert")
    with pytest.warns(UserWarning, match="few"):
        made = DiffMask.fit(subject, [t.text for t in map(treebank.parse, TREES)] * 4, "states", steps=2)
    with torch.no_grad():  # gates of all kinds: some shut, some open
        for gate in made.probe.gates:
            gate.bias.fill_(0.0)
            torch.nn.init.normal_(gate.outer.weight, std=0.05)
    return made


def test_masks_are_what_the_lens_itself_finds(lens):
    """Against one text at a time, through `DiffMask.verify`."""
    texts = [treebank.parse(tree).text for tree in TREES]
    found = mask_texts(lens, texts)
    shares, opened = [], 0
    for site in lens.sites:
        slow = [verify(lens.subject, lens.explain([text]), replace=lens, site=site)[0] for text in texts]
        at = found.sites[site].gates
        assert at.divergence == pytest.approx([v.divergence for v in slow], abs=1e-5)
        assert (at.prediction == found.prediction).tolist() == [v.prediction_kept for v in slow]
        assert 1 - at.kept / found.lengths == pytest.approx([v.share_removed for v in slow])
        shares.append(at.kept.sum() / found.lengths.sum())
        how = {"site": site, "guard": BOUND, "same_prediction": False}
        slow = [
            verify(lens.subject, lens.explain([text]), replace=lens, keep=KEEP, **how)[0] for text in texts
        ]
        at = found.sites[site].guarded
        assert at.divergence == pytest.approx([v.divergence for v in slow], abs=1e-5)
        assert (at.divergence <= BOUND + 1e-5).all()
        assert 1 - at.kept / found.lengths == pytest.approx([v.share_removed for v in slow])
        assert (at.prediction == found.prediction).tolist() == [v.prediction_kept for v in slow]
        opened += sum(v.opened for v in slow)
    assert opened > 0
    assert min(shares) > 0.02 and max(shares) < 0.98  # the test means something


def test_measures_have_intervals_around_them(lens):
    labels = [0, 1, 2, 0, 1]
    texts = [treebank.parse(tree).text for tree in TREES]
    found, masking = measure(lens, Labelled(texts, labels)), mask_texts(lens, texts)
    assert found["lens"]["margin"] == lens.settings.margin and found["guarded"]["bound"] == BOUND
    for masks, kind in ((found, "gates"), (found["guarded"], "guarded")):
        each = [getattr(masked, kind).divergence.mean() for masked in masking.sites.values()]
        assert [site["divergence"] for site in masks["sites"]] == pytest.approx(each)
        assert masks["summary"]["divergence"] == pytest.approx(np.mean(each))
    for site in found["sites"] + found["guarded"]["sites"]:
        for name in ("masked", "agreement", "divergence", "accuracy"):
            low, high = site[f"{name}_interval"]
            assert low - 1e-9 <= site[name] <= high + 1e-9
        assert site["ok"] == (site["divergence"] <= lens.settings.margin)
        assert site["accuracy_change"] == pytest.approx(site["accuracy"] - found["before"]["accuracy"])
    assert found["summary"]["masked"] == pytest.approx(np.mean([s["masked"] for s in found["sites"]]))


def test_stability_by_hand():
    one = make(tokens=("[CLS]", "a", "b", "c"), scores=np.array([[0, 0.1, 0.2, 0.9], [0, 0, 0.4, 1.0]]))
    two = make(tokens=("[CLS]", "a", "b", "c"), scores=np.array([[0, 0.3, 0.2, 0.9], [0, 0, 0.4, 0.0]]))
    found = stability([[one], [two]])
    deviations = [0.2 / 2**0.5, 1.0 / 2**0.5]
    assert found["deviation"] == pytest.approx(sum(deviations) / 8)
    assert found["deviation_by_site"] == pytest.approx({"0": deviations[0] / 4, "1": deviations[1] / 4})
    # layers: (0.1, 0.6, 1.9) and (0.3, 0.6, 0.9); deepest site: (0, 0.4, 1) and (0, 0.4, 0)
    assert found["rank_agreement"] == pytest.approx(1.0)
    assert found["rank_agreement_deepest"] == pytest.approx(0.0)
    assert stability([[one], [one]])["deviation"] == 0.0


def run_small(folders, out, **options):
    said = []
    with pytest.warns(UserWarning, match="few"):
        sst.run(*folders, out, limit=6, steps=3, tell=said.append, **options)
    return [line.split(": ")[1] for line in said]


def results(out):
    return json.loads((out / "results.json").read_text())


def test_parts_are_done_once_and_lenses_are_reused(folders, tmp_path, monkeypatch):
    monkeypatch.setattr(sst, "SEEDS", 2)
    assert run_small(folders, tmp_path, part=["lens/inputs/1"]) == ["lens/inputs/1"]
    fitted = tmp_path / "lenses" / "minilm-sst5-inputs-seed1-first6-steps3"
    assert (fitted / "README.md").exists() and not (fitted / "training").exists()
    before = (fitted / "lens.safetensors").stat().st_mtime_ns
    assert run_small(folders, tmp_path, part=["stability/inputs"]) == ["stability/inputs"]
    assert (fitted / "lens.safetensors").stat().st_mtime_ns == before
    found = results(tmp_path)
    assert found["stability"]["inputs"]["lenses"] == 2 and set(found["stability"]) == {"inputs"}
    by_default = Settings(margin=classifier.MARGIN, seed=1, steps=3, batch_size=6)
    assert found["lenses"]["minilm-sst5-inputs-1"]["lens"] == asdict(by_default)
    assert found["commits"] == [commit()] and f"at commit {commit()}" in (tmp_path / "results.md").read_text()
    said = []
    sst.run(*folders, tmp_path, limit=6, steps=3, part=["faithfulness/inputs", "stability/inputs"],
            tell=said.append)  # fmt: skip
    assert [line.split(": ")[1] for line in said] == ["faithfulness/inputs"]  # its lens is there
    found = results(tmp_path)
    assert "inputs" in found["stability"]
    dev = found["faithfulness"]["minilm-sst5"]["dev"]["inputs"]
    assert set(dev["before"]) == {"accuracy", "f1_macro", "f1_batch"}
    keys = {"site", "masked", "agreement", "divergence", "accuracy", "f1_macro", "f1_batch", "ok"}
    assert all(keys <= set(site) for site in dev["sites"])
    text = (tmp_path / "results.md").read_text()
    assert "46.3%" in text and dev["guarded"]["sites"]
    assert text.index("| inputs, gates alone | dev |") < text.index("| inputs, guarded | dev |")


def test_a_fit_that_is_taken_up_again_says_so(folders, tmp_path, monkeypatch):
    """Its seconds are not those of the whole fit."""
    models, data = folders
    few = {"steps": 8, "batch_size": 4, "evaluate_every": 4}
    monkeypatch.setattr(sst.SentimentRun, "fit_settings", few)
    plain, parts = Training._one_step, tmp_path / "parts" / "minilm-sst5-seed0-first4-steps8"

    def interrupted(training):
        if training.step == 6:
            raise KeyboardInterrupt
        return plain(training)

    def fit(number):
        sst.run(models, data, tmp_path, part=[f"lens/inputs/{number}"], limit=4, steps=8)

    monkeypatch.setattr(Training, "_one_step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fit(0)
    monkeypatch.setattr(Training, "_one_step", plain)
    fit(0)
    fit(1)
    written = [json.loads((parts / f"lens-inputs-{k}.json").read_text())["resumed"] for k in (0, 1)]
    assert written == [True, False]
    rows = [line for line in (tmp_path / "results.md").read_text().splitlines() if "inputs-" in line]
    assert ["(resumed)" in row for row in rows] == [True, False]


def test_another_folder_of_lenses(folders, tmp_path):
    run_small(folders, tmp_path / "a", part=["lens/states/0"])
    (fitted,) = (path for path in (tmp_path / "a" / "lenses").iterdir() if path.is_dir())
    fitted.rename(tmp_path / "minilm-sst5-states-seed0")
    options = {"lens": tmp_path, "limit": 6, "tell": lambda _: None}
    sst.run(*folders, tmp_path / "b", part=["faithfulness/states"], **options)
    assert not (tmp_path / "b" / "lenses").exists()
    assert "states" in results(tmp_path / "b")["faithfulness"]["minilm-sst5"]["test"]
    with pytest.raises(LensError, match="inputs-seed0"):  # nothing is fitted into a folder of others
        sst.run(*folders, tmp_path / "b", part=["faithfulness/inputs"], **options)


def test_what_is_not_there_is_an_error(folders, tmp_path):
    with pytest.raises(MethodError, match="no part 'best'"):
        sst.run(*folders, tmp_path, part=["best"])
    with pytest.raises(FileError, match="mpnet-sst5"):
        sst.run(tmp_path, folders[1], tmp_path)


def test_the_first_token_is_largest_at_the_last_site_or_everywhere():
    both = make(tokens=("[CLS]", "a"), scores=np.array([[0.1, 0.2], [0.9, 0.3]]))
    last = make(tokens=("[CLS]", "a"), scores=np.array([[0.1, 1.0], [0.9, 0.3]]))
    other = make(tokens=("[CLS]", "a"), scores=np.array([[1.0, 0.2], [0.2, 0.3]]))
    tied = make(tokens=("[CLS]", "a"), scores=np.array([[0.1, 0.9], [0.9, 0.3]]))
    found = sst_analysis.first_token_largest([both, last, other, tied])
    assert found == {"last_site": 0.75, "all_sites": 0.5}


def test_statistics_are_those_of_all_tokens():
    subject = tiny.subject("bert")
    texts = [treebank.parse(tree).text for tree in TREES]
    found = corpus_statistics(subject, texts, size=2)
    for site in subject.sites:
        each = [subject.states(subject.encode([text]), [site]).states[site][0] for text in texts]
        tokens = torch.cat(each)
        assert torch.allclose(found[site][0], tokens.mean(0), atol=1e-5)
        assert torch.allclose(found[site][1], tokens.std(0, correction=0), atol=1e-4)


class Tagger:
    """Calls every word a noun."""

    class Word:
        pos_, is_space = "NOUN", False

        def __init__(self, idx: int, text: str) -> None:
            self.idx, self.text = idx, text

    def pipe(self, texts):
        return ([self.Word(text.index(word), word) for word in text.split()] for text in texts)


def test_analysis_figures_and_table2_on_a_small_scale(folders, tmp_path, monkeypatch):
    monkeypatch.setattr("masklens.analysis.load_spacy", Tagger)
    monkeypatch.setitem(sst_analysis.SCHULZ, "n_steps", 1)
    for method in ("guan", "integrated_gradients"):
        monkeypatch.setitem(sst_figures.METHODS[method], "n_steps", 2)
    done = run_small(folders, tmp_path, part=["analysis", "figures", "erasure"])
    assert done == [
        *(f"erasure/{step}" for step in sst_table2.STEPS),
        *(f"analysis/{what}" for what in ("inputs", "states", "bottleneck")),
        "figures",
    ]
    found = results(tmp_path)
    groups = found["analysis"]["inputs"]["sentiment"]["groups"]
    assert [*groups][:5] == [*treebank.LABELS] and "[CLS]" in groups
    # limit 6: each of the five trees once and the first again; one word of each of these labels
    for label, word in (("very negative", "dull"), ("very positive", "funny")):
        assert groups[label]["count"] == len(tiny.wordpiece().tokenize(word))
    assert found["analysis"]["states"]["part_of_speech"]["groups"]["NOUN"]["count"] > 20
    assert 0 <= found["analysis"]["bottleneck"]["first_token"]["last_site"] <= 1
    row = found["table2"]["diffmask"]
    assert {"precision", "recall", "f1", "optimality", "l0"} <= set(row) and 0 <= row["f1"] <= 1
    assert found["gru"]["sentences"] == 6 and found["table2"]["diffmask_settled"]["within_margin"] == 1
    for number in (4, 5, 6, 12, 13):
        assert (tmp_path / f"figure{number}.png").stat().st_size > 5000
    text = (tmp_path / "results.md").read_text()
    assert "0.327" in text and "99%" in text
    predictions = found["analysis"]["states"]["prediction"]["groups"]
    assert sum(group["count"] for group in predictions.values()) > 6
    assert all(f"| states | `{name}` |" in text for name in predictions)


@pytest.mark.slow
def test_every_part_on_a_real_model_in_three_minutes(model_folder, tmp_path, monkeypatch):
    data = Path(__file__).parents[3] / "shared" / "data"
    if not (data / "sst" / "dev.txt").exists():
        pytest.skip("no data folder with the treebank")
    pytest.importorskip("spacy", reason="spaCy is not installed")
    monkeypatch.setitem(sst_analysis.SCHULZ, "n_steps", 2)
    start, said = time.perf_counter(), []
    models = model_folder("minilm-sst5").parent
    sst.run(models, data, tmp_path, model="minilm-sst5", limit=8, steps=4, tell=said.append)
    assert not [line for line in said if "left out" in line]
    found = results(tmp_path)
    assert set(found["faithfulness"]["minilm-sst5"]) == {"dev", "test"}
    assert set(found["stability"]) == {"inputs", "states"} and found["stability"]["states"]["lenses"] == 5
    assert "ADJ" in found["analysis"]["inputs"]["part_of_speech"]["groups"]
    settled, rounded = found["table2"]["diffmask_settled"], found["table2"]["diffmask"]
    assert settled["within_margin"] == 1 and settled["f1"] > rounded["f1"]
    assert (tmp_path / "figure6.png").exists()
    assert time.perf_counter() - start < 180


def test_processes_that_share_a_folder_take_turns(folders, tmp_path):
    """Two runs at once need the same lens: it is fitted once, and both parts are in the results."""
    said: list[str] = []
    fits = []
    fit = DiffMask.fit

    def counted(*args, **options):
        fits.append(args[2])
        time.sleep(0.3)  # long enough for the other run to ask for it too
        return fit(*args, **options)

    def start(part):
        sst.run(*folders, tmp_path, part=[part], limit=6, steps=3, tell=said.append)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DiffMask, "fit", counted)
        patch.setattr(sst, "SEEDS", 2)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(start, ["faithfulness/inputs", "stability/inputs"]))
    assert fits == ["inputs"] * 2  # seeds 0 and 1, each once
    assert len(said) == 2
    found = results(tmp_path)
    assert found["stability"]["inputs"] and found["faithfulness"]["minilm-sst5"]["dev"]["inputs"]

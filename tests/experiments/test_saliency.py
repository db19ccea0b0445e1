"""The whole reproduction on tiny random models and a few made-up texts."""

import json
import lzma
from dataclasses import asdict

import numpy as np
import pytest
from experiments.lenses import experiment as lenses
from experiments.results import commit
from experiments.saliency import experiment as saliency
from experiments.saliency import report as saliency_report

import tiny
from experiments import classifier, labelled
from masklens.attribution import Attribution
from masklens.diffmask.trainer import Settings
from masklens.errors import FileError, MethodError
from records import make

SENTENCES = [
    "a fast , funny movie .",
    "the plot is dull .",
    "unflinchingly bleak and desperate",
    "a dull car",
]


@pytest.fixture(autouse=True)
def one_set_aside(monkeypatch):
    monkeypatch.setattr(classifier, "VALIDATION", 1)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Checkpoints and data sets in the layout of the reference ones."""
    root = tmp_path_factory.mktemp("reproduce")
    models, data = root / "models", root / "data"
    heads = {"mlm": "mlm", "sst2": "classification", "agnews": "classification"}
    for name, head in heads.items():
        labels = {"sst2": ["negative", "positive"], "agnews": ["World", "Sports", "Business", "Sci/Tech"]}
        names = dict(enumerate(labels.get(name, ["0", "1"])))
        made = tiny.model("bert", head, id2label=names, label2id={v: k for k, v in names.items()})
        made.save_pretrained(models / f"minilm-{name}")
        tiny.wordpiece().save_pretrained(models / f"minilm-{name}")
    for folder in ("sst2", "agnews"):
        (data / folder).mkdir(parents=True)
    rows = "sentence\tlabel\n" + "".join(f"{text} \t{i % 2}\n" for i, text in enumerate(SENTENCES))
    (data / "sst2" / "dev.tsv").write_text(rows)
    with lzma.open(data / "sst2" / "train.tsv.xz", "wt") as file:
        file.write(rows)
    (data / "sst").mkdir()
    for split in ("train", "test"):
        trees = (f"(4 {' '.join(f'(2 {word})' for word in text.split())})\n" for text in SENTENCES)
        (data / "sst" / f"{split}.txt").write_text("".join(trees))
    (data / "agnews" / "test.csv").write_text(
        "".join(f'"{i + 1}","{text}","Charity, ""quoted"" {text}"\n' for i, text in enumerate(SENTENCES))
    )
    with lzma.open(data / "agnews" / "train_subset.csv.xz", "wt") as file:
        file.write("label,text,source\n" + "".join(f'{i + 1},"{t}",x\n' for i, t in enumerate(SENTENCES)))
    with lzma.open(data / "wikipedia_document_frequency.tsv.xz", "wt") as file:
        file.write("#N_documents\t100\nthe\t99\nplot\t5\n")
    return models, data


def test_texts_are_read(folders):
    found = labelled.read_test(folders[1], "sst2")
    assert found.texts == SENTENCES and found.labels == [0, 1, 0, 1]
    news = labelled.read_test(folders[1], "agnews")
    assert news.texts[0] == f'{SENTENCES[0]} Charity, "quoted" {SENTENCES[0]}'
    assert news.labels == [0, 1, 2, 3] == labelled.read_train(folders[1], "agnews").labels
    assert sorted(found.sample(4, seed=1).texts) == sorted(SENTENCES)
    with pytest.raises(FileError, match="--data"):
        labelled.read_test(folders[0], "sst2")


@pytest.fixture
def few(monkeypatch):
    """Fewer competitors and draws, to be quick."""
    parts = ("choice", "decoded_gradcam", "gradcam", "allennlp_simple", "thermostat_occlusion", "random")
    monkeypatch.setattr(saliency, "KINDS", parts)
    monkeypatch.setattr(saliency, "DRAWS", 3)


@pytest.fixture
def undrawn(monkeypatch):
    """No figures, which take most of the time."""
    monkeypatch.setattr(saliency_report, "draw", lambda *_: None)


@pytest.mark.slow
def test_the_results_have_their_shape(folders, tmp_path, few):
    models, data = folders
    saliency.run(models, data, tmp_path, tell=lambda _: None)
    results = json.loads((tmp_path / "results.json").read_text())
    rows = {f"decoded_gradcam@{k}" for k in (2, 3, 4)}
    rows |= {"gradcam@1", "allennlp_simple", "thermostat_occlusion", "random"}
    for dataset in ("sst2", "agnews"):
        found = results[dataset]["minilm"]
        assert set(found) == rows
        for row in found.values():
            assert 0 <= row["revealing"] <= 1 and 0 <= row["hiding"] <= 1 and row["seconds"] >= 0
        assert set(results["overlap"][dataset]) == rows - {"random"}
        shared = results["overlap"][dataset]["gradcam@1"]["50"]
        assert shared is None or 0 <= shared <= 1  # None: the random model predicts one class
        assert results["chosen"][dataset]["row"] in rows
    text = (tmp_path / "results.md").read_text()
    assert "0.867 / 0.609" not in text  # layer 7, which this model does not have
    assert "0.797 / 0.713" in text and "(chosen)" in text
    for number in (2, 3, 4, 5, 6, 9):
        assert (tmp_path / f"figure{number}.png").stat().st_size > 1000
    (example,) = results["examples"]["sst2"]["allennlp_simple"]
    assert [word for word, _ in example["words"]] == SENTENCES[2].split()
    assert max(level for _, level in example["words"]) == saliency.LEVELS
    assert (
        "unflinchingly" in text and "**" in text and results["shared_words"]["sst2"]["gradcam@1"] is not None
    )


def test_a_run_goes_on_where_it_was(folders, tmp_path, few, undrawn):
    models, data = folders
    said = []
    saliency.run(models, data, tmp_path, part=["sst2/gradcam"], tell=said.append)
    assert [line.split(": ")[1] for line in said] == ["sst2/gradcam"]
    assert json.loads((tmp_path / "results.json").read_text())["sst2"]["minilm"].keys() == {"gradcam@1"}
    said.clear()
    saliency.run(models, data, tmp_path, part=["sst2/gradcam", "sst2/random"], tell=said.append)
    assert [line.split(": ")[1] for line in said] == ["sst2/random"]
    with pytest.raises(MethodError, match="no part 'sst2/best'"):
        saliency.run(models, data, tmp_path, part=["sst2/best"])


@pytest.mark.slow
def test_processes_side_by_side(folders, tmp_path, undrawn):
    parts = ["sst2/choice", "sst2/decoded_gradcam", "sst2/gradcam"]
    saliency.run(*folders, tmp_path, part=parts, jobs=2)
    found = json.loads((tmp_path / "results.json").read_text())["sst2"]["minilm"]
    assert "gradcam@1" in found and "decoded_gradcam@2" in found


def test_another_limit_is_another_run(folders, tmp_path, few, undrawn):
    for limit, texts in ((2, 2), (None, 4)):
        saliency.run(*folders, tmp_path, part=["sst2/gradcam"], limit=limit, tell=lambda _: None)
        found = json.loads((tmp_path / "results.json").read_text())["sst2"]["minilm"]["gradcam@1"]
        assert found["texts"] == texts


def test_the_lens_has_the_default_settings(folders, tmp_path, undrawn):
    with pytest.warns(UserWarning, match="few"):
        saliency.run(*folders, tmp_path, part=["sst2/diffmask"], limit=4, steps=3, tell=lambda _: None)
    results = json.loads((tmp_path / "results.json").read_text())
    row = results["sst2"]["minilm"]["diffmask"]
    assert (
        row["lens"] == asdict(Settings(steps=3, batch_size=4))
        and row["texts"] == 4
        and 0 <= row["hiding"] <= 1
    )
    assert results["commits"] == [commit()] and results["lenses"]["minilm-sst2"]["texts"] > 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dataset", ["sst2", "agnews"])
def test_the_lenses_experiment_has_the_lenses_for_this_one(folders, tmp_path, undrawn, dataset):
    few = {"limit": 4, "steps": 3, "device": "cpu", "tell": lambda _: None}
    lenses.run(*folders, tmp_path / "a", model=f"minilm-{dataset}", part=["lens/inputs/0"], **few)
    (fitted,) = (path for path in (tmp_path / "a" / "lenses").iterdir() if path.is_dir())
    fitted.rename(tmp_path / f"minilm-{dataset}-inputs-seed0")
    ways = {"b": {"lens": tmp_path}, "c": {}}
    for name, how in ways.items():
        saliency.run(*folders, tmp_path / name, part=[f"{dataset}/diffmask"], **few, **how)
    rows = [json.loads((tmp_path / name / "results.json").read_text())[dataset]["minilm"] for name in ways]
    assert rows[0]["diffmask"]["diagnostics"] == rows[1]["diffmask"]["diagnostics"]


def test_what_cannot_be_done_is_left_out(folders, tmp_path, few, undrawn, monkeypatch):
    def broken(run, kind):
        raise MethodError("needs something")

    monkeypatch.setitem(saliency.WORK, "gradcam", broken)
    said = []
    saliency.run(*folders, tmp_path, part=["sst2/gradcam"], tell=said.append)
    assert said == ["minilm-seed0: sst2/gradcam: left out (needs something)"]


def test_costly_methods_use_fewer_news(folders, tmp_path, few, undrawn, monkeypatch):
    monkeypatch.setattr(saliency, "COSTLY", ("allennlp_simple",))
    monkeypatch.setattr(saliency, "COSTLY_TEXTS", 2)
    parts = ["sst2/allennlp_simple", "agnews/allennlp_simple"]
    saliency.run(*folders, tmp_path, part=parts, tell=lambda _: None)
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["sst2"]["minilm"]["allennlp_simple"]["texts"] == 4
    assert results["agnews"]["minilm"]["allennlp_simple"]["texts"] == 2


def test_highlights_are_relative_to_the_largest():
    found = make(tokens=("[CLS]", "so", "<b>", "[SEP]"), scores=np.array([[9, 1, 3, 9]]), text="so <b>")
    placed = Attribution(**{**vars(found), "offsets": ((0, 0), (0, 2), (3, 6), (0, 0))})
    assert saliency.highlights(placed) == [("so", 3), ("<b>", 9)]


def test_layers_are_named_as_in_the_paper():
    assert saliency_report.label("decoded_gradcam@8") == "Decoded Grad-CAM l7"
    assert saliency_report.label("gradcam@1") == "Grad-CAM l0"


def test_without_checkpoints_it_says_so(tmp_path):
    with pytest.raises(FileError, match="none of mpnet-sst2, minilm-sst2"):
        saliency.run(tmp_path, tmp_path, tmp_path)

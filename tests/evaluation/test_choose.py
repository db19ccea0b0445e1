"""Which method to use: the true one wins, one half chooses, the other confirms, the command works."""

import json
import shlex
from dataclasses import replace
from math import comb

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import masklens as ml
import planted
from masklens.cli.choose import as_words
from masklens.cli.main import app
from masklens.errors import MethodError, TextError
from masklens.evaluation.choose import affordable, candidate_sites, chance, halves, turned
from masklens.methods.registry import METHODS
from masklens.methods.ways import Way
from masklens.model.batch import TokenizerEncoder
from masklens.model.tap import Point
from masklens.records.layers import site_number
from masklens.tasks.classification import Classification
from records import make


class Rolled(planted.BagOfWords):
    """The same decisions, but the states after the words stand five positions further on.

    So scores of the words are true, and the same scores one layer later belong to other tokens.
    """

    def __init__(self):
        super().__init__()
        self.roll = Roll()

    def forward(self, input_ids, attention_mask, **_):
        total = self.roll(self.weight(input_ids) * attention_mask[..., None])[..., 0].sum(1)
        return torch.stack([torch.zeros_like(total), total], 1)


class Roll(nn.Module):
    def forward(self, states):
        return states.roll(5, 1)


@pytest.fixture(scope="module")
def subject():
    net, tokenizer = Rolled(), planted.words()
    points = [Point(net.weight), Point(net.roll)]
    made = ml.Subject.from_module(
        net, points, Classification(["bad", "good"]), TokenizerEncoder(tokenizer, None)
    )
    made.tokenizer = tokenizer
    return made


def texts(count, seed=0):
    """Texts of 24 words in random order of which three say something."""
    generator = np.random.default_rng(seed)
    words = ["fast", "enjoyable", "plot", *["a", "the", "is"] * 7]
    return [" ".join(generator.permutation(words)) for _ in range(count)]


@pytest.fixture(scope="module")
def choice(subject):
    return ml.choose(subject, texts(24), ["gradient", "gradcam", "attention"])


def test_the_method_and_layer_that_are_true_win(choice):
    assert "does better than random. But 12 texts say little" in choice.verdict
    assert (choice.method, choice.site, choice.layer) == ("gradcam", 0, "words") and choice.confirmed
    rows = {name: row["texts that pass"].value for name, row in choice.tried.rows.items()}
    assert list(rows)[0] == "gradcam@0" and rows["gradcam@0"] >= 0.9
    assert rows["gradcam@1"] <= 0.3 and rows["gradient@0"] == 0  # other positions; all scores equal
    assert rows["random order"] <= 0.3 and rows["reversed"] == 0
    assert choice.tried["gradcam@0"]["needed"].value < 0.2 < choice.tried["random order"]["needed"].value
    assert list(choice.ranking.rows) == ["gradcam@0", "gradient@0", "random order", "reversed"]


def test_a_true_method_that_comes_later_wins_too(subject):
    """Where the layer is the same, the order of the methods is no reason."""
    found = ml.choose(subject, texts(12), ["gradient", "random", "grad_x_input"])
    assert found.method == "grad_x_input"


def test_what_does_not_work_with_the_model_is_left_out(subject, choice):
    (note,) = choice.tried.notes
    assert note.startswith("attention is left out: Rolled does not give attention weights")
    assert note in str(choice)
    with pytest.raises(MethodError, match=r"no method could be tried.*attention"):
        ml.choose(subject, texts(4), ["attention"])


def test_the_half_that_confirms_has_no_part_in_the_choice(subject, choice):
    given, others = texts(24), texts(24, seed=1)
    first, second = halves(given, 100, seed=0)
    assert sorted(first + second) == sorted(given) and len(first) == len(second) == 12
    mixed = [text if text in first else other for text, other in zip(given, others, strict=True)]
    assert set(halves(mixed, 100, seed=0)[0]) == set(first)
    again = ml.choose(subject, mixed, ["gradient", "gradcam", "attention"])
    assert figures(again.tried) == figures(choice.tried) and again.site == choice.site
    blank = ["a the is " * 8 if text in second else text for text in given]
    blank = [text + " ." * i if "fast" not in text else text for i, text in enumerate(blank)]
    refuted = ml.choose(subject, blank, ["gradient", "gradcam", "attention"])
    assert figures(refuted.tried) == figures(choice.tried) and refuted.site == choice.site
    assert not refuted.confirmed and refuted.confirmation["gradcam@0"]["texts that pass"].value == 0
    assert "not clearly better than random" in refuted.verdict


def figures(table):
    return {
        name: [row[column].value for column in ("texts that pass", "needed")]
        for name, row in table.rows.items()
    }


def test_random_scores_are_not_confirmed(subject):
    found = ml.choose(subject, texts(24), ["random"])
    assert not found.confirmed and found.p_value > 0.05


def test_a_text_that_occurs_twice_is_in_one_half_only():
    first, second = halves(["a", "b", "a", "c", "b"], 100, seed=3)
    assert sorted(first + second) == ["a", "b", "c"]
    assert len(sum(halves(texts(30), 10, seed=0), [])) == 10
    assert halves(texts(30), 10, seed=0) != halves(texts(30), 10, seed=1)
    with pytest.raises(TextError, match="1 different texts"):
        halves(["a", "a"], 100, seed=0)


def test_how_likely_random_explanations_pass_as_often():
    assert chance(0, 7) == pytest.approx(1) and chance(1, 1) == pytest.approx(0.1)
    draws = np.random.default_rng(0).random((200_000, 10)) < 0.1
    assert chance(3, 10) == pytest.approx((draws.sum(1) >= 3).mean(), abs=0.003)
    assert chance(9, 10) == pytest.approx(comb(10, 9) * 0.1**9 * 0.9 + 0.1**10)


def test_what_is_affordable():
    names = affordable()
    assert {"integrated_gradients", "gradcam", "decoded_gradcam", "occlusion", "lime"} <= set(names)
    assert not {"shapley", "erasure", "reinforce", "diffmask", "random", "allennlp_simple"} & set(names)
    assert names.index("gradcam") < names.index("occlusion") < names.index("integrated_gradients")


def test_of_many_layers_some_are_tried_with_the_last():
    class Deep:
        sites, blocks = tuple(range(34)), tuple(range(2, 34))

    found = candidate_sites(Deep, Way(METHODS["attention"]))
    assert found == [5, 9, 13, 17, 21, 25, 29, 33]
    Deep.blocks = (2, 3, 4)
    assert candidate_sites(Deep, Way(METHODS["attention"])) == [2, 3, 4]


def test_a_mask_is_reversed_by_keeping_what_it_drops():
    scores = make().scores
    assert (turned(make()).scores == -scores).all()
    assert (turned(replace(make(), merge="max")).scores == 1 - scores).all()


def test_options_are_written_as_they_were_given():
    given = {
        "model": "my model",
        "truncate": True,
        "pair": False,
        "column": ["a", "b"],
        "limit": None,
        "seed": 0,
    }
    assert as_words(given | {"texts": []}) == [
        "--model",
        "my model",
        "--truncate",
        "--column",
        "a",
        "--column",
        "b",
    ]
    assert as_words({"texts": ["-5 stars", "good"]}) == ["--", "-5 stars", "good"]
    assert as_words({"texts": ["-"]}) == ["-"]


REVIEWS = ["a fast , funny movie", "a slow , dull film", "i loved it", "not my film", "thin plot , old jokes"]


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    file = tmp_path_factory.mktemp("choose") / "some reviews.txt"
    file.write_text("\n".join(REVIEWS), encoding="utf-8")
    return file


def test_the_command_that_is_printed_works(reviews):
    done = call("evaluate", "--input", reviews, "--choose", "--method", "gradcam", "--method", "gradient")
    assert done.exit_code == 0, done.output
    *_, line = done.stdout.strip().splitlines()
    words = shlex.split(line)
    assert words[:2] == ["masklens", "explain"] and str(reviews) in words
    assert all(name in done.stdout for name in ("gradcam, ", "gradient, words", "random order", "reversed"))
    assert "@" not in done.stdout and max(map(len, done.stdout.splitlines()[:-1])) <= 80
    pasted = call(*words[1:], "--json")
    assert pasted.exit_code == 0, pasted.output
    records = json.loads(pasted.stdout)
    assert len(records) == 5 and {r["method"] for r in records} == {words[words.index("--method") + 1]}
    sites = {tuple(r["sites"]) for r in records}
    assert sites == {(site_number(words[words.index("--layer") + 1]),)}


def test_a_lens_can_be_chosen_and_its_command_works(reviews, tmp_path):
    common = ("evaluate", "--input", reviews, "--choose", "--method", "diffmask", "--limit", 4)
    done = call(*common, "--json", "--out", tmp_path / "choice.json")
    found = json.loads(done.stdout)
    assert json.loads((tmp_path / "choice.json").read_text()) == found
    assert found["method"] == "diffmask" and "--limit 4" in found["command"]
    assert found["layer"].startswith(("words", "embeddings", "block "))
    pasted = call(*shlex.split(found["command"])[1:], "--json")
    assert pasted.exit_code == 0 and len(json.loads(pasted.stdout)) == 4


def test_a_method_without_what_it_needs_is_left_out_with_the_option_that_helps(reviews, tmp_path):
    made = planted.transformer()
    made.module.save_pretrained(tmp_path / "model")
    made.tokenizer.save_pretrained(tmp_path / "model")
    common = (
        "evaluate",
        "--model",
        tmp_path / "model",
        "--input",
        reviews,
        "--choose",
        "--method",
        "gradient",
    )
    done = call(*common, "--method", "decoded_gradcam")
    said = " ".join(done.stdout.split())
    assert done.exit_code == 0 and "decoded_gradcam is left out" in said and "give --lm-head" in said
    assert f"--model {tmp_path / 'model'}" in done.stdout.splitlines()[-1]


def test_options_that_have_no_part_in_a_choice_are_refused(reviews):
    for wrong in (["--metric", "hiding"], ["--draws", 20], ["--target", 1], ["--normalised"]):
        done = call("evaluate", "--input", reviews, "--choose", *wrong)
        assert done.exit_code == 2 and f"{wrong[0]} needs evaluate without --choose" in done.stderr


def test_a_layer_can_be_explained_alone():
    done = call("explain", "a fast , funny movie", "--method", "gradcam", "--layer", "Block 2", "--json")
    assert json.loads(done.stdout)[0]["sites"] == [3]
    done = call("explain", "a text", "--method", "gradcam", "--layer", "7")
    assert done.exit_code == 2 and "no layer '7'" in done.stderr
    done = call("explain", "a text", "--method", "gradcam", "--layer", "block 70")
    assert done.exit_code == 2 and "block 70" in done.stderr

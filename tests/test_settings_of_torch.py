"""What is set for all of torch changes no score: default dtype, inference mode, no_grad; and seeds."""

from contextlib import contextmanager

import numpy as np
import pytest
import torch

import masklens as ml
import tiny
from masklens.errors import LARGEST_SEED, LensError, MasklensError, MethodError, ModelError, TextError
from masklens.methods.registry import METHODS, load_all

load_all()
HEAD = tiny.model("bert", "mlm")
TEXTS = ["a funny movie .", "the plot is dull and the acting is worse ."]
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@contextmanager
def float64():
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


SETTINGS = {"float64": float64, "inference_mode": torch.inference_mode, "no_grad": torch.no_grad}


@pytest.fixture(scope="module")
def subject():
    return tiny.subject("bert")


def options(name, subject):
    given = dict(METHODS[name].quick)
    if "lm_head" in METHODS[name].options:
        given["lm_head"] = HEAD
    return given


def scores(subject, name):
    torch.manual_seed(0)
    return [a.scores for a in ml.explain(subject, TEXTS, name, **options(name, subject))]


@pytest.mark.parametrize("name", sorted(METHODS))
def test_scores_are_the_same(subject, name):
    try:
        expected = scores(subject, name)
    except MasklensError as error:
        pytest.skip(str(error))
    for setting, inside in SETTINGS.items():
        with inside():
            found = scores(subject, name)
        for one, other in zip(found, expected, strict=True):
            assert one.dtype == np.float32 and np.array_equal(one, other), setting


def test_verification_and_evaluation_are_the_same(subject):
    def measured():
        found = ml.explain(subject, TEXTS, "gradient")
        proofs = ml.verify(subject, found, replace="mask")
        table = ml.evaluate(subject, {"a": found}, random_draws=2)
        values = {
            row: {name: cell.value for name, cell in cells.items()} for row, cells in table.rows.items()
        }
        return [p.divergence for p in proofs], values

    expected = measured()
    for setting, inside in SETTINGS.items():
        with inside():
            assert measured() == expected, setting


@pytest.mark.parametrize("recipe", ["default", "published"])
def test_a_lens_is_the_same(subject, recipe):
    def fit():
        how = {"steps": 3, "sites": [1, 2], "recipe": recipe, "batch_size": 8}
        return ml.DiffMask.fit(subject, TEXTS * 4, "states", **how).probe.state_dict()

    expected = fit()
    for setting, inside in SETTINGS.items():
        with inside():
            found = fit()
        assert all(torch.equal(found[name], expected[name]) for name in expected), setting


def test_a_model_can_be_loaded_in_inference_mode(subject, tmp_path):
    subject.module.save_pretrained(tmp_path)
    subject.tokenizer.save_pretrained(tmp_path)
    with torch.inference_mode():
        loaded = ml.Subject.from_pretrained(tmp_path)
        found = ml.explain(loaded, TEXTS)
    assert np.array_equal(found[0].scores, ml.explain(subject, TEXTS)[0].scores)


def test_a_model_made_in_inference_mode_is_refused(subject):
    with torch.inference_mode():
        model = type(subject.module)(subject.module.config)
    with pytest.raises(ModelError, match="was made inside torch.inference_mode"):
        ml.Subject(model, subject.tokenizer)


def test_a_model_without_weights_is_refused(subject):
    with torch.device("meta"):
        model = type(subject.module)(subject.module.config)
    with pytest.raises(ModelError, match="weight is on the meta device; load them first"):
        ml.Subject(model, subject.tokenizer)


@pytest.mark.parametrize("seed", [2**63, 2**64, 10**40, -1, 1.5, "x", True, None])
def test_a_seed_that_not_every_generator_takes_is_refused(subject, seed):
    found = ml.explain(subject, TEXTS, "gradient")
    for action in (
        lambda: ml.explain(subject, TEXTS, "random", seed=seed),
        lambda: ml.DiffMask.fit(subject, TEXTS * 4, seed=seed, steps=1),
        lambda: ml.evaluate(subject, {"a": found}, seed=seed),
    ):
        with pytest.raises(MethodError, match=f"seed is .*; give a whole number from 0 to {LARGEST_SEED}"):
            action()


def test_the_largest_seed_and_numbers_of_numpy_work(subject):
    found = ml.explain(subject, TEXTS, "random", seed=LARGEST_SEED)
    ml.evaluate(subject, {"a": found}, metrics=["hiding"], random_draws=1, seed=LARGEST_SEED)
    ml.DiffMask.fit(subject, TEXTS * 4, seed=np.int64(LARGEST_SEED), steps=1, sites=[1])


def test_texts_may_come_from_anywhere(subject, tmp_path):
    expected = ml.explain(subject, TEXTS, "gradient")
    (tmp_path / "x.txt").write_text("\n".join(TEXTS))
    with (tmp_path / "x.txt").open() as file:
        for texts in (
            (text for text in TEXTS),
            iter(TEXTS),
            map(str, TEXTS),
            dict.fromkeys(TEXTS).keys(),
            np.array(TEXTS),
            (line.rstrip("\n") for line in file),
        ):
            assert list(ml.explain(subject, texts, "gradient")) == list(expected)


@pytest.mark.parametrize("texts", [None, 5, {"text": "a"}, [5], [("a", "b", "c")], b"abc"])
def test_what_is_no_text_is_told(subject, texts):
    for action in (ml.explain, ml.DiffMask.fit):
        with pytest.raises(TextError, match="a string"):
            action(subject, texts)


def test_a_lens_is_fitted_on_a_generator(subject):
    def fit(texts, held_out):
        lens = ml.DiffMask.fit(subject, texts, held_out=held_out, validation=iter(TEXTS), steps=1, sites=[1])
        return lens.probe.state_dict()

    expected, found = fit(TEXTS * 4, TEXTS), fit(iter(TEXTS * 4), iter(TEXTS))
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_lens_may_be_given_as_a_path(subject, tmp_path):
    lens = ml.DiffMask.fit(subject, TEXTS * 4, steps=1, sites=[1, 2])
    lens.save_pretrained(tmp_path)
    expected = lens.explain(TEXTS)
    for given in (tmp_path, str(tmp_path)):
        found = ml.explain(subject, TEXTS, "diffmask", lens=given)
        assert [a.sites for a in found] == [a.sites for a in expected] == [(1, 2)] * 2
        assert all(np.array_equal(a.scores, b.scores) for a, b in zip(found, expected, strict=True))
    with pytest.raises(LensError, match="no such folder: .*nowhere"):
        ml.explain(subject, TEXTS, "diffmask", lens=tmp_path / "nowhere")
    with pytest.raises(LensError, match="lens= is a int; give a DiffMask, or the folder of a saved one"):
        ml.explain(subject, TEXTS, "diffmask", lens=5)

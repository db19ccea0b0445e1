"""What every method promises on every family and task. New methods and families are picked up by themselves.

Scores are finite, one per token and site; they do not depend on padding, on the batch or on when they are
computed; the model comes back as it was, also after an exception; a model in which nothing matters gets
zeros; a token that alone decides ranks first. A method that does not apply raises a MethodError or a
ModelError that says why. The results of the whole run become docs/families.md (`pytest --write-table`).
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

import tiny
from masklens import Subject, explain
from masklens.errors import MethodError, ModelError
from masklens.methods.registry import METHODS, Method, Request, load_all
from masklens.model.families import family_of
from restored import snapshot

load_all()

REPRESENTATIVE = {("bert", "classification"), ("bert", "qa"), ("gpt2", "causal"), ("albert", "tagging")}
"""run with every method in the quick tests"""
ONE_METHOD = "grad_x_input"
"""run with every family and task in the quick tests"""


def grid() -> list[Any]:
    """Every method on every family and task; all but a representative part is slow."""
    out = []
    for method in sorted(METHODS):
        for family, head in tiny.cases():
            quick = (family, head) in REPRESENTATIVE or method == ONE_METHOD
            out.append(pytest.param(method, family, head, marks=[] if quick else pytest.mark.slow))
    return out


def options(method: Method, family: str) -> dict[str, Any]:
    """The method's cheap options, and a language-model head where it needs one."""
    chosen = dict(method.quick)
    heads = [head for head in ("mlm", "causal") if head in tiny.FAMILIES[family].heads]
    if "lm_head" in method.options and heads:
        chosen["lm_head"] = tiny.model(family, heads[0])
    return chosen


def apply(subject, texts, method: Method, **chosen: Any):
    return explain(subject, texts, method=method.name, seed=3, **chosen)


def check(method: Method, subject, texts, chosen: dict[str, Any]) -> str:
    """Hold the method to the contract; the reason if it says that it does not apply."""
    before = snapshot(subject.module)
    try:
        with counting(subject) as passes:
            together = apply(subject, texts, method, **chosen)
    except (MethodError, ModelError) as error:
        same(before, snapshot(subject.module))
        assert len(str(error)) > 20, "it must say why"
        assert "passes no gradient" not in str(error), "none of these models is quantised"
        return str(error)
    same(before, snapshot(subject.module))
    for text, one in zip(texts, together, strict=True):
        assert one.text == text and one.sites == method.default_sites(subject)
        assert one.scores.shape == (len(one.sites), len(one.tokens)) and np.isfinite(one.scores).all()
        assert one.method == method.name and one.prediction and one.target
    again = apply(subject, texts, method, **chosen)
    assert again == together, "same seed, another result"
    for alone, one in zip(apply(subject, texts, method, batch_size=1, **chosen), together, strict=True):
        # Keep probabilities are compared on the scale from 0 to 1, other scores with the largest.
        size = 1.0 if method.merge == "max" else np.abs(one.scores).max()
        np.testing.assert_allclose(
            alone.scores, one.scores, atol=1e-5 + 2e-3 * size, err_msg="depends on the batch"
        )
        assert alike(alone.prediction, one.prediction) and alike(alone.target, one.target)
    with failing(subject, passes[0]), pytest.raises(Broken):
        apply(subject, texts, method, **chosen)
    same(before, snapshot(subject.module))
    return ""


def alike(name: str, other: str) -> bool:
    """The same description; a predicted number only as far as rounding lets it be."""
    try:
        return bool(np.isclose(float(name), float(other), rtol=1e-3, atol=1e-4))
    except ValueError:
        return name == other


def same(before: dict[str, Any], now: dict[str, Any]) -> None:
    for name in before:
        assert before[name] == now[name], f"{name} of the model changed"


class Broken(Exception):
    """Raised in the middle of a method's work."""


@contextmanager
def counting(subject):
    """How many forward passes a method makes, in a list of one number."""
    passes, own = [0], subject._call

    def call(*args: Any, **kwargs: Any) -> Any:
        passes[0] += 1
        return own(*args, **kwargs)

    subject._call = call
    try:
        yield passes
    finally:
        del subject._call


@contextmanager
def failing(subject, at: int):
    """The model breaks in the middle of its forward pass number `at`."""
    seen, last = 0, subject.points[max(subject.points)]

    def hook(*_: Any) -> None:
        nonlocal seen
        seen += 1
        if seen >= at:
            raise Broken

    handle = last.module.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


@pytest.mark.parametrize(("name", "family", "head"), grid())
def test_contract(name, family, head, record_property):
    method, found = METHODS[name], [name, family, head, "failed"]
    record_property("contract", found)
    found[3] = check(method, tiny.subject(family, head), tiny.texts(family, head), options(method, family))


KINDS = ("attention", "decoded_gradcam", "grad_x_input", "integrated_gradients", "occlusion")
"""for each way of using a model, a method that stands for the others"""
QUICK_FAMILIES = ("qwen3", "gemma3_text", "gpt_oss", "mamba", "ctrl", "marian", "led")


def language_grid() -> list[Any]:
    """The methods of all kinds on the further language models; all but a few are slow."""
    out = []
    for name in KINDS:
        for family in tiny.LANGUAGE_MODELS:
            quick = family in QUICK_FAMILIES and name == ONE_METHOD
            out.append(pytest.param(name, family, marks=[] if quick else pytest.mark.slow))
    return out


@pytest.mark.parametrize(("name", "family"), language_grid())
def test_contract_on_language_models(name, family, record_property):
    found = [name, family, "failed"]
    record_property("language", found)
    method, model = METHODS[name], tiny.language_model(family)
    try:
        subject = Subject(model, tiny.sentencepiece())
    except ModelError as error:
        found[2] = str(error)
        return
    assert subject.sites == (0, 1, 2, 3, 4)
    texts = tiny.language_texts(family)
    subject.states(subject.encode(texts[:1]))  # some families change themselves the first time they run
    found[2] = check(method, subject, texts, dict(method.quick))
    if family_of(model).alone:
        found[2] = check(method, subject, texts[:1], dict(method.quick)) or found[2]


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_token_that_alone_decides_ranks_first(name):
    method = METHODS[name]
    if "planted" in method.exempt:
        assert len(method.exempt["planted"]) > 10
        pytest.skip(method.exempt["planted"])
    try:
        made = apply(tiny.planted(), tiny.PLANTED_TEXTS, method)
    except (MethodError, ModelError) as error:
        pytest.skip(str(error))
    for one in made:
        for site, scores in zip(one.sites, one.scores, strict=True):
            assert one.tokens[int(scores.argmax())] == tiny.PLANTED, f"site {site}: {scores}"
            assert (np.sort(scores)[-2] < scores.max()).all()


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_model_in_which_nothing_matters_gets_zeros(name):
    method = METHODS[name]
    if "zero_effect" in method.exempt:
        assert len(method.exempt["zero_effect"]) > 10
        pytest.skip(method.exempt["zero_effect"])
    flat = tiny.subject("bert")
    with torch.no_grad():
        flat.module.classifier.weight.zero_()
        flat.module.classifier.bias.copy_(torch.tensor([0.0, 1.0, 2.0]))
    for subject in (tiny.planted(effect=0.0), flat):
        try:
            made = apply(subject, tiny.PLANTED_TEXTS, method, **options(method, "bert"))
        except (MethodError, ModelError) as error:
            pytest.skip(str(error))
        for one in made:
            assert np.abs(one.scores).max() < 1e-6, one.scores


def test_exemptions_name_checks_that_exist():
    for method in METHODS.values():
        assert set(method.exempt) <= {"planted", "zero_effect", "target"}, method.name
        assert not set(method.quick) - set(method.options), method.name


def _neighbours(request: Request):
    """Wrong: a text's scores depend on the texts beside it."""
    states = request.subject.states(request.batch, request.sites).states
    return torch.stack([states[s].sum(-1) - states[s].mean() for s in request.sites], 1)


def _forgetful(request: Request):
    """Wrong: leaves a hook on the model."""
    request.subject.module.register_forward_hook(lambda *_: None)
    return torch.zeros(len(request.batch), len(request.sites), request.batch.shape[1])


def _restless(request: Request):
    """Wrong: another result each time."""
    return torch.rand(len(request.batch), len(request.sites), request.batch.shape[1])


def _sulky(request: Request):
    """Wrong: does not say why it does not apply."""
    raise MethodError("no")


def _norms(request: Request):
    """Right: the length of each state."""
    states = request.subject.states(request.batch, request.sites).states
    return torch.stack([states[s].norm(dim=-1) for s in request.sites], 1)


@pytest.mark.parametrize("function", [_neighbours, _forgetful, _restless, _sulky, _norms])
def test_the_contract_tells_right_from_wrong(function, monkeypatch):
    method = Method("local", function, summary="", cost="", paper="", sites="all")
    monkeypatch.setitem(METHODS, "local", method)
    if function is _norms:
        assert check(method, tiny.subject("bert"), tiny.TEXTS, {}) == ""
        return
    with pytest.raises(AssertionError):
        check(method, tiny.subject("bert"), tiny.TEXTS, {})

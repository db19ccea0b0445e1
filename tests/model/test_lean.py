"""Memory of long texts: logits only where they are read, and gradients that keep little."""

import pytest
import torch

import tiny
from masklens import Subject, explain, explain_generation
from masklens.model import subject as module_of_subject
from masklens.model.tap import gathering, recomputing

LANGUAGE = [case for case in tiny.cases() if case[1] in ("mlm", "causal", "seq2seq")]


@pytest.mark.parametrize(("family", "head"), LANGUAGE)
def test_logits_are_computed_only_where_they_are_read(family, head):
    subject = tiny.subject(family, head)
    targets = [None] * len(tiny.texts(family, head)) if head == "mlm" else ["the plot", None, "car"]
    batch = subject.encode(tiny.texts(family, head), targets)
    shapes = []
    hook = subject.head.register_forward_hook(lambda _module, _args, logits: shapes.append(logits.shape))
    narrow = subject.states(batch).output
    hook.remove()
    steps = batch.marks["positions"].shape[1]
    assert {tuple(shape[:2]) for shape in shapes} == {(len(batch), steps)}
    subject.head = None
    assert torch.allclose(subject.states(batch).output, narrow, atol=1e-5), "other logits than in a full run"


def test_a_head_that_sees_other_shapes_is_left_alone():
    linear, positions = torch.nn.Linear(4, 2), torch.tensor([[1, -1]])
    with gathering(linear, positions) as done:
        linear(torch.ones(3, 4)), linear(torch.ones(2, 5, 4))
        assert not done
        assert linear(torch.ones(1, 5, 4)).shape == (1, 2, 2) and done
    assert linear(torch.ones(1, 5, 4)).shape == (1, 5, 2)


@pytest.mark.parametrize("family", list(tiny.FAMILIES))
def test_values_that_are_computed_again_give_the_same_gradients(family, monkeypatch, unchanged):
    head = tiny.FAMILIES[family].heads[-1]
    subject, texts = tiny.subject(family, head), tiny.texts(family, head)
    unchanged(subject.module)
    kept = explain(subject, texts, method="grad_x_input", sites="all")
    monkeypatch.setattr(module_of_subject, "NUMBERS_KEPT", {"cpu": 0})
    again = explain(subject, texts, method="grad_x_input", sites="all")
    unchanged(subject.module)
    for a, b in zip(kept, again, strict=True):
        assert torch.allclose(torch.tensor(a.scores), torch.tensor(b.scores), atol=1e-5)


def test_gradients_after_the_run_has_ended(monkeypatch):
    """The way back is outside Subject.run, where the parameters learn again."""
    subject = tiny.subject("llama", "causal")
    batch = subject.encode(tiny.TEXTS)
    found = []
    for kept in (2**23, 0):
        monkeypatch.setattr(module_of_subject, "NUMBERS_KEPT", {"cpu": kept})
        leaf = subject.states(batch, [1]).states[1].requires_grad_()
        output = subject.run(batch, replace={1: lambda _, leaf=leaf: leaf}).output
        assert all(p.requires_grad for p in subject.module.parameters())
        found.append(torch.autograd.grad(output.sum(), leaf)[0])
    assert torch.allclose(*found, atol=1e-5)
    assert all(p.requires_grad for p in subject.module.parameters())


@pytest.mark.parametrize("method", ["gradient", "integrated_gradients"])
def test_a_long_text_is_walked_back_through_for_each_token_of_an_answer(method, monkeypatch):
    subject, prompt = tiny.subject("gpt2", "causal"), "the plot is dull . and the acting is worse"
    found = []
    for kept in (2**23, 0):
        monkeypatch.setattr(module_of_subject, "NUMBERS_KEPT", {"cpu": kept})
        found.append(explain_generation(subject, prompt, method, max_new_tokens=3, sites="all").scores)
    assert torch.allclose(*map(torch.tensor, found), atol=1e-5)
    assert all(p.requires_grad for p in subject.module.parameters())


def test_long_texts_are_computed_again(monkeypatch):
    """The tiny BERT has 16 numbers a token in each of 3 blocks."""
    calls = []

    def spy(modules, needed, inside):
        calls.append(needed)
        return recomputing(modules, needed, inside)

    monkeypatch.setattr(module_of_subject, "recomputing", spy)
    monkeypatch.setattr(module_of_subject, "NUMBERS_KEPT", {"cpu": 10 * 16 * 3})
    explain(tiny.subject("bert"), tiny.TEXTS, method="gradient")
    needed = calls[0]
    assert not needed(torch.zeros(1, 10, 16)) and needed(torch.zeros(1, 11, 16))
    assert not needed(torch.zeros(50, 10, 16))


def test_less_is_kept_for_the_way_back():
    """What autograd holds after the forward pass, in numbers."""

    def kept(needed):
        held = 0

        def pack(value):
            nonlocal held
            held += value.numel()
            return value

        subject = tiny.subject("llama", "causal")
        batch = subject.encode(tiny.TEXTS)
        blocks = [point.module for point in subject.blocks.values()]
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value), subject.frozen():
            state = subject.states(batch, [1]).states[1].requires_grad_()
            with recomputing(blocks, needed):
                subject.run(batch, replace={1: lambda _: state})
        return held

    assert kept(lambda _: True) < kept(lambda _: False) / 3


class WeightsInBytes(torch.nn.Module):
    """A linear layer as quantisers for transformers make it: 8-bit weights that take no gradient."""

    def __init__(self, linear):
        super().__init__()
        scale = linear.weight.detach().abs().amax(1, keepdim=True) / 127
        rounded = (linear.weight.detach() / scale).round().to(torch.int8)
        self.weight = torch.nn.Parameter(rounded, requires_grad=False)
        self.register_buffer("scale", scale)
        self.bias = linear.bias

    def forward(self, x):
        return torch.nn.functional.linear(x, self.weight * self.scale, self.bias)


def quantised(family):
    model = tiny.model(family, "causal", tie_word_embeddings=False)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, torch.nn.Linear):
                setattr(parent, name, WeightsInBytes(child))
    return model


@pytest.mark.parametrize("family", ["llama", "opt"])
def test_a_quantised_model(family, unchanged):
    model = quantised(family)
    unchanged(model)
    subject = Subject(model, tiny.FAMILIES[family].tokenizer())
    batch = subject.encode(tiny.TEXTS)
    output = subject.states(batch).output
    with torch.no_grad():
        full = model(**batch.inputs).logits
    at = batch.marks["positions"][:, 0]
    assert torch.allclose(output[:, 0], full[torch.arange(len(batch)), at], atol=1e-5)
    for method in ("grad_x_input", "occlusion"):
        for one in explain(subject, tiny.TEXTS, method=method, sites=[0, 2]):
            assert (abs(one.scores).max(1) > 0).all()
    unchanged(model)

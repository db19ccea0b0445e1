"""Parts that pass no gradient, such as quantised layers, are refused where a gradient has to pass."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import masklens as ml
import tiny
from masklens import Subject, explain
from masklens.errors import ModelError
from restored import snapshot

PACKS = "support_avx512bf16_for_cpu"
REFUSED = "passes no gradient"
TEXT = "the plot is dull"
METHODS = {
    "gradient": {},
    "gradcam": {},
    "decoded_gradcam": {},
    "smoothgrad": {"n_samples": 2},
    "integrated_gradients": {"n_steps": 2},
    "information_bottleneck": {"n_steps": 2},
    "guan": {"n_steps": 2},
    "diffmask": {"steps": 2},
}
CASES = [("bert", "classification"), ("llama", "causal")]

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


HEADS = {"bert": "classifier", "llama": "lm_head"}


def quantised(family, head, part="body"):
    """A tiny model whose body, or whose head, has dynamic 8-bit layers."""
    subject = tiny.subject(family, head)
    model = subject.module
    where, which = (model.base_model, nn.Linear) if part == "body" else (model, HEADS[family])
    torch.ao.quantization.quantize_dynamic(where, {which}, inplace=True)
    return Subject(model, subject.tokenizer)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("family", "head"), CASES)
def test_scores_from_gradients_of_quantised_layers_are_refused(family, head, method):
    subject, more = quantised(family, head), {}
    if method == "decoded_gradcam" and family == "bert":
        more["lm_head"] = tiny.model("bert", "mlm")
    before = snapshot(subject.module)
    with pytest.raises(ModelError, match=f"quantized.dynamic.*{REFUSED}.*use a method without gradients"):
        explain(subject, [TEXT], method=method, sites=[3, 0], **METHODS[method], **more)
    assert snapshot(subject.module) == before


@pytest.mark.parametrize(("family", "head"), CASES)
def test_a_quantised_head_is_named(family, head):
    with pytest.raises(ModelError, match=f"^{HEADS[family]} .*{REFUSED}"):
        explain(quantised(family, head, "head"), [TEXT], method="gradient")


def test_a_lens_does_not_learn_from_quantised_layers():
    with pytest.raises(ModelError, match=REFUSED):
        ml.DiffMask.fit(quantised("bert", "classification"), tiny.TEXTS * 4, steps=2)


def test_an_answer_of_a_quantised_model():
    subject = quantised("llama", "causal")
    with pytest.raises(ModelError, match=REFUSED):
        ml.explain_generation(subject, TEXT, max_new_tokens=2)
    assert ml.explain_generation(subject, TEXT, "occlusion", max_new_tokens=2).scores.any()


@pytest.mark.parametrize("part", ["body", "head"])
def test_a_quantised_model_is_refused_before_it_answers(part, monkeypatch):
    subject = quantised("llama", "causal", part)
    monkeypatch.setattr(
        type(subject.module), "generate", lambda *a, **k: pytest.fail("an answer is generated")
    )
    with pytest.raises(ModelError, match=REFUSED):
        ml.explain_generation(subject, TEXT, max_new_tokens=2)


def test_an_answer_takes_as_many_runs_with_gradients_as_without():
    """The look at gradients before the answer is one of the runs that tell whether the model is causal."""
    counts = []
    for method in ("random", "gradient"):
        subject, runs = tiny.subject("gpt2", "causal"), []
        subject.module.register_forward_pre_hook(lambda *_, runs=runs: runs.append(1))
        ml.explain_generation(subject, TEXT, method, max_new_tokens=4)
        counts.append(len(runs))
    assert counts[0] == counts[1]


@pytest.mark.parametrize(("family", "head"), CASES)
def test_occlusion_of_a_quantised_model_by_hand(family, head):
    """The score minus the score with a mask in the place of the token; one text at a time, because the
    layers fit their scale to all that they get."""
    subject = quantised(family, head)
    batch = subject.encode([TEXT])
    ids, mask = batch.inputs["input_ids"][0], subject.tokenizer.mask_token_id
    (made,) = explain(subject, [TEXT], method="occlusion", internal_batch_size=1)

    @torch.no_grad()
    def scores(some):
        logits = subject.module(input_ids=some[None]).logits
        return logits[0] if head == "classification" else logits[0, -1].log_softmax(-1)

    target = scores(ids).argmax()
    for i in (batch.valid & ~batch.special)[0].nonzero()[:, 0].tolist():
        without = torch.where(torch.arange(len(ids)) == i, mask, ids)
        fall = scores(ids)[target] - scores(without)[target]
        assert made.at(0)[i] == pytest.approx(float(fall), abs=1e-5)


def test_methods_that_need_no_gradient_work_with_quantised_layers():
    subject = quantised("bert", "classification")
    for method, options in {"lime": {}, "shapley": {"n_samples": 2}, "reinforce": {"steps": 2}}.items():
        (made,) = explain(subject, [TEXT], method=method, **options)
        assert made.scores.any()


class Packing(nn.Linear):
    """As a 4-bit layer of bitsandbytes on some CPUs: the first run without gradients packs its weights, and
    then no gradient passes."""

    packed = False

    def forward(self, state):
        if vars(self)[PACKS] and not self.training and not state.requires_grad:
            self.packed = True
        return F.linear(state.detach() if self.packed else state, self.weight, self.bias)


def packing(model):
    """The model with such layers in its blocks."""
    for part in model.base_model.layers.modules():
        if type(part) is nn.Linear:
            part.__class__ = Packing
            setattr(part, PACKS, True)
    return model


def test_layers_do_not_pack_their_weights_while_the_model_is_explained():
    subject = Subject(packing(tiny.model("llama", "causal")), tiny.sentencepiece())
    before = snapshot(subject.module)
    ours, plain = (
        ml.explain_generation(one, TEXT, max_new_tokens=3)
        for one in (subject, tiny.subject("llama", "causal"))
    )
    assert torch.equal(torch.tensor(ours.scores), torch.tensor(plain.scores)) and ours.scores.any()
    layers = [part for part in subject.module.modules() if isinstance(part, Packing)]
    assert layers and all(vars(part)[PACKS] and not part.packed for part in layers)
    assert snapshot(subject.module) == before


@pytest.mark.parametrize("held", [False, True])
def test_layers_that_were_packed_since_the_last_explanation_are_refused(held):
    subject = Subject(packing(tiny.model("llama", "causal")), tiny.sentencepiece())
    batch = subject.encode([TEXT])

    def gradient():
        return subject.run(batch, replace={0: lambda state: state.detach().requires_grad_()})

    with subject.frozen() if held else torch.enable_grad():
        gradient()
        for part in subject.module.modules():
            if held and isinstance(part, Packing):
                setattr(part, PACKS, True)
        with torch.no_grad():
            subject.run(batch) if held else subject.module(**batch.inputs)
        with pytest.raises(ModelError, match=rf"Packing\) {REFUSED}"):
            gradient()


def test_four_bit_layers_of_bitsandbytes():
    """Their scores are those of ordinary layers with the same numbers, before and after an answer."""
    bnb = pytest.importorskip("bitsandbytes")
    options = dict(hidden_size=64, intermediate_size=64, head_dim=32)
    model, plain = (tiny.model("llama", "causal", **options) for _ in range(2))
    for (name, part), other in zip(
        list(model.base_model.named_modules()), plain.base_model.modules(), strict=True
    ):
        if type(part) is nn.Linear:
            packed = bnb.nn.Linear4bit(part.in_features, part.out_features, bias=False, quant_type="nf4")
            packed.load_state_dict(part.state_dict())
            model.base_model.set_submodule(name, packed.to("cpu"))
            found = bnb.functional.dequantize_4bit(packed.weight.data, packed.weight.quant_state)
            other.weight.data = found.to(other.weight).reshape(other.weight.shape)
    ours, theirs = (Subject(one, tiny.sentencepiece()) for one in (model.eval(), plain))
    for _ in range(2):
        made, expected = (ml.explain_generation(one, TEXT, max_new_tokens=3) for one in (ours, theirs))
        assert made.answer == expected.answer
        assert torch.allclose(torch.tensor(made.scores), torch.tensor(expected.scores), atol=1e-4)


class Scale(nn.Module):
    """Twice the state, with or without its derivative."""

    def __init__(self, derivative):
        super().__init__()
        self.derivative = derivative

    def forward(self, state):
        return 2 * (state if self.derivative else state.detach())


class Around(nn.Module):
    """A block whose part is added to its input. A gradient that stops in the part still gets around it."""

    def __init__(self, part):
        super().__init__()
        self.part, self.drop = part, nn.Dropout(0.5)

    def forward(self, state):
        return state + self.drop(self.part(state))


class Constant(nn.Module):
    """As rotary angles: it reads the type and the shape of a state, and none of its numbers."""

    def forward(self, state):
        return torch.linspace(0, 1, state.shape[1]).to(state)[None, :, None]


class Hard(nn.Module):
    """As a router: a step function has no derivative where it does not step."""

    def forward(self, state):
        return (state > state.median()).to(state)


def subject_with(part):
    """The planted model with a part in its second block."""
    model = tiny.planted().module
    model.blocks = nn.ModuleList(map(Around, (nn.Identity(), part, nn.Identity())))
    return Subject(model, tiny.wordpiece())


@pytest.mark.parametrize("part", [Scale(True), Constant(), Hard(), nn.Identity(), nn.LayerNorm(8)])
def test_parts_that_hide_no_derivative_are_no_obstacle(part):
    (made,) = explain(subject_with(part), [TEXT], method="gradient")
    assert made.scores.any()


def test_a_part_without_derivative_is_refused_where_a_gradient_has_to_pass():
    subject = subject_with(Scale(False))
    explain(subject, [TEXT], method="gradient", sites=[3])  # the gradient ends above the part
    with pytest.raises(ModelError, match=rf"^blocks.1.part .*Scale\) {REFUSED}"):
        explain(subject, [TEXT], method="gradient", sites=[0])

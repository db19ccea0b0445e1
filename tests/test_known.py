"""`explain` then `verify` encodes and runs each text once, and never relies on a model that has changed."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import masklens as ml
import tiny
from masklens.cli.main import app
from masklens.methods import explain as explaining
from masklens.model import known
from masklens.model.batch import TokenizerEncoder
from masklens.model.known import recall
from masklens.model.subject import Subject
from masklens.tasks.classification import Classification

TEXTS = [
    "a fast , funny , highly enjoyable movie .",
    "the plot is dull and the acting is worse than the plot .",
    "who lives in the capital ?",
    "Paris is the capital",
]


@pytest.fixture
def tokenised(monkeypatch) -> Counter:
    """How often each text is given to a tokenizer."""
    count: Counter = Counter()
    for name in ("tokenize", "_tokenize_all"):
        own = getattr(TokenizerEncoder, name)

        def counting(self, given, *rest, own=own, name=name, **options):
            single = name == "tokenize"
            if single or len(given) > 1:  # one text goes on to `tokenize`
                count.update([given] if single else given)
            return own(self, given, *rest, **options)

        monkeypatch.setattr(TokenizerEncoder, name, counting)
    return count


@contextmanager
def whole_rows(module: torch.nn.Module, tokenizer, texts=TEXTS) -> Iterator[Counter]:
    """How often each text goes through the model with all of its tokens."""
    names = {tuple(tokenizer(text)["input_ids"]): text for text in texts}
    count: Counter = Counter()

    kind, forward = type(module), type(module).forward

    def looking(self, *args, **given):
        for ids, mask in zip(given["input_ids"], given["attention_mask"], strict=True):
            count.update([names[key]] if (key := tuple(ids[mask.bool()].tolist())) in names else [])
        return forward(self, *args, **given)

    kind.forward = looking  # no hook, with which nothing would be remembered
    try:
        yield count
    finally:
        kind.forward = forward


def alike(found: list[ml.Verification], expected: list[ml.Verification]) -> bool:
    pairs = list(zip(found, expected, strict=True))
    same = [(a.verdict, a.needed, a.removed) == (b.verdict, b.needed, b.removed) for a, b in pairs]
    return all(same) and max(abs(a.divergence - b.divergence) for a, b in pairs) < 1e-5


def fresh(one: ml.Subject) -> ml.Subject:
    """The same model, of which nothing is remembered."""
    return ml.Subject(one.module, one.tokenizer)


@pytest.mark.parametrize("texts", [TEXTS, TEXTS[:1]])
def test_explain_then_verify_encodes_and_runs_each_text_once(texts, tokenised):
    one = tiny.subject("bert")
    with whole_rows(one.module, one.tokenizer) as rows:
        out = ml.explain(one, texts, "gradient")
        found = ml.verify(one, out)
        ml.evaluate(one, {"gradient": out}, metrics=["hiding"], random_draws=2)
    assert tokenised == rows == Counter(texts)
    assert alike(found, ml.verify(fresh(one), out))
    assert tokenised == Counter(texts * 2)  # so the counter counts


@pytest.mark.parametrize("command", ["explain", "report", "evaluate"])
def test_so_do_the_commands(command, tokenised, monkeypatch, tmp_path):
    """What each layer would predict is left out: it takes one more run of each text."""
    one = tiny.subject("bert")
    monkeypatch.setattr(Subject, "from_pretrained", lambda *_, **__: one)
    monkeypatch.setattr("masklens.methods.logit_lens.has_layer_predictions", lambda task: False)
    more = {"report": ["--out", tmp_path / "x.html"], "evaluate": ["--metric", "hiding", "--draws", "2"]}
    given = [command, *TEXTS, "--model", "tiny", "--method", "gradient", *more.get(command, [])]
    with whole_rows(one.module, one.tokenizer) as rows:
        done = CliRunner().invoke(app, [str(word) for word in given], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert tokenised == rows == Counter(TEXTS)


@pytest.mark.parametrize(
    ("family", "head"),
    [
        ("bert", "classification"),
        ("roberta", "classification"),
        ("bert", "regression"),
        ("bert", "pairs"),
        ("bert", "qa"),
        ("bert", "tagging"),
        ("bert", "mlm"),
        ("gpt2", "causal"),
        ("t5", "seq2seq"),
    ],
)
@pytest.mark.parametrize("size", [1, None])
def test_what_is_remembered_is_what_the_model_says(family, head, size, monkeypatch):
    monkeypatch.setattr(explaining, "TOKENISED", 2)
    one, texts = tiny.subject(family, head), tiny.texts(family, head)
    ml.explain(one, texts, "gradient", batch_size=size)
    batch, found = one.encode(texts), recall(one, texts)
    if found is None:  # several batches of inputs that are not by token
        assert head == "seq2seq"
        return
    for name, value in batch.inputs.items():
        assert torch.equal(found.batch.inputs[name], value)
    for name in ("valid", "special", "segments"):
        assert torch.equal(getattr(found.batch, name), getattr(batch, name))
    for name in ("tokens", "offsets", "texts", "truncated"):
        assert getattr(found.batch, name) == getattr(batch, name)
    with torch.no_grad():
        assert torch.allclose(found.output, one.run(batch).output, atol=1e-5)
    assert torch.equal(recall(one, texts[::-1]).output, found.output.flip(0))


def bias(one: ml.Subject) -> torch.nn.Parameter:
    return one.module.classifier.bias


def write_in_place(one: ml.Subject) -> None:
    with torch.no_grad():
        bias(one).copy_(torch.tensor([0.0, 9.0, 0.0]))


def write_data(one: ml.Subject) -> None:
    bias(one).data[1] += 9


def load_weights(one: ml.Subject) -> None:
    one.module.load_state_dict(tiny.model("bert", seed=5).state_dict())


def switch_adapter(one: ml.Subject) -> None:
    one.module.dropout.switched = True


def other_forward(one: ml.Subject) -> None:
    inner = one.module.dropout.forward
    one.module.dropout.forward = lambda state: -inner(state)


def other_tensor(one: ml.Subject) -> None:
    one.module.dropout.factor.fill_(-2.0)


def other_scale(one: ml.Subject) -> None:
    one.module.dropout.scaling["default"] = -3.0


def shorter_texts(one: ml.Subject) -> None:
    one._encode.max_length, one._encode.truncate = 4, True


def exchange_task(one: ml.Subject) -> None:
    one.task = Classification(("x", "y", "z"))


class Switched(torch.nn.Module):
    """As an adapter that can be switched on."""

    switched = False

    def __init__(self) -> None:
        super().__init__()
        self.switched, self.scaling = False, {"default": 1.0}
        self.factor = torch.ones(())  # neither a parameter nor a buffer

    def forward(self, state):
        return (-state if self.switched else state) * self.scaling["default"] * self.factor


CHANGES = [write_in_place, write_data, load_weights, switch_adapter, other_forward, other_tensor, other_scale]


@pytest.mark.parametrize("change", CHANGES)
def test_a_model_that_has_changed_is_run_again(change: Callable[[ml.Subject], None]):
    one = tiny.subject("bert")
    one.module.dropout = Switched()
    out = ml.explain(one, TEXTS, "gradient")
    before = recall(one, TEXTS).output
    change(one)
    assert recall(one, TEXTS) is None
    assert alike(ml.verify(one, out), ml.verify(fresh(one), out))
    with torch.no_grad():
        assert not torch.allclose(one.run(one.encode(TEXTS)).output, before, atol=0.01)


@pytest.mark.parametrize("name", ["word_embeddings.weight", "1.output.dense.weight", "1.output.dense.bias"])
def test_a_change_of_one_number_is_seen(name):
    """Written past autograd, which counts no version then, and far from where samples would be taken."""
    one = ml.Subject.default()
    (weight,) = (w for n, w in one.module.named_parameters() if n.endswith(name))
    ml.explain(one, TEXTS, "gradient")
    flat, place = weight.data.view(-1), weight.numel() // 2 + 17
    before = float(flat[place])
    flat[place] = before * 1.001 + 1e-5
    assert recall(one, TEXTS) is None
    flat[place] = before
    assert recall(one, TEXTS) is not None


def test_rows_that_changed_places_are_seen():
    one = tiny.subject("bert")
    ml.explain(one, TEXTS, "gradient")
    words = one.points[0].module.weight.data
    words[[7, 9]] = words[[9, 7]]
    assert recall(one, TEXTS) is None


def test_texts_that_are_cut_otherwise_are_encoded_again():
    one = tiny.subject("bert")
    out = ml.explain(one, TEXTS, "gradient")
    shorter_texts(one)
    assert recall(one, TEXTS) is None
    assert max(proof.tokens for proof in ml.verify(one, out)) == 2  # beside [CLS] and [SEP]


def test_with_a_hook_nothing_is_remembered():
    """What it does may depend on anything."""
    one, state = tiny.subject("bert"), {"sign": 1}
    layer = one.module.bert.encoder.layer[0].output
    handle = layer.register_forward_hook(lambda _, args, out: state["sign"] * out)
    out = ml.explain(one, TEXTS, "gradient")
    state["sign"] = -1
    assert alike(ml.verify(one, out), ml.verify(fresh(one), out))
    handle.remove()
    ml.explain(one, TEXTS, "gradient")
    assert recall(one, TEXTS) is not None


def test_in_another_number_format_it_is_run_again():
    one = tiny.subject("bert")
    with torch.autocast("cpu", torch.bfloat16):
        ml.explain(one, TEXTS, "random")
        assert recall(one, TEXTS) is not None
    assert recall(one, TEXTS) is None


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_packed_weights_cannot_be_looked_into():
    one = tiny.subject("bert")
    torch.ao.quantization.quantize_dynamic(one.module, {torch.nn.Linear}, inplace=True)
    out = ml.explain(one, TEXTS, "random")
    weight, bias = one.module.classifier._weight_bias()
    one.module.classifier.set_weight_bias(weight, bias + torch.tensor([0.0, 9.0, 0.0]))
    assert alike(ml.verify(one, out), ml.verify(fresh(one), out))
    assert recall(one, TEXTS) is None


def test_a_sparse_tensor_is_no_obstacle():
    one = tiny.subject("bert")
    one.module.register_buffer("graph", torch.eye(4).to_sparse())
    assert len(ml.explain(one, TEXTS, "gradient")) == len(TEXTS)
    assert recall(one, TEXTS) is None


def test_another_task_reads_the_output_again():
    one = tiny.subject("bert")
    ml.explain(one, TEXTS, "gradient")
    exchange_task(one)
    assert recall(one, TEXTS) is None


def test_attributions_that_were_changed_are_verified_as_they_are(tmp_path):
    one = tiny.subject("bert")
    out = ml.explain(one, TEXTS, "gradient")
    ml.save(out, tmp_path / "x.json")
    changed = [replace(a, scores=-a.scores) for a in out[::-1]]
    for given in (changed, out[1:3], [out[2], out[0], out[2]], ml.load(tmp_path / "x.json")):
        assert recall(one, [a.text for a in given]) is not None
        assert alike(ml.verify(one, given), ml.verify(fresh(one), given))
    assert not alike(ml.verify(one, changed), ml.verify(one, out[::-1]))


def test_what_another_model_said_is_not_used():
    one, other = tiny.subject("bert"), ml.Subject(tiny.model("bert", seed=3), tiny.wordpiece())
    out = ml.explain(other, TEXTS, "gradient")
    assert recall(one, TEXTS) is None
    assert alike(ml.verify(one, out), ml.verify(fresh(one), out))
    one_token = {"tokens": ("dull",), "offsets": ((12, 16),), "special": (False,), "segments": (0,)}
    made_up = replace(out[0], text="the plot is dull", scores=np.ones((1, 1)), **one_token)
    assert alike(ml.verify(other, [made_up]), ml.verify(fresh(other), [made_up]))


def test_a_continuation_belongs_to_its_explanation_alone():
    one = tiny.subject("gpt2", "causal")
    for target in (" Paris is", [" Paris is"] * len(TEXTS)):
        ml.explain(one, TEXTS, "gradient", target=target)
        assert recall(one, TEXTS) is None
    ml.explain(one, TEXTS, "gradient")
    assert recall(one, TEXTS) is not None
    assert recall(one, TEXTS, [" Paris is"] * len(TEXTS)) is None


def test_inputs_of_another_form_are_not_kept(monkeypatch):
    monkeypatch.setattr(explaining, "TOKENISED", 1)
    one = tiny.subject("t5", "seq2seq")
    texts = [(text, written) for text, written in zip(TEXTS, ["", "Paris is", "the", ""], strict=True)]
    assert len(ml.explain(one, texts, "gradient")) == 4
    assert recall(one, texts) is None
    one = tiny.subject("gpt2", "causal")
    assert len(ml.explain(one, TEXTS, "gradient", target=[" Paris", " a b c", None, " Paris is"])) == 4
    assert recall(one, TEXTS) is None


def test_large_outputs_are_not_kept(monkeypatch):
    one = tiny.subject("bert")
    monkeypatch.setattr(known, "MOST_NUMBERS", 3 * len(TEXTS) - 1)
    ml.explain(one, TEXTS, "gradient", batch_size=1)
    assert recall(one, TEXTS) is None
    monkeypatch.setattr(known, "MOST_NUMBERS", 3 * len(TEXTS))
    ml.explain(one, TEXTS, "gradient", batch_size=1)
    assert recall(one, TEXTS) is not None
    assert ml.explain(one, [], "gradient") == []
    assert recall(one, TEXTS) is None


def test_many_texts_are_not_kept_if_padding_makes_them_large(monkeypatch):
    one, short = tiny.subject("bert"), TEXTS[3:] * 9
    tokens = max(map(len, one.tokenizer(TEXTS)["input_ids"]))
    monkeypatch.setattr(known, "MOST_INPUTS", 10 * 4 * tokens - 1)  # ids, mask, types, and which are valid
    ml.explain(one, short, "gradient", batch_size=1)
    assert recall(one, short) is not None
    ml.explain(one, [TEXTS[1], *short], "gradient", batch_size=1)
    assert recall(one, short) is None


def test_what_is_remembered_in_inference_mode_can_be_used_outside():
    one = tiny.subject("bert")
    with torch.inference_mode():
        out = ml.explain(one, TEXTS, "gradient")
    found = recall(one, TEXTS)
    assert not found.output.is_inference() and not found.batch.valid.is_inference()
    assert alike(ml.verify(one, out), ml.verify(fresh(one), out))


def test_a_model_is_freed_when_its_subject_is():
    one = tiny.subject("bert")
    out, gone = ml.explain(one, TEXTS, "gradient"), weakref.ref(one.module)
    ml.verify(one, out)
    del one
    gc.collect()
    assert gone() is None

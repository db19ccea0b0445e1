"""Decoded Grad-CAM against Algorithm 1 written out, and its limiting cases."""

from __future__ import annotations

import pytest
import torch
from tests.methods.tiny_models import TEXTS, tiny_config
from torch import nn

import tiny
from masklens import explain
from masklens.errors import MethodError
from masklens.methods import decoded
from masklens.methods.decoded import decoded_gradcam
from masklens.methods.gradient import gradcam, gradient, integrated_gradients
from masklens.model.lm_head import find_head
from masklens.model.subject import Subject

REPEATED = ["funny funny movie and funny film", "it is dull", "not a fast movie"]


@pytest.fixture(scope="module")
def masked_lm():
    from transformers import BertForMaskedLM

    torch.manual_seed(1)
    return BertForMaskedLM(tiny_config()).double().eval()


def algorithm_1(subject, text, site, head, tau):
    """The paper's pseudocode with line 9 indexed by i, one text, one entry of D at a time."""
    batch = subject.encode([text])
    state = subject.states(batch, [site]).states[site].requires_grad_()
    y = subject.run(batch, replace={site: lambda _: state}).output[0].max()
    y.backward()
    alpha = torch.relu((state.grad[0] * state.detach()[0]).sum(-1))
    probabilities = head(state.detach()[0]).softmax(-1)  # (n, V)
    tokens = batch.inputs["input_ids"][0].tolist()
    unique = sorted(set(tokens))
    columns = probabilities[:, unique].T  # D: (T, n)
    s = torch.zeros(len(unique)).double()
    for i in range(len(unique)):
        for j in range(len(tokens)):
            rank = (columns[:, j] > columns[i, j]).sum()
            if tau is None or rank < tau:
                s[i] += columns[i, j] * alpha[j]
    return torch.stack([s[unique.index(t)] for t in tokens])


@pytest.mark.parametrize("tau", [None, 1, 2])
def test_all_layers_at_once_are_algorithm_1_layer_by_layer(ask, subject, masked_lm, tau):
    sites = (0, 1, 2, 3, 4)
    scores = decoded_gradcam(ask(sites, texts=REPEATED), lm_head=masked_lm, tau=tau)
    for row, text in enumerate(REPEATED):
        for s, site in enumerate(sites):
            expected = algorithm_1(subject, text, site, masked_lm.cls, tau)
            found = scores[row, s, : len(expected)].double()
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_a_token_at_several_places_has_one_score(ask, masked_lm):
    scores = decoded_gradcam(ask((3,), texts=REPEATED), lm_head=masked_lm)[0, 0]
    assert scores[1] == scores[2] == scores[5] != scores[3]


class OneHotHead(nn.Module):
    """The LM head as the identity: every position decodes to the token that stands there."""

    def __init__(self, subject, batch, site):
        super().__init__()
        states = subject.states(batch, [site]).states[site][batch.valid]
        self.states, self.ids = states, batch.inputs["input_ids"][batch.valid]

    def forward(self, states):
        nearest = torch.cdist(states, self.states).argmin(1)
        return nn.functional.one_hot(self.ids[nearest], 20).double() * 1e4


def test_with_an_identity_head_it_is_gradcam_summed_over_equal_tokens(ask, subject):
    """Limiting case: decoding does nothing where every state decodes to its own token."""
    request = ask((2,))
    scores = decoded_gradcam(request, lm_head=OneHotHead(subject, request.batch, 2))[:, 0]
    plain = gradcam(ask((2,)))[:, 0]
    for row in range(len(TEXTS)):
        ids = request.batch.inputs["input_ids"][row][request.batch.valid[row]]
        own = plain[row, : len(ids)]
        expected = torch.stack([own[ids == token].sum() for token in ids])
        torch.testing.assert_close(scores[row, : len(ids)].double(), expected)


class FlatHead(nn.Module):
    """Says nothing: every token of the vocabulary is as probable as any other. Counts what it decodes."""

    rows = 0

    def forward(self, states):
        self.rows += len(states)
        return torch.zeros(len(states), 20)


@pytest.mark.parametrize(
    ("score", "layer_score"),
    [
        ("gradcam", gradcam),
        ("gradient_norm", gradient),
        ("integrated_gradients", lambda request: integrated_gradients(request, n_steps=7)),
    ],
)
def test_any_layer_score_can_be_decoded(ask, score, layer_score):
    scores = decoded_gradcam(ask((1, 3)), lm_head=FlatHead(), score=score, n_steps=7)
    request = ask((1, 3))
    alpha = layer_score(request) * request.batch.valid[:, None]
    expected = (alpha.sum(-1, keepdim=True) / 20).expand_as(alpha).float()
    where = request.batch.valid[:, None].expand_as(scores)
    torch.testing.assert_close(scores[where], expected[where])


def test_only_positions_with_a_score_are_decoded_a_bounded_number_at_a_time(ask, monkeypatch):
    head = FlatHead()
    whole = decoded_gradcam(ask((1, 2, 3)), lm_head=head)
    request = ask((1, 2, 3))
    scored = int(((gradcam(request) > 0) & request.batch.valid[:, None]).sum())
    assert head.rows == scored + 1  # one first, to see how large the vocabulary is
    assert head.rows < 3 * int(request.batch.valid.sum())
    monkeypatch.setitem(decoded.LOGITS_AT_ONCE, "cpu", 60)
    torch.testing.assert_close(decoded_gradcam(ask((1, 2, 3)), lm_head=FlatHead()), whole)


def test_the_head_is_what_the_model_computes_after_its_last_block(subject, masked_lm):
    states = torch.randn(5, 16, dtype=torch.float64)
    torch.testing.assert_close(find_head(subject, masked_lm)(states), masked_lm.cls(states))


def test_the_head_of_a_causal_model_has_its_final_norm(tokenizer):
    from transformers import GPT2Config, GPT2ForSequenceClassification, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 20, "n_positions": 32, "pad_token_id": 0}
    model = GPT2LMHeadModel(GPT2Config(**sizes)).eval()
    subject = Subject(GPT2ForSequenceClassification(GPT2Config(num_labels=2, **sizes)).eval(), tokenizer)
    states = torch.randn(5, 16)
    expected = model.lm_head(model.transformer.ln_f(states))
    torch.testing.assert_close(find_head(subject, model)(states), expected)


def test_a_path_and_a_model_give_the_same(ask, subject, masked_lm, tokenizer, tmp_path):
    masked_lm.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    by_path = decoded_gradcam(ask((2,)), lm_head=str(tmp_path))
    torch.testing.assert_close(by_path, decoded_gradcam(ask((2,)), lm_head=masked_lm), rtol=1e-4, atol=1e-6)


def test_the_head_is_found_in_a_checkpoint_that_has_one(masked_lm, tokenizer, tmp_path):
    from transformers import BertForSequenceClassification

    masked_lm.save_pretrained(tmp_path)
    model = BertForSequenceClassification.from_pretrained(tmp_path).double()
    states = torch.randn(3, 16, dtype=torch.float64)
    head = find_head(Subject(model, tokenizer), None)
    torch.testing.assert_close(head(states).double(), masked_lm.cls(states), rtol=1e-4, atol=1e-4)


def test_a_missing_head_is_an_error_with_the_remedy(ask, subject, tokenizer, tmp_path):
    with pytest.raises(MethodError, match="give lm_head="):
        decoded_gradcam(ask((2,)))
    subject.module.save_pretrained(tmp_path)
    with pytest.raises(MethodError, match="no language model with its head.*give lm_head="):
        decoded_gradcam(ask((2,)), lm_head=tmp_path)
    with pytest.raises(MethodError, match="give lm_head="):
        decoded_gradcam(ask((2,)), lm_head=tmp_path / "nothing")


@pytest.mark.parametrize(
    ("change", "message"), [({"hidden_size": 8}, "width 8"), ({"vocab_size": 9}, "size 9")]
)
def test_a_head_of_another_width_or_vocabulary_is_refused(ask, change, message):
    from transformers import BertForMaskedLM

    config = tiny_config()
    config.update(change)
    with pytest.raises(MethodError, match=message):
        decoded_gradcam(ask((2,)), lm_head=BertForMaskedLM(config))


def test_a_head_with_other_tokens_of_the_same_number_is_refused(ask, masked_lm, tokenizer, tmp_path):
    masked_lm.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    vocabulary = (tmp_path / "tokenizer.json").read_text().replace('"funny"', '"sunny"')
    (tmp_path / "tokenizer.json").write_text(vocabulary)
    with pytest.raises(MethodError, match="another vocabulary"):
        decoded_gradcam(ask((2,)), lm_head=tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tau": 0}, "tau"),
        ({"score": "saliency"}, "'gradcam', 'grad_x_input'"),
        ({"lm_head": 3}, "lm_head is a int"),
        ({"lm_head": nn.Linear(16, 5).double()}, "vocabulary"),
    ],
)
def test_wrong_options_are_explained(ask, options, message):
    with pytest.raises(MethodError, match=message):
        decoded_gradcam(ask((2,)), **{"lm_head": FlatHead(), **options})


def test_the_language_model_is_left_as_it_was(ask, masked_lm):
    masked_lm.train()
    hooks = sum(len(m._forward_hooks) for m in masked_lm.modules())
    decoded_gradcam(ask((2,)), lm_head=masked_lm)
    assert all(m.training for m in masked_lm.modules())
    assert hooks == sum(len(m._forward_hooks) for m in masked_lm.modules())
    masked_lm.eval()


def decoded_slowly(subject, text, site, tokens):
    """Scores on a GPT-2, a position at a time: its head names the token after a position."""
    model, batch = subject.module, subject.encode([text])
    state = subject.states(batch, [site]).states[site].requires_grad_()
    output = subject.run(batch, replace={site: lambda _: state}).output
    subject.task.score(output, subject.task.resolve(None, output, batch)).sum().backward()
    alpha = torch.relu((state.grad[0] * state.detach()[0]).sum(-1))
    with torch.no_grad():
        named = model.lm_head(model.transformer.ln_f(state[0])).softmax(-1)  # row i: the token after i
    ids = batch.inputs["input_ids"][0].tolist()
    total = dict.fromkeys(ids, 0.0)
    for i in range(len(ids)):
        for token in total:
            if tokens == "own" and i == 0:
                share = float(token == ids[0])
            else:
                share = float(named[i if tokens == "next" else i - 1, token])
            total[token] += share * float(alpha[i])
    return torch.tensor([total[token] for token in ids])


@pytest.mark.parametrize("site", [1, 3])
@pytest.mark.parametrize("tokens", ["own", "next"])
def test_which_tokens_get_a_score_on_a_decoder(tokens, site):
    subject, texts = tiny.subject("gpt2", "causal"), tiny.TEXTS
    made = explain(subject, texts, method="decoded_gradcam", sites=[site], tokens=tokens)
    for text, one in zip(texts, made, strict=True):
        expected = decoded_slowly(subject, text, site, tokens)
        torch.testing.assert_close(torch.tensor(one.scores[0]), expected, rtol=1e-3, atol=1e-5)


def test_a_masked_head_has_no_next_token_and_other_words_are_refused(ask, masked_lm):
    with pytest.raises(MethodError, match="needs the head of a causal language model"):
        decoded_gradcam(ask((3,)), lm_head=masked_lm, tokens="next")
    with pytest.raises(MethodError, match="tokens='both' is not known; give 'own' or 'next'"):
        decoded_gradcam(ask((3,)), lm_head=masked_lm, tokens="both")

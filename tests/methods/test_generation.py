"""A whole answer explained at once is the same as each of its tokens explained alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests import tiny

import masklens as ml
from masklens.errors import MasklensError, MethodError, ModelError, TargetError, TextError
from masklens.methods.generation import written
from masklens.methods.perturbation import covering
from masklens.methods.registry import Request, find
from masklens.model.batch import Batch
from masklens.tasks.lm import Continuation

PROMPT = "the plot is dull . and the acting is"
FAMILIES = ("llama", "gpt2")
QUICK = {
    "integrated_gradients": {"n_steps": 4},
    "gradient": {},
    "grad_x_input": {},
    "gradcam": {},
    "occlusion": {},
}


@pytest.fixture(scope="module", params=FAMILIES)
def subject(request):
    return tiny.subject(request.param, "causal")


def alone(subject, made, step, method, options, pad=0, **more):
    """The scores of one step from a request of its own, with padding on the right."""
    ids = torch.tensor([[*made.ids[: made.places[step]], *[0] * pad]])
    valid = torch.arange(ids.shape[1])[None] < made.places[step]
    plain = [made.special[u] for u in made.units[: made.places[step]]] + [True] * pad
    batch = Batch(
        inputs={"input_ids": ids, "attention_mask": valid.long()},
        valid=valid,
        special=torch.tensor([plain]),
        segments=torch.zeros_like(ids),
        tokens=(tuple(map(str, made.ids[: made.places[step]])),),
        offsets=(((0, 0),) * made.places[step],),
        texts=("",),
        truncated=(False,),
    )
    wanted = [Continuation([], list(made.targets[step]))]
    request = Request(subject, subject.task.prepare(batch, wanted), made.sites, wanted, **more)
    return find(method).function(request, **options)[0][:, : made.places[step]].detach().numpy()


@pytest.mark.parametrize("method", QUICK)
def test_all_steps_at_once_are_each_step_alone(subject, method):
    made = ml.explain_generation(
        subject, PROMPT, method, max_new_tokens=6, sites="all", method_options=QUICK[method]
    )
    assert made.scores.shape == (len(made.steps), len(subject.sites), len(made.tokens))
    for i, place in enumerate(made.places):
        one = alone(subject, made, i, method, QUICK[method], pad=i % 3)
        np.testing.assert_allclose(made.scores[i, :, :place], one, atol=1e-4)
        assert (made.scores[i, :, place:] == 0).all() and np.abs(one).max() > 0


def test_gradient_and_occlusion_without_any_of_masklens(subject):
    """The same from the model's own inputs_embeds."""
    made = ml.explain_generation(subject, PROMPT, "grad_x_input", max_new_tokens=4)
    fallen = ml.explain_generation(subject, PROMPT, "occlusion", max_new_tokens=4, baselines="zero")
    embed = subject.module.get_input_embeddings()
    for i, place in enumerate(made.places):
        states = embed(torch.tensor([made.ids[:place]])).detach().requires_grad_()
        value = subject.module(inputs_embeds=states).logits[0, -1].log_softmax(-1)[made.ids[place]]
        (gradient,) = torch.autograd.grad(value, states)
        np.testing.assert_allclose(
            made.scores[i, 0, :place], (gradient * states).sum(-1)[0].detach(), atol=1e-4
        )
        with torch.no_grad():
            for k in range(place):
                without = states.clone()
                without[0, k] = 0
                drop = (
                    value
                    - subject.module(inputs_embeds=without).logits[0, -1].log_softmax(-1)[made.ids[place]]
                )
                expected = 0 if made.special[k] else float(drop)
                assert fallen.scores[i, 0, k] == pytest.approx(expected, abs=1e-4)


def test_the_answer_is_the_models_own_greedy_one(subject):
    made = ml.explain_generation(subject, PROMPT, "grad_x_input", max_new_tokens=5)
    ids = list(made.ids[: made.places[0]])
    for step, place in enumerate(made.places):
        with torch.no_grad():
            chances = subject.module(torch.tensor([ids])).logits[0, -1].softmax(-1)
        assert int(chances.argmax()) == made.ids[place]
        assert made.probabilities[step] == pytest.approx(float(chances.max()), abs=1e-4)
        assert made.runners_up[step][0].probability == pytest.approx(
            float(chances.topk(2).values[1]), abs=1e-4
        )
        ids.append(made.ids[place])
    assert made.steps == tuple(subject.tokenizer.convert_ids_to_tokens(made.ids[made.places[0] :]))
    assert made.prompt == PROMPT and made.tokens[-len(made.steps) :] == made.steps


def test_sampling_follows_the_seed(subject):
    answers = {
        ml.explain_generation(
            subject, PROMPT, "grad_x_input", max_new_tokens=8, do_sample=True, seed=seed
        ).ids
        for seed in (1, 1, 2)
    }
    assert len(answers) == 2


@pytest.mark.parametrize("method", ["lime", "shapley", "occlusion"])
def test_units_are_taken_away_whole(subject, method):
    """A method asked about two units only ever hides one or both of them."""
    seen = []
    original = type(subject).run

    def watched(self, batch, replace=None, *args, **more):
        if replace:
            seen.append((next(iter(replace.values())) == 0).all(-1))
        return original(self, batch, replace, *args, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(subject), "run", watched)
        made = ml.explain_generation(
            subject, PROMPT, method, continuation=" the plot", units="sentences", baselines="zero"
        )
    assert made.tokens[:2] == ("the plot is dull .", "and the acting is")
    hidden = torch.cat([rows for rows in seen])  # (views, tokens)
    units = torch.tensor(made.units[: hidden.shape[1]])
    assert hidden.any()
    for unit in range(2):
        assert (hidden[:, units == unit].all(1) == hidden[:, units == unit].any(1)).all()


def test_occlusion_of_a_sentence_by_hand(subject):
    made = ml.explain_generation(
        subject, PROMPT, "occlusion", continuation=" the plot", units="sentences", baselines="zero"
    )
    embed = subject.module.get_input_embeddings()
    place = made.places[0]
    with torch.no_grad():
        states = embed(torch.tensor([made.ids[:place]]))
        whole = subject.module(inputs_embeds=states).logits[0, -1].log_softmax(-1)[made.ids[place]]
        states[0, torch.tensor(made.units[:place]) == 1] = 0
        drop = whole - subject.module(inputs_embeds=states).logits[0, -1].log_softmax(-1)[made.ids[place]]
    assert made.scores[0, 0, 1] == pytest.approx(float(drop), abs=1e-4)


def test_gradient_scores_of_units_add_up(subject):
    tokens = ml.explain_generation(subject, PROMPT, "grad_x_input", max_new_tokens=3, sites="all")
    for units in ("words", "sentences", ["plot is", "acting"], [(0, 8)]):
        made = ml.explain_generation(
            subject, PROMPT, "grad_x_input", max_new_tokens=3, sites="all", units=units
        )
        assert len(made.tokens) < len(tokens.tokens)
        for unit in range(len(made.tokens)):
            own = np.array(made.units) == unit
            np.testing.assert_allclose(
                made.scores[:, :, unit], tokens.scores[:, :, own].sum(2), rtol=1e-4, atol=1e-5
            )


def test_a_norm_of_units_has_the_methods_own_rule(subject):
    made = ml.explain_generation(subject, PROMPT, "attention", max_new_tokens=2, units="words")
    assert made.merge == find("attention").merge


def test_a_span_of_the_answer_is_the_explanation_of_a_continuation(subject):
    made = ml.explain_generation(
        subject, PROMPT, "grad_x_input", continuation=" the red car", target=slice(0, 3), sites="all"
    )
    ids = subject.tokenizer(" the red car", add_special_tokens=False)["input_ids"]
    wanted = [Continuation([], ids[:3])]
    assert made.targets == (tuple(ids[:3]),) and made.places == (len(made.ids) - len(ids),)
    one = alone(subject, made, 0, "grad_x_input", {})
    np.testing.assert_allclose(made.scores[0, :, : made.places[0]], one, atol=1e-5)
    assert wanted


def test_a_rather_than_b(subject):
    made = ml.explain_generation(
        subject, PROMPT, "grad_x_input", continuation=" the red car", target=("red", "dull")
    )
    batch = [subject.tokenizer(word, add_special_tokens=False)["input_ids"] for word in (" red", " dull")]
    red, dull = (ids[-1] for ids in batch)
    ids = list(made.ids[: made.places[0]])
    assert made.targets == ((red,),) and "rather than" in made.steps[0]
    states = subject.module.get_input_embeddings()(torch.tensor([ids])).detach().requires_grad_()
    logits = subject.module(inputs_embeds=states).logits[0, -1]
    (gradient,) = torch.autograd.grad(logits[red] - logits[dull], states)
    expected = (gradient * states).sum(-1)[0].detach()
    np.testing.assert_allclose(made.scores[0, 0, : len(ids)], expected, atol=1e-4)


@pytest.mark.parametrize(
    ("more", "error", "said"),
    [
        ({"units": "pages"}, TextError, "no units"),
        ({"units": "turns"}, TextError, "no turns"),
        ({"units": ["nothing"]}, TextError, "nowhere"),
        ({"max_new_tokens": 0}, MethodError, "at least 1"),
        ({"max_new_tokens": 1000}, TextError, "lower max_new_tokens"),
        ({"continuation": ""}, TargetError, "no tokens"),
        ({"continuation": "a", "do_sample": True}, MethodError, "do_sample"),
        ({"bananas": 3}, MethodError, "generate, called with bananas, says: "),
        ({"method_options": {"bananas": 3}}, MethodError, "bananas"),
        ({"method": "occlusion", "units": "words", "method_options": {"window": 2}}, MethodError, "window"),
    ],
)
def test_mistakes_are_said(subject, more, error, said):
    with pytest.raises(error, match=said):
        ml.explain_generation(subject, PROMPT, **({"max_new_tokens": 2} | more))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"units": None}, "no units None"),
        ({"units": ["dull", "acting", "is"]}, "'is' is more than once in the prompt"),
        ({"units": [(0, len(PROMPT) + 1)]}, "not in the prompt, which has 36 characters"),
        ({"units": []}, r"no units \[\]"),
        ({"units": ["the plot is", "is dull"]}, "'the plot is' and 'is dull' overlap"),
        ({"target": slice(0.0, 2)}, "no slice of tokens; give whole numbers"),
        ({"max_length": 30}, "max_length is not taken; give max_new_tokens"),
        ({"max_new_tokens": None}, "max_new_tokens is None"),
        ({"max_new_tokens": "5"}, "max_new_tokens is '5'"),
        ({"max_new_tokens": 1.5}, "max_new_tokens is 1.5"),
        ({"max_new_tokens": True}, "max_new_tokens is True"),
        ({"max_new_tokens": 1000}, "lower max_new_tokens"),
        ({"seed": None}, "seed is None"),
        ({"continuation": "ab\ud800c"}, "not valid Unicode"),
        ({"num_return_sequences": 3, "do_sample": True}, "num_return_sequences is 3; one answer"),
        ({"generation_config": object()}, "other options by name"),
        ({"norm": "l1"}, "norm is an option of gradient; give method_options={'norm'"),
        ({"norm": "l1", "continuation": "a"}, "method_options"),
        ({"method": "attention", "sites": [0]}, "attention has no site 0"),
        ({"target": 3}, "3 is not a target"),
    ],
)
def test_mistakes_are_said_before_the_model_works(subject, monkeypatch, more, said):
    monkeypatch.setattr(type(subject.module), "forward", lambda *a, **k: pytest.fail("the model is run"))
    with pytest.raises(MasklensError, match=said):
        ml.explain_generation(subject, PROMPT, **more)


def test_what_generate_says_where_no_option_was_given(subject, monkeypatch):
    def refuse(*_, **__):
        raise ValueError("the cache has no layers")

    monkeypatch.setattr(type(subject.module), "generate", refuse)
    with pytest.raises(ModelError, match=r"cannot generate: the cache has no layers; .* continuation="):
        ml.explain_generation(subject, PROMPT, max_new_tokens=2)
    with pytest.raises(MethodError, match="called with top_k, says: the cache has no layers"):
        ml.explain_generation(subject, PROMPT, max_new_tokens=2, top_k=5)


CHAT = (
    "{% if messages[0].role != 'system' %}{{ 'system you are dull . ' }}{% endif %}"
    "{% for m in messages %}{{ m.role + ' ' + m.content + ' . ' }}{% endfor %}{{ 'assistant' }}"
)


@pytest.mark.parametrize("method", ["gradient", "occlusion"])
@pytest.mark.parametrize(
    ("span", "said"),
    [
        ("you are dull .", "'you are dull .' is special tokens or words of the chat template"),
        ("user", "write a system prompt as a message"),
        ((0, 6), "never removed"),
        ("lo", "'lo' has no token of its own"),
    ],
)
def test_a_span_that_could_not_be_removed(method, span, said, monkeypatch):
    subject = tiny.subject("gpt2", "causal")
    monkeypatch.setattr(subject.tokenizer, "chat_template", CHAT)
    messages = [{"role": "user", "content": "who lives in the plot ?"}]
    monkeypatch.setattr(type(subject.module), "forward", lambda *a, **k: pytest.fail("the model is run"))
    with pytest.raises(TextError, match=said):
        ml.explain_generation(subject, messages, method, units=["who lives", span])


def test_a_span_that_begins_in_the_template_has_the_words_of_the_user(monkeypatch):
    subject = tiny.subject("gpt2", "causal")
    monkeypatch.setattr(subject.tokenizer, "chat_template", CHAT)
    messages = [{"role": "system", "content": "the plot is dull"}, {"role": "user", "content": "who lives"}]
    spans = ["the plot is dull", "user who"]
    made = ml.explain_generation(subject, messages, "occlusion", units=spans, continuation=" the")
    units = zip(made.tokens, made.special, strict=True)
    assert [token for token, special in units if not special] == ["the plot is dull", "who", "lives", "the"]


def test_spans_are_sought_in_the_prompt_alone(subject):
    made = ml.explain_generation(
        subject, PROMPT, "grad_x_input", units=["the plot is dull"], continuation=" the plot is dull"
    )
    assert made.tokens[:2] == ("the plot is dull", ". and the acting is") and made.kind == "spans"


def test_all_sites_of_attention_are_the_blocks(subject):
    made = ml.explain_generation(subject, PROMPT, "attention", max_new_tokens=1, sites="all")
    assert made.sites == tuple(subject.blocks)


def test_the_record_says_how_the_answer_was_made(subject, tmp_path):
    options = {"do_sample": True, "temperature": 0.5, "bad_words_ids": [[5]]}
    made = ml.explain_generation(subject, PROMPT, max_new_tokens=np.int64(2), **options)
    said = {"do_sample": True, "temperature": 0.5, "bad_words_ids": [[5]], "max_new_tokens": 2, "norm": "l2"}
    assert said.items() <= made.settings.items()
    assert ml.load(ml.save(made, tmp_path / "a.json")) == [made]
    greedy = ml.explain_generation(subject, PROMPT, max_new_tokens=1)
    assert greedy.settings["do_sample"] is False and greedy.settings["max_new_tokens"] == 1
    assert "max_new_tokens" not in ml.explain_generation(subject, PROMPT, continuation=" a").settings


def test_the_record_has_what_the_models_own_config_says_of_answers():
    subject = tiny.subject("gpt2", "causal")
    config = subject.module.generation_config
    config.repetition_penalty, config.temperature = 50.0, 0.3
    greedy = ml.explain_generation(subject, PROMPT, max_new_tokens=1).settings
    assert greedy["repetition_penalty"] == 50 and "temperature" not in greedy
    sampled = ml.explain_generation(subject, PROMPT, max_new_tokens=1, do_sample=True).settings
    assert sampled["temperature"] == 0.3


def test_a_token_inside_a_character_has_no_byte_signs():
    subject = tiny.subject("gpt2", "causal")
    made = ml.explain_generation(subject, PROMPT, continuation=" 😀 ש")
    first = made.places[0]
    assert "".join(piece for piece in made.pieces if piece != "\ufffd") == " 😀 ש"
    cut = [i for i, (start, end) in enumerate(made.offsets) if i >= first and start == end]
    assert cut and all(
        made.pieces[i - first] == made.steps[i - first] == made.tokens[i] == "\ufffd" for i in cut
    )


@pytest.mark.parametrize("answer", [" 😀 ש", " a\u0123", " café"])
def test_the_last_token_of_a_split_character_is_named_by_the_character(answer):
    """As its piece is; a token that is whole characters keeps the tokenizer's name."""
    subject = tiny.subject("gpt2", "causal")
    made = ml.explain_generation(subject, PROMPT, continuation=answer)
    ids, names = made.ids[made.places[0] :], subject.tokenizer.convert_ids_to_tokens
    parts = ["\ufffd" in subject.tokenizer.decode([i]) for i in ids]
    own = zip(parts, made.pieces, names(list(ids)), strict=True)
    assert made.steps == tuple(piece if part else name for part, piece, name in own)
    assert any(parts) and answer[-1] in made.steps[-1]


def test_other_models_are_refused():
    with pytest.raises(ModelError, match="causal"):
        ml.explain_generation(tiny.subject("bert"), "a")


def test_a_model_that_looks_ahead_shares_no_runs():
    """BERT with a causal head but without a causal mask: each step is then run by itself."""
    import transformers as hf

    torch.manual_seed(0)
    settings = tiny.config("bert", "mlm", is_decoder=False)
    model = hf.BertLMHeadModel(settings).eval()
    from masklens.tasks.lm import CausalLM

    tokenizer = tiny.wordpiece()
    subject = ml.Subject(model, tokenizer, task=CausalLM(tokenizer))
    made = ml.explain_generation(
        subject, "the plot is dull", "grad_x_input", continuation=" and the acting", sites="all"
    )
    for i, place in enumerate(made.places):
        one = alone(subject, made, i, "grad_x_input", {})
        np.testing.assert_allclose(made.scores[i, :, :place], one, atol=1e-4)
    assert made.logit_lens == made.settled == ()  # no one run has the states of all steps


@pytest.mark.parametrize("method", ["gradient", "occlusion", "attention"])
def test_what_each_layer_would_predict_for_each_step(method):
    """Against the final norm and the head by hand, for the beginning that each step has read."""
    subject = tiny.subject("llama", "causal")
    words = " the red car is dull"
    made = ml.explain_generation(subject, PROMPT, method, continuation=words)
    greedy = ml.explain_generation(subject, PROMPT, method, max_new_tokens=3)
    model, last = subject.module, max(subject.sites)
    assert made.logit_lens_sites == subject.sites  # whatever the method explains
    for one in (made, greedy):
        for i, place in enumerate(one.places):
            ids = torch.tensor([one.ids[:place]])
            with torch.no_grad():
                hidden = model(ids, output_hidden_states=True).hidden_states
                chances = [model.lm_head(model.model.norm(h[0, -1])).softmax(-1) for h in hidden[:-1]]
                chances.append(model.lm_head(hidden[-1][0, -1]).softmax(-1))  # normed already
            for site, expected in zip(range(1, last + 1), chances, strict=True):
                token, probability = one.logit_lens[i][site]
                assert token == subject.tokenizer.decode([int(expected.argmax())])
                assert probability == pytest.approx(float(expected.max()), abs=1e-5)
            right = [int(expected.argmax()) == one.ids[place] for expected in chances]
            since = one.settled[i]
            assert (since is None) is not right[-1]
            assert since is None or (all(right[max(since - 1, 0) :]) and (since < 2 or not right[since - 2]))
    assert None in made.settled and None not in greedy.settled


def test_the_padding_side_of_the_tokenizer_does_not_matter(subject):
    made = ml.explain_generation(subject, PROMPT, "grad_x_input", max_new_tokens=3)
    side = subject.tokenizer.padding_side
    try:
        subject.tokenizer.padding_side = "left"
        assert ml.explain_generation(subject, PROMPT, "grad_x_input", max_new_tokens=3) == made
    finally:
        subject.tokenizer.padding_side = side


def test_the_model_is_left_as_it_was(subject):
    before = {name: value.clone() for name, value in subject.module.state_dict().items()}
    learning = [p.requires_grad for p in subject.module.parameters()]
    ml.explain_generation(subject, PROMPT, "grad_x_input", max_new_tokens=2, sites="all")
    assert all(torch.equal(value, before[name]) for name, value in subject.module.state_dict().items())
    assert [p.requires_grad for p in subject.module.parameters()] == learning
    assert not any(m._forward_hooks for m in subject.module.modules())


def test_covering_serves_every_row_with_one_that_begins_alike():
    generator = torch.Generator().manual_seed(0)
    keep = torch.rand(60, 5, generator=generator) < 0.5
    lengths = torch.randint(1, 6, (60,), generator=generator)
    views, served = covering(lengths, keep)
    for row, length in enumerate(lengths.tolist()):
        assert torch.equal(keep[views[served[row]], :length], keep[row, :length])
        assert lengths[views[served[row]]] >= length
    assert len(views) <= 32 and len(set(views.tolist())) == len(views)


def test_one_run_a_token_for_all_steps(subject, monkeypatch):
    """Occlusion of an answer of 6 tokens needs no more runs than that of its last token."""
    rows = []
    original = type(subject).run

    def counted(self, batch, replace=None, **more):
        if max(self.sites) not in (replace or {}):  # the logit lens runs the head alone
            rows.append(len(batch))
        return original(self, batch, replace, **more)

    monkeypatch.setattr(type(subject), "run", counted)
    made = ml.explain_generation(subject, PROMPT, "occlusion", max_new_tokens=6)
    assert sum(rows) <= made.places[-1] + 6


def test_characters_of_answer_tokens():
    tokenizer = tiny.byte_bpe()
    ids = tokenizer(" the café 好 red", add_special_tokens=False)["input_ids"]
    text, spans = written(tokenizer, tokenizer("a")["input_ids"], ids)
    assert text == " the café 好 red"
    assert "".join(text[start:end] for start, end in spans) == text
    assert [text[a:b] for a, b in spans][-1] == " red"


def test_a_step_is_an_attribution(subject):
    made = ml.explain_generation(subject, PROMPT, "grad_x_input", max_new_tokens=4, sites="all")
    for i, one in enumerate(made.attributions()):
        assert one.text == made.text[: made.ends[i]] and len(one.tokens) == made.places[i]
        assert one.target == made.pieces[i] and one.prediction == one.target
        np.testing.assert_array_equal(one.scores, made.scores[i, :, : made.places[i]])
    words = made.step(0).words()
    assert words.tokens[:4] == ("the", "plot", "is", "dull")
    (proof,) = ml.verify(subject, [made.step(0)])
    assert 0 <= proof.share_removed <= 1


def test_verification_by_hand(subject):
    """A token that is removed becomes the fill token and is not attended to."""
    made = ml.explain_generation(subject, PROMPT, "grad_x_input", max_new_tokens=3, units="words")
    proofs = ml.verify_generation(subject, made, keep=0.5)
    for i, proof in enumerate(proofs):
        place = made.places[i]
        ids = torch.tensor([made.ids[:place]])
        gone = torch.tensor([unit in proof.removed for unit in made.units[:place]])
        filled = ids.masked_fill(gone, subject.tokenizer.mask_token_id or subject.tokenizer.unk_token_id)
        with torch.no_grad():
            whole = subject.module(ids).logits[0, -1]
            left = subject.module(filled, attention_mask=(~gone).long()[None]).logits[0, -1]
        assert proof.prediction_kept == bool(whole.argmax() == left.argmax())
        p, q = whole.log_softmax(-1), left.log_softmax(-1)
        assert proof.divergence == pytest.approx(float((p.exp() * (p - q)).sum()), abs=1e-3)
        kept = [unit for unit in range(made.seen(i)) if unit not in proof.removed]
        assert min(made.scores[i, 0, kept]) >= max(made.scores[i, 0, list(proof.removed)])


def test_nothing_changes_when_all_is_kept_and_random_scores_remove_other_units(subject):
    made = ml.explain_generation(subject, PROMPT, "grad_x_input", max_new_tokens=3)
    assert all(p.prediction_kept and p.divergence < 1e-5 for p in ml.verify_generation(subject, made, keep=1))
    drawn = replace(made, scores=np.random.default_rng(0).random(made.scores.shape))
    first, second = (ml.verify_generation(subject, one, keep=0.5) for one in (made, drawn))
    assert [p.share_removed for p in first] == [p.share_removed for p in second]
    assert [p.removed for p in first] != [p.removed for p in second]


def test_a_span_can_be_verified(subject):
    made = ml.explain_generation(
        subject, PROMPT, "grad_x_input", continuation=" the red car", target=slice(0, 3)
    )
    (proof,) = ml.verify_generation(subject, made, keep=1)
    assert proof.prediction_kept and proof.divergence < 1e-5


def test_a_lens_explains_an_answer_with_its_own_layers():
    """The options go through the method's own preparation, as in `explain`."""
    from masklens.methods.registry import METHODS

    subject, seen = tiny.subject("gpt2", "causal"), []

    class Lens:
        sites = (0, 2)

    def prepared(_, options):
        seen.append(options)
        return {"lens": Lens()}

    method = replace(
        METHODS["diffmask"],
        prepare=prepared,
        function=lambda request, *, lens=None: torch.rand(
            len(request.batch), len(request.sites), request.batch.shape[1]
        ),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(METHODS, "diffmask", method)
        made = ml.explain_generation(
            subject, PROMPT, "diffmask", max_new_tokens=2, method_options={"lens": "FOLDER"}
        )
    assert made.sites == (0, 2) and seen == [{"lens": "FOLDER"}]

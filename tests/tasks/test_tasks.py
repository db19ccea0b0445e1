"""Tasks: prediction, targets, score and divergence, each against a slow second way of computing it."""

import math

import pytest
import torch
import torch.nn.functional as F

import tiny
from masklens import Subject, explain
from masklens.errors import ModelError, TargetError, TextError
from masklens.model.families import label_names
from masklens.tasks.base import per_text
from masklens.tasks.classification import (
    BinaryClassification,
    Classification,
    MultiLabel,
    Regression,
    bernoulli_kl,
    categorical_kl,
    class_id,
)
from masklens.tasks.lm import MaskedLM


def slow_kl(p_logits, q_logits):
    p, q = F.softmax(p_logits.double(), -1), F.softmax(q_logits.double(), -1)
    return sum(a * math.log(a / b) for a, b in zip(p.tolist(), q.tolist(), strict=True) if a > 0)


def test_categorical_kl_is_the_sum_over_classes():
    p, q = torch.randn(4, 5), torch.randn(4, 5)
    assert torch.allclose(
        categorical_kl(p, q), torch.tensor([slow_kl(a, b) for a, b in zip(p, q, strict=True)])
    )
    assert torch.equal(categorical_kl(p, p), torch.zeros(4))


def test_categorical_kl_leaves_out_impossible_classes_also_in_its_gradient():
    p, q = torch.randn(2, 4), torch.randn(2, 4).requires_grad_()
    hidden = torch.tensor([False, False, True, True])
    value = categorical_kl(p.masked_fill(hidden, -torch.inf), q.masked_fill(hidden, -torch.inf))
    assert torch.allclose(value, categorical_kl(p[:, :2], q[:, :2]))
    (gradient,) = torch.autograd.grad(value.sum(), q)
    assert gradient.isfinite().all() and (gradient[:, 2:] == 0).all() and (gradient[:, :2] != 0).all()


def test_bernoulli_kl_is_that_of_two_classes():
    p, q = torch.randn(6), torch.randn(6)
    two = categorical_kl(torch.stack([p, 0 * p], -1), torch.stack([q, 0 * q], -1))
    assert torch.allclose(bernoulli_kl(p, q), two, atol=1e-6)
    assert bernoulli_kl(torch.tensor(80.0), torch.tensor(-80.0)).isfinite()


def test_targets_by_id_name_or_case(bert):
    labels = ["negative", "neutral", "positive"]
    assert [class_id(t, labels) for t in (2, "positive", "Positive", torch.tensor(2))] == [2] * 4
    for bad in (3, -1, "happy", True, ""):
        with pytest.raises(TargetError, match="no class .*0 'negative', 1 'neutral', 2 'positive'"):
            class_id(bad, labels)
    assert class_id("A", ["a", "A"]) == 1
    with pytest.raises(TargetError):
        class_id("B", ["b", "b"] + ["c"])  # two classes fit
    assert per_text("a", 2) == ["a", "a"] and per_text(["a", None], 2) == ["a", None]
    with pytest.raises(TargetError, match="3 targets for 2 texts"):
        per_text([1, 2, 3], 2)


def test_one_target_or_one_a_text(bert):
    named = explain(bert, tiny.TEXTS, method="gradient", target="neutral")
    assert [a.target for a in named] == ["neutral"] * 3
    each = explain(bert, tiny.TEXTS, method="gradient", target=[0, None, "neutral"])
    assert [a.target for a in each] == ["negative", each[1].prediction, "neutral"]
    assert (each[2].scores == named[2].scores).all() and (each[0].scores != named[0].scores).any()
    with pytest.raises(TargetError, match="no class 'happy'"):
        explain(bert, tiny.TEXTS, method="gradient", target="happy")


def task_and_output(family, head, texts=None, targets=None):
    subject = tiny.subject(family, head)
    batch = subject.encode(texts or tiny.texts(family, head), targets)
    return subject, batch, subject.states(batch).output


def test_classification():
    subject, batch, output = task_and_output("bert", "classification")
    task = subject.task
    assert type(task) is Classification and task.labels == ("negative", "neutral", "positive")
    target = task.resolve([1, None, 0], output, batch)
    assert target.tolist() == [1, int(output[1].argmax()), 0]
    assert torch.equal(task.score(output, target), torch.stack([output[i, t] for i, t in enumerate(target)]))
    assert task.describe(target, batch)[0] == "neutral"
    assert task.agrees(output, output + 1, batch).all() and not task.agrees(output, -output, batch).any()


def test_binary_classification():
    task, output = BinaryClassification(), torch.tensor([2.0, -1.0])
    target = task.resolve(None, output, [0, 0])
    assert task.describe(target, None) == ["yes", "no"]
    assert task.score(output, target).tolist() == [2.0, 1.0]


def test_no_label_is_as_probable_as_the_absence_of_all():
    task, output = MultiLabel("ab"), torch.tensor([[-1.0, -2.0], [-1.0, 2.0]])
    yes = output.sigmoid()
    expected = [(1 - yes[0, 0]) * (1 - yes[0, 1]), yes[1, 1]]
    found = task.log_probability(output, task.predict(output, batch=None)).exp()
    assert torch.allclose(found, torch.stack(expected))


def test_multi_label():
    subject, batch, output = task_and_output("bert", "multi_label")
    task = subject.task
    assert type(task) is MultiLabel
    assert torch.equal(task.predict(output, batch), (output.sigmoid() > 0.5).long())
    default = task.resolve(None, output, batch)
    assert torch.equal(default.argmax(1), output.argmax(1)) and (default.sum(1) == 1).all()
    target = task.resolve([("sad", 0), "long", None], output, batch)
    assert task.describe(target, batch)[:2] == ["funny, sad", "long"]
    assert torch.allclose(task.score(output, target)[:2], torch.stack([output[0, :2].sum(), output[1, 2]]))
    other = output + torch.randn_like(output)
    p, q = output.double().sigmoid(), other.double().sigmoid()
    slow = (p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()).sum(1)
    assert torch.allclose(task.divergence(output, other), slow.float(), atol=1e-5)
    assert task.describe(torch.zeros(1, 3), batch) == ["none"]


def test_regression():
    subject, batch, output = task_and_output("bert", "regression")
    task = subject.task
    assert type(task) is Regression and output.shape == (3, 1)
    target = task.resolve(None, output, batch)
    assert torch.equal(task.score(output, target), output[:, 0])
    assert task.describe(target, batch) == [f"{value:.4g}" for value in output[:, 0].tolist()]
    assert torch.allclose(task.divergence(output, output + 2), torch.full((3,), 2.0))
    assert (
        task.agrees(output, output + 0.4, batch).all() and not task.agrees(output, output + 0.6, batch).any()
    )
    many = Regression(["a", "b"])
    values = torch.tensor([[1.0, 5.0]])
    assert many.score(values, many.resolve("b", values, [0])).tolist() == [5.0]
    assert many.describe(many.resolve("b", values, [0]), None) == ["b 5"]


def test_the_average_output_has_the_average_distribution():
    torch.manual_seed(0)
    output = torch.randn(7, 3)
    mean = Classification("abc").average(output)
    assert torch.allclose(mean.softmax(-1)[0], output.softmax(-1).mean(0), atol=1e-6)
    assert torch.allclose(MultiLabel("abc").average(output).sigmoid()[0], output.sigmoid().mean(0), atol=1e-6)
    assert torch.allclose(Regression("abc").average(output)[0], output.mean(0), atol=1e-6)
    binary = BinaryClassification().average(output[:, 0])
    assert torch.allclose(binary.sigmoid(), output[:, 0].sigmoid().mean()[None], atol=1e-6)
    certain = BinaryClassification().average(torch.full((3,), 100.0))
    assert certain.isfinite().all() and certain.sigmoid() > 0.999
    subject, _, output = task_and_output("bert", "qa")
    assert subject.task.average(output) is None


def test_a_head_with_one_output_is_regression():
    model = tiny.model("bert", id2label={0: "score"}, problem_type=None)
    assert type(Subject(model, tiny.wordpiece()).task) is Regression


def test_label_names_where_the_config_has_holes():
    config = tiny.config("bert", "classification")
    config.id2label = {0: "no", 2: "yes", 1: 7}
    assert label_names(config) == ["no", "7", "yes"]


def test_pairs_have_the_tokenizers_types():
    subject = tiny.subject("bert", "pairs")
    batch = subject.encode([("a funny movie", "Paris"), ("Paris", "John")])
    types, segments = batch.inputs["token_type_ids"], batch.segments
    own = subject.tokenizer("a funny movie", "Paris")
    length = len(own["input_ids"])
    assert types[0, :length].tolist() == own["token_type_ids"] == segments[0, :length].tolist()
    assert "token_type_ids" not in tiny.subject("roberta", "pairs").encode([("a", "b")]).inputs
    out = subject.states(batch).output
    batch.inputs["token_type_ids"] = torch.zeros_like(types)
    assert not torch.allclose(subject.states(batch).output, out), "the types must reach the model"


def slow_best_span(start, end, allowed):
    spans = [(i, j) for i in allowed for j in allowed if i <= j < i + 30]
    return max(spans, key=lambda s: float(start[s[0]] + end[s[1]]))


def test_question_answering_spans():
    subject, batch, output = task_and_output("bert", "qa")
    task = subject.task
    assert output.shape == (2, 2, batch.shape[1])
    assert (output.isneginf() == ~batch.valid[:, None].expand_as(output)).all()
    spans = task.predict(output, batch)
    for i in range(2):
        allowed = [
            t
            for t in range(batch.shape[1])
            if batch.valid[i, t] and not batch.special[i, t] and batch.segments[i, t]
        ]
        assert tuple(spans[i].tolist()) == slow_best_span(*output[i], allowed)
    assert torch.allclose(
        task.score(output, spans),
        torch.stack([output[i, 0, s] + output[i, 1, e] for i, (s, e) in enumerate(spans)]),
    )
    other = output + torch.randn_like(output)
    n = int(batch.valid[1].sum())
    slow = sum(slow_kl(output[1, k, :n], other[1, k, :n]) for k in (0, 1))
    assert math.isclose(float(task.divergence(output, other)[1]), slow, rel_tol=1e-4)


def test_long_answers_are_not_given():
    subject = tiny.subject("bert", "qa", max_position_embeddings=128)
    batch = subject.encode([("who ?", "a " * 60)])
    output = torch.zeros(1, 2, batch.shape[1])
    output[0, 0, 6], output[0, 1, 60] = 9.0, 9.0
    start, end = subject.task.predict(output, batch)[0].tolist()
    assert end - start < 30
    output[0, 1, 35] = 8.0  # 30 tokens from 6 to 35
    assert subject.task.predict(output, batch)[0].tolist() == [6, 35]


def test_answers_as_targets():
    subject, batch, output = task_and_output("bert", "qa", [tiny.QUESTION] * 3)
    task = subject.task
    target = task.resolve(["John Smith", (9, 10), None], output, batch)
    assert task.describe(target, batch)[0] == "John Smith"
    assert target[1].tolist() == [9, 10] and torch.equal(target[2], task.predict(output, batch)[2])
    for bad, message in [
        ("Rome", "not in the context"),
        ((5, 3), "not an answer"),
        ((0, 400), "not an answer"),
        (3, "'3' is not in the context"),
        (3.5, "not an answer"),
        (("John", "Paris"), "not an answer"),
        ((1.5, 2), "not an answer"),
    ]:
        with pytest.raises(TargetError, match=message):
            task.resolve(bad, output, batch)
    (made,) = explain(subject, tiny.QUESTION, method="gradient", target="Paris")
    assert made.target == "Paris" and made.prediction in tiny.QUESTION[1]


def test_an_answer_that_occurs_twice_is_the_likelier_one():
    subject = tiny.subject("bert", "qa")
    batch = subject.encode([("who ?", "Paris is Paris")])
    output = subject.states(batch).output * 0
    where = [
        t for t, name in enumerate(batch.tokens[0]) if batch.offsets[0][t][0] == 9 and batch.segments[0, t]
    ]
    output[0, 0, where[0]] = 5.0
    assert int(subject.task.resolve("Paris", output, batch)[0, 0]) == where[0]


def test_question_answering_takes_pairs_only():
    subject = tiny.subject("bert", "qa")
    with pytest.raises(TextError, match=r"takes pairs \(question, context\); text 0 is 'who lives there \?'"):
        subject.encode(["who lives there ?"])
    with pytest.raises(TextError, match="the context of .* has no tokens"):
        subject.encode([("who lives there ?", "")])


def test_token_classification():
    subject, batch, output = task_and_output("bert", "tagging", ["John Smith lives in Paris"])
    task = subject.task
    assert (output[:, batch.special[0]] == 0).all(), "markers have no label"
    plan = torch.zeros_like(output)
    names = ["O", "B-PER", "I-PER"]
    pieces = batch.tokens[0]
    smith = [t for t, (a, b) in enumerate(batch.offsets[0]) if 5 <= a < b <= 10]
    john = [t for t, (a, b) in enumerate(batch.offsets[0]) if 0 <= a < b <= 4]
    plan[0, :, 0] = 1.0
    plan[0, john[0], 1] = 5.0
    plan[0, [*john[1:], *smith], 2] = 5.0
    target = task.resolve(None, plan, batch)
    chosen = {t: names[k] for t, k in enumerate(target[0].tolist()) if k >= 0}
    assert list(chosen) == [*john, *smith] and chosen[john[0]] == "B-PER" and chosen[smith[-1]] == "I-PER"
    assert task.score(plan, target).item() == 5.0 * len(chosen)
    assert task.resolve((smith[0], "O"), plan, batch)[0, smith[0]] == 0
    given = task.resolve(("Smith", "B-PER"), plan, batch)[0]
    assert given[smith].tolist() == [1, *[2] * (len(smith) - 1)] and (given >= 0).sum() == len(smith)
    assert task.describe(task.resolve((john[0], "B-PER"), plan, batch), batch) == [
        f"{tiny_text(batch, john[0])} B-PER"
    ]
    nothing = plan * 0 + torch.tensor([1.0, 0.0, 0.0])
    nothing[0, 3] *= 4  # the most certain token
    assert (task.resolve(None, nothing, batch)[0] >= 0).nonzero().flatten().tolist() == [3]
    assert task.describe(task.predict(nothing, batch), batch) == ["O"]
    for bad in ("Rome", 99, ("Smith", "B-LOC")):
        with pytest.raises(TargetError):
            task.resolve(bad, plan, batch)
    other = output + torch.randn_like(output)
    text = [t for t in range(len(pieces)) if not batch.special[0, t]]
    other = other.masked_fill(batch.special[:, :, None], 0.0)
    slow = sum(slow_kl(output[0, t], other[0, t]) for t in text)
    assert math.isclose(float(task.divergence(output, other)), slow, rel_tol=1e-4)


def tiny_text(batch, t):
    a, b = batch.offsets[0][t]
    return batch.texts[0][a:b]


def test_masked_lm_reads_the_first_mask_also_when_masks_are_added():
    subject, batch, output = task_and_output("bert", "mlm", ["the [MASK] is dull [MASK] ."])
    ids = batch.inputs["input_ids"]
    at = ids[0].tolist().index(subject.tokenizer.mask_token_id)
    with torch.no_grad():
        logits = subject.module(**batch.inputs).logits
    assert torch.allclose(output[0, 0], logits[0, at], atol=1e-6)
    ids[0, 1] = subject.tokenizer.mask_token_id  # as a perturbation does
    with torch.no_grad():
        logits = subject.module(**batch.inputs).logits
    assert torch.allclose(subject.states(batch).output[0, 0], logits[0, at], atol=1e-6)


def test_masked_lm_targets():
    subject = tiny.subject("bert", "mlm")
    mask, texts = "[MASK]", ["the [MASK] is dull [MASK] ."]
    (made,) = explain(subject, texts, method="gradient", target="plot")
    assert made.target == "plot"
    (two,) = explain(subject, texts, method="gradient", target="movie")  # two pieces for two masks
    assert two.target == "movie" and (two.scores != made.scores).any()
    (pair,) = explain(subject, texts, method="gradient", target=("plot", "car"))
    assert pair.target == "plot rather than car"
    with pytest.raises(TextError, match=r"0 \[MASK\] in 'the plot'; put 1"):
        subject.encode(["the plot"])
    with pytest.raises(TextError, match=r"1 \[MASK\] .* put 2"):
        explain(subject, f"a {mask}", method="gradient", target="movie")
    with pytest.raises(ModelError, match="needs a tokenizer with a mask token"):
        MaskedLM(tiny.byte_bpe())


def slow_log_probability(model, prompt_ids, ids):
    """The log-probability of a continuation, a forward pass a token."""
    total, seen = 0.0, list(prompt_ids)
    for token in ids:
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([seen])).logits[0, -1]
        total += float(F.log_softmax(logits, -1)[token])
        seen.append(token)
    return total


@pytest.mark.parametrize("family", ["gpt2", "llama", "opt"])
def test_causal_lm_next_token_and_continuations(family):
    subject = tiny.subject(family, "causal")
    tokenizer, task = subject.tokenizer, subject.task
    texts = ["the plot", "a fast , funny", "Paris is the capital of", "John"]
    wanted = [
        None,
        " and the acting",
        tokenizer(" plot", add_special_tokens=False)["input_ids"][0],
        (" car", " capital"),
    ]
    batch = subject.encode(texts, wanted)
    output = subject.states(batch).output
    target = task.resolve(wanted, output, batch)
    score = task.score(output, target)
    prompts = [tokenizer(text)["input_ids"] for text in texts]
    with torch.no_grad():
        last = [subject.module(input_ids=torch.tensor([p])).logits[0, -1].log_softmax(-1) for p in prompts]
    assert torch.allclose(score[0], last[0].max(), atol=1e-4)
    ids = tokenizer(wanted[1], add_special_tokens=False)["input_ids"]
    assert len(ids) > 2
    assert math.isclose(float(score[1]), slow_log_probability(subject.module, prompts[1], ids), rel_tol=1e-4)
    assert torch.allclose(score[2], last[2][wanted[2]], atol=1e-4)
    car, capital = (tokenizer(t, add_special_tokens=False)["input_ids"] for t in wanted[3])
    same = next(k for k, (a, b) in enumerate(zip(car, capital, strict=False)) if a != b)
    with torch.no_grad():
        logits = subject.module(input_ids=torch.tensor([[*prompts[3], *car[:same]]])).logits[0, -1]
    assert torch.allclose(score[3], logits[car[same]] - logits[capital[same]], atol=1e-4)
    assert [list(batch.tokens[i]) for i in range(4)] == [
        tokenizer.convert_ids_to_tokens(ids) for ids in prompts
    ]
    assert batch.valid.sum(1).tolist() == [len(ids) for ids in prompts]
    alone = subject.encode(texts[:1])
    assert torch.allclose(subject.states(alone).output[0, 0], output[0, 0], atol=1e-4)


@pytest.mark.parametrize("lead", [0.0, 5.0, 18.0, 30.0])
def test_the_score_of_a_nearly_certain_token_keeps_its_gradient(lead):
    """In float32 as in float64, where 1 - p is far below the rounding of 1."""
    task = task_and_output("gpt2", "causal", ["the plot"])[0].task
    logits = torch.randn(1, 1, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    logits[0, 0, 7] += lead
    target = torch.tensor([[[7, -1]]])
    found = []
    for given in (logits.float(), logits):
        leaf = given.clone().requires_grad_()
        score = task.score(leaf, target)
        found.append((score.item(), torch.autograd.grad(score.sum(), leaf)[0].double()))
    assert math.isclose(found[0][0], found[1][0], rel_tol=1e-4)
    slow = F.one_hot(torch.tensor(7), 50) - logits[0, 0].softmax(-1)
    torch.testing.assert_close(found[0][1][0, 0], slow, rtol=1e-4, atol=0)


def test_causal_lm_divergence_adds_up_over_the_steps():
    subject, batch, output = task_and_output("gpt2", "causal", ["the plot", "a"], [" is dull", None])
    other = output + torch.randn_like(output) * (batch.marks["positions"] >= 0)[:, :, None]
    slow = sum(slow_kl(a, b) for a, b in zip(output[0], other[0], strict=True))
    value = subject.task.divergence(output, other)
    assert math.isclose(float(value[0]), slow, rel_tol=1e-4)
    assert math.isclose(float(value[1]), slow_kl(output[1, 0], other[1, 0]), rel_tol=1e-4)


def test_causal_lm_explains_the_prompt_only():
    subject = tiny.subject("gpt2", "causal")
    for sites in ([0], "all"):
        made = explain(
            subject, ["the plot", "a fast"], method="grad_x_input", target=[" is dull", None], sites=sites
        )
        assert made[0].target == " is dull" and "".join(made[0].tokens).replace("Ġ", " ") == "the plot"
        assert made[0].scores.shape[1] == len(made[0].tokens)


def test_integrated_gradients_of_a_continuation_are_complete():
    """The prompt's scores add up to the change of the score when the prompt, and only it, is emptied."""
    subject = tiny.subject("gpt2", "causal")
    texts, target = ["the plot", "a fast , funny"], " is dull and"
    batch = subject.encode(texts, [target] * 2)
    output, states = subject.states(batch, [1])
    resolved = subject.task.resolve(target, output, batch)
    nothing = torch.linspace(-1, 1, 16)  # at zero, a layer norm would jump
    empty = torch.where(batch.valid[:, :, None], nothing, states[1])
    change = subject.task.score(output, resolved) - subject.task.score(
        subject.run(batch, {1: empty}).output, resolved
    )
    options = {"target": target, "sites": [1], "baselines": nothing, "n_steps": 300}
    made = explain(subject, texts, method="integrated_gradients", **options)
    sums = torch.tensor([float(one.scores.sum()) for one in made])
    assert torch.allclose(sums, change, atol=1e-3), (sums, change)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("", "has no tokens"),
        (10**6, "no token 1000000"),
        ((" a", " a b"), "nothing to compare"),
        (("a",), "a pair"),
        (True, "no token True"),
    ],
)
def test_causal_lm_bad_targets(target, message):
    subject = tiny.subject("gpt2", "causal")
    with pytest.raises(TargetError, match=message):
        explain(subject, "the plot", method="gradient", target=target)


def test_a_batch_must_be_encoded_for_its_continuation():
    subject, batch, output = task_and_output("gpt2", "causal", ["the plot"])
    with pytest.raises(TargetError, match="not encoded for the target"):
        subject.task.resolve(" is dull and long", output, batch)
    with pytest.raises(TextError, match="text and continuation have"):
        subject.encode(["a " * 61], [" the plot is dull"])


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_seq2seq_next_token_given_what_is_written(family):
    subject = tiny.subject(family, "seq2seq")
    tokenizer, model = subject.tokenizer, subject.module
    texts = ["a funny movie", ("the plot is dull", "Paris is"), "Paris"]
    wanted = [None, None, " and the"]
    batch = subject.encode(texts, wanted)
    output = subject.states(batch).output
    start = [model.config.decoder_start_token_id]
    with torch.no_grad():
        source = tokenizer("the plot is dull", return_tensors="pt")["input_ids"]
        written = [*start, *tokenizer("Paris is", add_special_tokens=False)["input_ids"]]
        logits = model(input_ids=source, decoder_input_ids=torch.tensor([written])).logits[0, -1]
        assert torch.allclose(output[1, 0], logits, atol=1e-4)
        source = tokenizer("Paris", return_tensors="pt")["input_ids"]
        ids = tokenizer(" and the", add_special_tokens=False)["input_ids"]
        logits = model(input_ids=source, decoder_input_ids=torch.tensor([[*start, *ids[:-1]]])).logits[0]
    slow = F.log_softmax(logits, -1)[range(len(ids)), ids].sum()
    target = subject.task.resolve(wanted, output, batch)
    assert torch.allclose(subject.task.score(output, target)[2], slow, atol=1e-4)
    made = explain(subject, texts, method="gradient", target=wanted)
    assert made[1].text == texts[1] and made[1].segments == (0,) * len(made[1].tokens)
    words = made[1].words()
    shown = [word for word, special in zip(words.tokens, words.special, strict=True) if not special]
    assert shown == ["the", "plot", "is", "dull"]


def test_bart_starts_with_its_forced_token():
    model = tiny.model("bart", "seq2seq")
    model.generation_config.forced_bos_token_id = 0
    subject = Subject(model, tiny.roberta_bpe())
    assert subject.encode(["Paris"]).inputs["decoder_input_ids"].tolist() == [[2, 0]]

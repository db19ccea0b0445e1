"""What a step and a judgement compute, against one text at a time; texts whose states are kept."""

import copy
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import asked
import sevens
import tiny
from lens_parts import QUICK, frozen, objective, shaken, slow_logits, slow_output
from masklens.diffmask import judging
from masklens.diffmask import texts as source
from masklens.diffmask.first_states import COMMON, first_states
from masklens.diffmask.gates import HardConcrete
from masklens.diffmask.judging import CERTAINTY, GAP, Judged
from masklens.diffmask.networks import NOISE, TEMPERATURE
from masklens.diffmask.objective import LensObjective
from masklens.diffmask.texts import FrozenTexts
from masklens.errors import TrainingError
from masklens.model.subject import Subject
from masklens.model.tap import Point
from masklens.tasks.classification import BinaryClassification

TEXTS = ["a fast funny movie", "dull", "the plot is dull and the movie is slow", "funny"]
STEP = 40
"""at which the draws move the output in every kind of text"""
RATES = ("kept", "divergence", "hard", "emptied", "slope")
BERT = replace(QUICK, batch_size=24, margin=0.2)


def states(frozen, rows):
    drawn = frozen.draw(rows)
    return drawn.output, {site: drawn.read(site, slice(None))[drawn.batch.valid] for site in frozen.sites}


@pytest.mark.parametrize("rows", [[0, 1, 2, 3], [2, 0], [1], [3, 3, 0]])
def test_kept_states_are_those_of_a_new_run(rows, bert):
    kept, anew = frozen(TEXTS, bert), frozen(TEXTS, bert, keep_bytes=0)
    assert kept._kept is not None and anew._kept is None
    output, found = states(kept, rows)
    expected, again = states(anew, rows)
    torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-5)
    for site in bert.sites:
        torch.testing.assert_close(found[site], again[site], rtol=1e-4, atol=1e-5)
    batch = bert.encode([TEXTS[row] for row in rows])
    direct = bert.states(batch)
    for site in bert.sites:
        torch.testing.assert_close(found[site], direct.states[site][batch.valid], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("keep_bytes", [0, 10**9])
def test_a_slice_of_the_texts_has_its_own_states(keep_bytes, bert):
    drawn = frozen(TEXTS, bert, keep_bytes).draw([2, 0, 3])
    for site in bert.sites:
        every = drawn.states()[site]
        assert torch.equal(drawn.states(slice(1, 3))[site], every[1:3])


def test_padding_is_not_kept(bert):
    kept = frozen(TEXTS, bert)
    tokens = int(kept.batch.valid.sum())
    assert tokens < kept.batch.valid.numel()
    assert all(len(state) == tokens + 1 for state in kept._kept.states.values())
    needed = sum(s.shape[-1] * s.element_size() for s in kept._kept.states.values()) * tokens
    needed += kept._kept.output.numel() * kept._kept.output.element_size()
    assert frozen(TEXTS, bert, needed)._kept is not None
    assert frozen(TEXTS, bert, needed - 1)._kept is None


def test_chunks_hold_every_text_once_and_not_too_many_tokens(monkeypatch, bert):
    made = frozen(TEXTS * 5, bert, keep_bytes=0)
    monkeypatch.setitem(source.CHUNK_TOKENS, "cpu", 24)
    monkeypatch.setitem(source.CHUNK, "cpu", 3)
    chunks = list(made.chunks())
    assert sorted(row for chunk in chunks for row in chunk) == list(range(20))
    for chunk in chunks:
        longest = int(made.lengths[chunk].max())
        assert len(chunk) <= 3 and (len(chunk) == 1 or len(chunk) * longest <= 24)
    assert any(len(chunk) == 3 for chunk in chunks) and any(len(chunk) < 3 for chunk in chunks[:-1])


def test_outputs_that_grow_with_the_text_are_not_kept_whichever_text_comes_first():
    subject, texts = tiny.subject("bert", "qa"), tiny.texts("bert", "qa")
    for order in (texts, texts[::-1]):
        made = frozen(order, subject)
        assert made._kept is None
        for row in (0, 1):
            drawn = made.draw([row])
            assert drawn.output.shape[-1] == drawn.batch.shape[1]


def test_a_copy_in_another_number_format_leaves_the_model_alone():
    subject = tiny.subject("bert")
    other = subject.in_dtype(torch.bfloat16)
    assert {p.dtype for p in subject.module.parameters()} == {torch.float32}
    assert {p.dtype for p in other.module.parameters()} == {torch.bfloat16}
    batch = subject.encode(TEXTS)
    whole, half = subject.states(batch, [2]), other.states(batch, [2])
    assert half.states[2].dtype == torch.bfloat16
    torch.testing.assert_close(half.states[2].float(), whole.states[2], rtol=0.1, atol=0.1)
    zeros = other.run(batch, replace={2: torch.zeros_like(half.states[2])}).output
    assert not torch.allclose(zeros.float(), half.output.float(), atol=1e-3)  # its own module is edited


def test_where_baselines_begin():
    subject = tiny.subject("bert")
    first = first_states(frozen(TEXTS, subject))
    mask = subject.tokenizer.mask_token_id
    assert torch.equal(first.first_baseline(0), subject.module.get_input_embeddings().weight[mask])
    batch = subject.encode(TEXTS)
    tokens = subject.states(batch, [2]).states[2][batch.valid]
    torch.testing.assert_close(first.first_baseline(2), tokens.mean(0))
    assert first.spread(2) == pytest.approx(float(tokens.var(0).mean().sqrt()), rel=1e-4)
    digits = frozen(["17", "3"])
    embedded = digits.subject.module.embed(torch.tensor([1, 7, 3])).detach()
    torch.testing.assert_close(first_states(digits).first_baseline(0), embedded.mean(0))


@pytest.mark.parametrize("masked", [False, True])
def test_a_causal_model_begins_with_what_harms_least(monkeypatch, masked):
    """Also where the tokenizer has a mask token, which such a model has never read."""
    subject = asked.subject()
    if masked:
        tokenizer = copy.copy(subject.tokenizer)
        tokenizer.mask_token = "<unk>"
        subject = Subject(subject.module, tokenizer)
    first = first_states(frozen(asked.texts(60), subject))
    table, ids = subject.module.get_input_embeddings().weight.detach(), first.batch.inputs["input_ids"]
    keep = torch.rand(ids.shape, generator=torch.Generator().manual_seed(0)) < 0.5
    keep |= ~subject.task.removable(first.batch)
    whole = first.output.log_softmax(-1)

    def harm(baseline):
        edited = torch.where(keep[..., None], table[ids], baseline)
        output = subject.run(first.batch, replace={subject.sites[0]: edited}).output.log_softmax(-1)
        return float((whole.exp() * (whole - output)).sum(-1).mean())

    kinds, counts = ids[first.usual].unique(return_counts=True)
    mean, mask = table[ids[first.usual]].mean(0), table[2]
    tried = [mean, *([mask] if masked else []), *table[kinds[counts.argsort(descending=True)[:COMMON]]]]
    best = min(tried, key=harm)
    torch.testing.assert_close(first.first_baseline(subject.sites[0]), best)
    assert harm(best) < harm(mean) and harm(best) < harm(mask)
    monkeypatch.setitem(source.CHUNK_TOKENS, "cpu", 24)  # two texts at a time
    torch.testing.assert_close(first.first_baseline(subject.sites[0]), best)
    torch.testing.assert_close(first.first_baseline(2), first.tokens(2).mean(0))


def test_the_mean_of_a_place_is_that_of_the_texts_that_reach_it(bert):
    made = frozen(TEXTS, bert)
    means = first_states(made).place_means(2, 20)
    each = [bert.states(bert.encode([text]), [2]).states[2][0] for text in TEXTS]
    overall = torch.cat(each).mean(0)
    for place in range(1, 21):
        there = [state[place] for state in each if place < len(state)]
        expected = torch.stack(there).mean(0) - overall if there else torch.zeros_like(overall)
        torch.testing.assert_close(means[place - 1], expected, rtol=1e-4, atol=1e-5)
    assert made.longest < 20 and means[made.longest - 2].any() and not means[made.longest - 1].any()


def slow_terms(made: LensObjective, step: int, warming: bool = False) -> SimpleNamespace:
    """One text at a time, every formula a second time; the draws of texts and of noise are the step's."""
    subject, probe, task = made.train.subject, made.probe, made.train.subject.task
    generator = made._generator("step", step)
    ids = made._texts(step, generator)
    uniform = torch.rand(*ids.shape, made.train.longest, generator=generator)
    share = torch.rand(*ids.shape, generator=generator)
    every = torch.cat([subject.run(subject.encode([text])).output for text in made.train.batch.texts])
    usual = task.average(every)
    found = []
    for row in range(len(probe.rows)):
        sampled, hard, emptied, kept, slope = [], [], [], [], []
        for i in range(made.per_row):
            text = made.train.batch.texts[int(ids[row, i])]
            output, by_site = subject.states(subject.encode([text]))
            logits = slow_logits(probe, row, {site: state[0] for site, state in by_site.items()})
            probability = torch.sigmoid(logits + 0.2 * math.log(5))
            noise = uniform[row, i, : len(logits)]
            if warming and i >= made.per_row - made.emptied:
                keep, kind, output = torch.zeros_like(logits), emptied, usual
            elif warming:
                keep, kind = (noise < share[row, i]).float(), hard if i < made.hard else sampled
            elif i < made.hard:
                keep, kind = (probability > 0.5).float(), hard
            else:
                gate = HardConcrete(logits.clamp(-NOISE, NOISE), TEMPERATURE)
                keep, kind = gate.rsample(uniform=noise), sampled
            edited = slow_output(subject, text, probe, row, keep)
            kind.append(float(task.divergence(output, edited)[0]))
            if kind is sampled:
                kept.append(float(probability.mean()))
                tried = torch.sigmoid(logits.clamp(-NOISE, NOISE) + 0.2 * math.log(5))
                slope.append(float((tried * (1 - tried)).mean()))
        found.append([sum(one) / max(1, len(one)) for one in (kept, sampled, hard, emptied, slope)])
    return SimpleNamespace(**dict(zip(RATES, torch.tensor(found).T, strict=True)))


def close(one, other, atol=1e-5):
    for name in RATES:
        a, b = getattr(one, name), getattr(other, name)
        torch.testing.assert_close(
            a.detach(), b, rtol=1e-3, atol=atol, msg=lambda m, name=name: f"{name}: {m}"
        )


@pytest.mark.parametrize("warming", [False, True])
@pytest.mark.parametrize("over", ["inputs", "states", [(0, 1), (1, 0)]])
def test_terms_are_those_of_one_text_at_a_time(over, warming):
    made = shaken(objective(replace(QUICK, batch_size=8 * 2), over))
    assert (made.per_row, made.hard, made.emptied) == (8, 2, 1)
    found = made.terms(STEP, warming=warming)
    assert all((getattr(found, name) > 1e-3).all() for name in RATES if warming or name != "emptied")
    assert warming or not found.emptied.any()
    close(found, slow_terms(made, STEP, warming))


@pytest.mark.parametrize("over", ["inputs", "states"])
def test_terms_of_a_transformer_are_those_of_one_text_at_a_time(over, bert):
    """Texts of different lengths, blocks that are skipped, baselines by place."""
    made = shaken(objective(BERT, over, bert, TEXTS * 4, TEXTS))
    assert bool(made.probe.places) == (over == "states")
    for warming in (False, True):
        found = made.terms(STEP, warming=warming)
        assert (found.divergence > 1e-4).all() and bool(found.emptied.max() > 0.01) == warming
        close(found, slow_terms(made, STEP, warming), atol=1e-4)


def taught(parameters):
    return [bool(p.grad is not None and p.grad.any()) for p in parameters]


@pytest.mark.parametrize(
    ("name", "gates", "baselines"),
    [("kept", True, False), ("divergence", True, True), ("hard", False, True), ("emptied", False, True)],
)
def test_hard_masks_teach_the_baselines_alone_and_sampled_gates_both(name, gates, baselines):
    made = shaken(objective())
    getattr(made.terms(STEP, warming=name == "emptied"), name).sum().backward()
    assert taught(gate.outer.weight for gate in made.probe.gates) == [gates] * 2
    assert taught(made.probe.baselines) == [baselines] * 2


def test_a_row_learns_from_its_own_texts():
    made = shaken(objective(over="inputs"))
    terms = made.terms(STEP)
    (terms.kept + terms.divergence + terms.hard)[0].backward()
    assert taught(gate.outer.weight for gate in made.probe.gates) == [True, False]
    assert taught(made.probe.baselines) == [True, False]


def test_one_run_with_all_edits_is_one_run_a_site():
    """Without blocks to skip, all edited sites go through the model at once: the same divergences."""
    at_once, apart = shaken(objective(), bias=-1.0), shaken(objective(), bias=-1.0)
    apart.train.subject.blocks = {9: Point(torch.nn.Identity())}  # as if there were something to skip
    one, other = at_once.terms(STEP), apart.terms(STEP)
    assert (one.divergence > 0.01).all()
    close(one, other)


@pytest.mark.parametrize("anchor", [0.3, 0.0])
@pytest.mark.parametrize("world", [2, 3])
def test_the_mean_over_processes_is_one_process(world, anchor):
    made = shaken(objective(replace(QUICK, anchor=anchor, batch_size=22)))
    assert made.per_row == 11
    for warming in (False, True):
        whole = made.terms(STEP, warming=warming)
        shares = [made.terms(STEP, rank, world, warming) for rank in range(world)]
        for name in RATES:
            value = getattr(whole, name)
            torch.testing.assert_close(torch.stack([getattr(one, name) for one in shares]).mean(0), value)
    assert (whole.emptied > 0).all() == (anchor > 0)


def test_more_processes_than_texts_are_an_error():
    made = objective()
    with pytest.raises(TrainingError, match="8 texts a site for 9 processes; give a larger batch_size"):
        made.terms(0, 0, 9)


def test_a_step_has_texts_of_every_kind_however_small():
    made = objective(replace(QUICK, batch_size=1))
    assert (made.per_row, made.hard, made.emptied) == (3, 1, 1)
    found = shaken(made, bias=-5.0).terms(STEP)
    assert all((getattr(found, name) > 0).all() for name in RATES if name != "emptied")
    assert (made.terms(STEP, warming=True).emptied > 0).all()
    assert objective(replace(QUICK, anchor=0.0)).emptied == 0


def test_a_task_without_an_average_output_has_no_emptied_texts():
    subject, texts = tiny.subject("bert", "qa"), tiny.texts("bert", "qa")
    made = objective(BERT, "inputs", subject, texts, texts)
    assert made.emptied == 0 and not made.terms(STEP, warming=True).emptied.any()


def test_another_seed_means_other_batches_and_other_noise():
    one, same, other = (shaken(objective(replace(QUICK, seed=seed))) for seed in (0, 0, 1))
    other.probe.load_state_dict(one.probe.state_dict())
    texts = [made._texts(5, made._generator("step", 5)).tolist() for made in (one, same, other)]
    assert texts[0] == texts[1] != texts[2]
    assert torch.equal(one.terms(5).divergence, same.terms(5).divergence)
    assert not torch.allclose(one.terms(5).divergence, other.terms(5).divergence)


def test_an_epoch_has_every_text_once_and_the_next_another_order():
    made = objective()  # 64 texts, 16 a step
    epochs = [
        [made._texts(step, torch.Generator()).flatten().tolist() for step in range(4 * e, 4 * e + 4)]
        for e in (0, 1)
    ]
    for epoch in epochs:
        assert sorted(sum(epoch, [])) == list(range(64))
    assert epochs[0] != epochs[1]


def test_few_texts_come_more_than_once_in_a_step():
    made = objective(texts=sevens.texts(5))
    found = made._texts(7, torch.Generator())
    assert found.shape == (2, 8) and set(found.flatten().tolist()) == set(range(5))


def test_few_texts_are_sorted_by_length_and_no_row_sees_one_twice_in_a_step(bert):
    """Without copies there were too few batches to sort: each was as wide as nearly the longest text."""
    texts = [" ".join(["dull"] * length) for length in range(1, 31)]
    made = objective(replace(BERT, batch_size=24), "states", bert, texts, TEXTS)
    rows = len(made.probe.rows)
    assert made._copies == min(-(-8 * made.per_row * rows // 30), rows) > 1
    steps = [made._texts(step, made._generator("step", step)) for step in range(30)]
    for found in steps:
        assert found.shape == (rows, made.per_row)
        assert all(len(set(row)) == made.per_row for row in found.tolist())
    widths = [int(made.train.lengths[found].max()) for found in steps]
    assert sum(widths) / 30 < 0.8 * made.train.longest
    assert all(
        {text for found in steps for text in found[row].tolist()} > set(range(20)) for row in range(rows)
    )


def test_texts_of_like_length_go_together_where_padding_can_be_left_out(bert):
    made = objective(replace(BERT, batch_size=10), "states", bert, TEXTS * 20, TEXTS)
    spreads = [made.train.lengths[made._texts(step, torch.Generator())].float().std() for step in range(4)]
    assert sum(spreads) / 4 < 0.5 * made.train.lengths.float().std()


def test_texts_padded_to_a_fixed_width_can_be_learned_from():
    """An encoder may pad further than its longest text, and those columns cannot be left out."""
    module = sevens.CountSevens()

    def encode(texts):
        return sevens.encode([*texts, "0" * 12]).take(range(len(texts)))

    points = [Point(module.embed), Point(module.body)]
    wide = shaken(objective(subject=Subject.from_module(module, points, BinaryClassification(), encode)))
    assert wide.train.batch.shape[1] == 12 and wide.train.longest == 6
    wide.terms(STEP).divergence.sum().backward()
    for one, other in zip(wide.judge(), shaken(objective()).judge(), strict=True):
        assert one == pytest.approx(other, abs=1e-6)


def slow_judge(made, row):
    """Divergence, tokens kept, agreement and length of every validation text."""
    subject, task, found = made.validation.subject, made.validation.subject.task, []
    for text in made.validation.batch.texts:
        batch = subject.encode([text])
        output, by_site = subject.states(batch)
        logits = slow_logits(made.probe, row, {site: state[0] for site, state in by_site.items()})
        keep = (torch.sigmoid(logits + 0.2 * math.log(5)) > 0.5).float()
        edited = slow_output(subject, text, made.probe, row, keep)
        agrees = task.predict(output, batch) == task.predict(edited, batch)
        found.append([float(task.divergence(output, edited)), float(keep.sum()), float(agrees), len(keep)])
    return torch.tensor(found, dtype=torch.float64).T


@pytest.mark.parametrize("over", ["inputs", "states", [(0, 1)]])
def test_judging_is_a_loop_over_texts(over):
    made = shaken(objective(over=over), bias=-0.5)
    for row, judged in enumerate(made.judge()):
        divergence, tokens, agrees, lengths = slow_judge(made, row)
        count, share = len(lengths), tokens.sum() / lengths.sum()
        assert judged.divergence == pytest.approx(float(divergence.mean()), abs=1e-5)
        assert judged.error == pytest.approx(
            float(((divergence - divergence.mean()) ** 2).mean() / count) ** 0.5, rel=1e-4
        )
        assert judged.kept == pytest.approx(float(share)) and judged.agreement == pytest.approx(
            float(agrees.mean())
        )
        # The share is a ratio of two sums: its error by the jackknife, leaving out one text at a time.
        left = (tokens.sum() - tokens) / (lengths.sum() - lengths)
        jackknife = float(((left - left.mean()) ** 2).sum() * (count - 1) / count) ** 0.5
        assert judged.kept_error == pytest.approx(jackknife, rel=0.1)
        assert 0 < judged.kept < 1 and judged.divergence > 0.01


def test_judging_some_rows_is_judging_all():
    made = shaken(objective())
    assert made.judge(rows=[1]) == [made.judge()[1]]
    assert made.judge(made.train) != made.judge()


def tuned(over, bias):
    """Gates that know the seven, with the wrong bias."""
    made = objective(over=over, held=sevens.texts(100, seed=1))
    probe, states = made.probe, first_states(made.train)
    with torch.no_grad():
        for row in range(len(probe.rows)):
            gate = probe.gate(row)
            gate.inner.weight.zero_()
            gate.inner.weight[0, 0] = 1.0  # a seven's first number is 1, all others' 0
            gate.inner.weight[1, 1] = 0.3  # and something that says nothing
            gate.outer.weight.zero_()
            gate.outer.weight[0, 0], gate.outer.weight[0, 1] = 0.3, 0.1
            gate.bias.fill_(bias)
            probe.baselines[row].copy_(states.subject.module.embed.weight[0])
    return made


@pytest.mark.parametrize("over", ["inputs", "states"])
@pytest.mark.parametrize("bias", [-7.0, 0.0, 7.0])
def test_calibrated_gates_drop_what_the_margin_allows(over, bias):
    made = tuned(over, bias)
    before = made.judge()
    made.calibrate()
    for old, new in zip(before, made.judge(), strict=True):
        assert new.divergence + CERTAINTY * new.error <= made.settings.margin
        if bias < 0:
            assert old.divergence > made.settings.margin and old.kept < new.kept  # all was dropped
        if bias > 0:
            assert old.kept == 1 and new.kept < 0.2
    sevens_kept = [made.probe.keep_of(0, made.validation.draw([i]).states())[0] > 0.5 for i in range(100)]
    for keep, text in zip(sevens_kept, made.validation.batch.texts, strict=True):
        assert [bool(k) for k, digit in zip(keep, text, strict=False) if digit == "7"] == [True] * text.count(
            "7"
        )


def test_calibrated_gates_are_as_shut_as_they_can_be_and_sure_of_what_they_keep():
    made = tuned("states", 7.0)
    made.calibrate()
    states = made.validation.draw(list(range(100))).states()
    valid = made.validation.draw(list(range(100))).batch.valid
    for row, gate in enumerate(made.probe.gates):
        logits = made.probe.logits(row, states)[valid] + 0.2 * math.log(5)
        needed, other = logits[logits > 0].min(), logits[logits < 0].max()
        assert needed > 0.5 and other < -0.5  # sevens are 3 above the others: the middle is far from both
        gate.bias.sub_(needed + 0.05)
    assert all(one.divergence + CERTAINTY * one.error > made.settings.margin for one in made.judge())


def test_calibrated_gates_leave_room_for_chance(monkeypatch):
    """Where the divergence rises little by little, errors and all are just within the margin."""
    made = shaken(objective(replace(QUICK, margin=0.5)))
    before = {name: value.clone() for name, value in made.probe.state_dict().items()}
    slopes, error = (0.05, 0.1), 0.04

    def judge(probe, texts, rows):
        biases = [float(made.probe.gate(i).bias) for i in rows]
        shares = [0.5 + bias / 100 for bias in biases]
        moved = [0.6 - slopes[i] * bias for i, bias in zip(rows, biases, strict=True)]
        return [Judged(d, error, share, 0.0, 1.0) for d, share in zip(moved, shares, strict=True)]

    monkeypatch.setattr(judging, "judge", judge)
    made.calibrate()
    for i, slope in enumerate(slopes):
        exact = (0.6 + CERTAINTY * error - 0.5) / slope
        assert exact <= float(made.probe.gate(i).bias) <= exact + 100 * GAP / 2 + 0.05
    changed = {n for n, value in made.probe.state_dict().items() if not torch.equal(value, before[n])}
    assert changed == {"gates.0.bias", "gates.1.bias"}


@pytest.mark.parametrize("over", ["inputs", "states"])
@pytest.mark.parametrize("apart", [False, True])
def test_padding_is_not_edited(over, apart, monkeypatch):
    made = shaken(objective(over=over), bias=-5.0)
    if apart:
        made.train.subject.blocks = {9: Point(torch.nn.Identity())}  # as if there were something to skip
    seen, run = [], made.train.subject.run

    def noted(batch, replace=None, **options):
        for site, new in (replace or {}).items():
            state = run(batch, record=[site]).states[site]
            seen.append((batch.valid, state, new(state) if callable(new) else new))
        return run(batch, replace, **options)

    monkeypatch.setattr(made.train.subject, "run", noted)
    made.terms(STEP)
    padded = [(state[~valid], new[~valid], state[valid], new[valid]) for valid, state, new in seen]
    assert sum(len(state) for state, *_ in padded) > 0
    for state, new, inside, changed in padded:
        assert torch.equal(state, new) and not torch.equal(inside, changed)


def test_emptied_texts_are_held_to_the_average_output():
    """Alone, the prior makes a baseline say what the model says on average."""
    made = objective()
    subject, probe, task = made.train.subject, made.probe, made.train.subject.task
    every = subject.run(made.train.batch).output
    average = every.sigmoid().mean()

    def off():
        found = [
            slow_output(subject, text, probe, 0, torch.zeros(len(text))) for text in made.train.batch.texts
        ]
        return float(task.divergence(average.logit().expand_as(every), torch.cat(found)).mean())

    before, optimizer = off(), torch.optim.Adam(probe.baselines, lr=0.05)
    for step in range(60):
        optimizer.zero_grad()
        made.terms(step, warming=True).emptied.sum().backward()
        optimizer.step()
    assert off() < 0.01 < before


def test_frozen_texts_with_and_without_kept_states_give_the_same_terms(bert):
    kept = shaken(objective(BERT, "states", bert, TEXTS * 4, TEXTS))
    anew = shaken(objective(BERT, "states", bert, TEXTS * 4, TEXTS))
    anew.train, anew.validation = (
        FrozenTexts(bert, list(part.batch.texts), bert.sites, 0) for part in (kept.train, kept.validation)
    )
    close(kept.terms(STEP), anew.terms(STEP), atol=1e-4)
    for one, other in zip(kept.judge(), anew.judge(), strict=True):
        assert one == pytest.approx(other, abs=1e-5)

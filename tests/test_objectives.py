"""Texts whose states are kept: the same states as when they are computed again, and no more of them."""

import pytest
import torch

import tiny
from masklens import objectives
from masklens.diffmask.trainer import Settings
from masklens.diffmask.objective import FrozenTexts, LensObjective, edited_run, masked_outputs
from masklens.diffmask.networks import Probe, rows_for

TEXTS = ["a fast funny movie", "dull", "the plot is dull and the movie is slow", "funny"]


def states(frozen, rows):
    batch, run = frozen.draw(rows)
    return run.output, {site: state[batch.valid] for site, state in run.states.items()}


@pytest.mark.parametrize("rows", [[0, 1, 2, 3], [2, 0], [1], [3, 3, 0]])
def test_kept_states_are_those_of_a_new_run(rows):
    subject = tiny.subject("bert")
    kept = FrozenTexts(subject, TEXTS, subject.sites, 10**9)
    anew = FrozenTexts(subject, TEXTS, subject.sites, 0)
    assert kept._kept is not None and anew._kept is None
    output, found = states(kept, rows)
    expected, again = states(anew, rows)
    torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-5)
    for site in subject.sites:
        torch.testing.assert_close(found[site], again[site], rtol=1e-4, atol=1e-5)


def test_padding_is_not_kept():
    subject = tiny.subject("bert")
    kept = FrozenTexts(subject, TEXTS, subject.sites, 10**9)
    tokens = int(kept.batch.valid.sum())
    assert tokens < kept.batch.valid.numel()
    assert all(len(state) == tokens + 1 for state in kept._kept.states.values())
    needed = sum(s.shape[-1] * s.element_size() for s in kept._kept.states.values()) * tokens
    assert FrozenTexts(subject, TEXTS, subject.sites, needed)._kept is not None
    assert FrozenTexts(subject, TEXTS, subject.sites, needed - 1)._kept is None


def test_chunks_hold_every_text_once_and_not_too_many_tokens(monkeypatch):
    subject = tiny.subject("bert")
    frozen = FrozenTexts(subject, TEXTS * 5, subject.sites, 0)
    monkeypatch.setitem(objectives.CHUNK_TOKENS, "cpu", 24)
    chunks = list(frozen.chunks(3))
    assert sorted(row for chunk in chunks for row in chunk) == list(range(20))
    for chunk in chunks:
        longest = int(frozen.lengths[chunk].max())
        assert len(chunk) <= 3 and (len(chunk) == 1 or len(chunk) * longest <= 24)
    assert any(len(chunk) == 3 for chunk in chunks) and any(len(chunk) < 3 for chunk in chunks[:-1])


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


@pytest.mark.parametrize("over", ["inputs", "states"])
def test_masks_that_did_not_change_are_not_run_again_and_the_outputs_are_the_same(over, monkeypatch):
    subject = tiny.subject("bert")
    frozen = FrozenTexts(subject, TEXTS, subject.sites, 0)
    probe = Probe(rows_for(over, subject.sites), frozen.widths, over == "inputs")
    for baseline in probe.baselines.values():
        torch.nn.init.normal_(baseline)
    batch, run = frozen.draw(range(4))
    keeps = torch.ones(len(probe.rows), *batch.shape)
    keeps[1:, 2, 0] = 0  # one text loses a token from the second row on, another one more at the last
    keeps[-1, 0, 0] = 0
    ran = []
    slow = [
        edited_run(subject, batch, row.edit, run.states[row.edit], keep, probe.baseline(i))
        for i, (row, keep) in enumerate(zip(probe.rows, keeps, strict=True))
    ]
    monkeypatch.setattr(
        objectives, "edited_run", lambda *given: ran.append(len(given[1])) or edited_run(*given)
    )
    quick = list(masked_outputs(subject, probe, batch, run, keeps, range(len(keeps))))
    torch.testing.assert_close(torch.stack(quick), torch.stack(slow), rtol=1e-4, atol=1e-5)
    assert (quick[-1][[0, 2]] - run.output[[0, 2]]).abs().amax(1).min() > 1e-4
    rows = len(probe.rows)
    assert ran == ([1, 1] if over == "inputs" else [1] * (rows - 2) + [2])


def test_another_seed_means_other_batches_and_other_noise():
    subject = tiny.subject("bert")
    frozen = FrozenTexts(subject, TEXTS * 6, subject.sites, 10**9)
    probe = Probe(rows_for("inputs", subject.sites), frozen.widths, True)

    def drawn(seed):
        objective = LensObjective(probe, frozen, frozen, Settings(seed=seed, batch_size=8, warm_until=1.0))
        return objective._rows(0), objective.terms(0, 0, 1)

    (first, terms), (again, same), (other, others) = drawn(0), drawn(0), drawn(1)
    assert first == again and torch.equal(terms.divergence, same.divergence)
    assert first != other and sorted(terms.divergence.tolist()) != sorted(others.divergence.tolist())
    assert terms.group.tolist() != others.group.tolist()


def test_outputs_that_grow_with_the_text_are_not_kept_whichever_text_comes_first():
    subject, texts = tiny.subject("bert", "qa"), tiny.texts("bert", "qa")
    for order in (texts, texts[::-1]):
        frozen = FrozenTexts(subject, order, subject.sites, 10**9)
        assert frozen._kept is None
        for row in (0, 1):
            batch, run = frozen.draw([row])
            assert run.output.shape[-1] == batch.shape[1]

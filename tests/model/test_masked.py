"""The one place where tokens are taken away, and work that is halved until it fits into memory."""

from dataclasses import replace

import pytest
import torch

import tiny
from masklens import explain
from masklens.errors import MethodError
from masklens.evaluation.verify import Verifier, verify
from masklens.model.masking import Baseline, Fill, Masked, edited_run
from masklens.model.memory import in_halves


def outputs(masked, rows, keep):
    return masked.read(torch.tensor(rows), keep, lambda rows, batch, output: output)


@pytest.fixture
def views():
    """Some views of a few texts: the batch, rows and keep (views, tokens)."""
    subject = tiny.subject("bert")
    batch = subject.encode(tiny.SENTENCES)
    rows = [i for i in range(len(batch)) for _ in range(3)]
    keep = torch.rand(len(rows), batch.shape[1], generator=torch.Generator().manual_seed(0)) < 0.5
    return subject, batch, rows, keep


@pytest.mark.parametrize("how", ["mask", "drop", torch.ones(16)], ids=["mask", "drop", "vector"])
def test_answers_are_in_the_order_of_the_views(views, how):
    subject, batch, rows, keep = views
    together = outputs(Masked(subject, batch, how), rows, keep | batch.special[rows] & batch.valid[rows])
    few = Masked(subject, batch, how, tokens_at_once=1)
    alone = outputs(few, rows, keep | batch.special[rows] & batch.valid[rows])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("site", [0, 2])
def test_known_states_change_nothing(views, site):
    subject, batch, rows, keep = views
    state = subject.states(batch, [site]).states[site]
    plain, known = Baseline(torch.ones(16), site), Baseline(torch.ones(16), site, state)
    a, b = (outputs(Masked(subject, batch, how), rows, keep) for how in (plain, known))
    torch.testing.assert_close(a, b)
    soft = edited_run(subject, batch.take(rows), site, state[rows], keep.float(), torch.ones(16))
    torch.testing.assert_close(soft, b)


def test_each_text_can_have_a_baseline_of_its_own(views):
    subject, batch, rows, keep = views
    each = torch.randn(*batch.shape, 16, generator=torch.Generator().manual_seed(1))
    found = outputs(Masked(subject, batch, Baseline(each)), rows, keep)
    for i, row in enumerate(rows):
        alone = edited_run(subject, batch.take([row]), 0, None, keep[i : i + 1], each[row : row + 1])
        torch.testing.assert_close(found[i : i + 1], alone, atol=1e-5, rtol=1e-4)


def test_no_views_give_no_answers(views):
    subject, batch, _, keep = views
    assert outputs(Masked(subject, batch), [], keep[:0]).shape == (0,)


def test_work_is_halved_until_it_fits():
    tried = []

    def work(rows):
        tried.append(len(rows))
        if len(rows) > 2:
            raise torch.OutOfMemoryError("too large")
        return sum(rows)

    assert list(in_halves(work, [1, 2, 3, 4, 5])) == [([1, 2], 3), ([3], 3), ([4, 5], 9)]
    assert tried == [5, 2, 3, 1, 2]


def test_one_row_that_fails_and_other_errors_are_raised():
    def fail(error):
        def work(rows):
            raise error

        return work

    with pytest.raises(torch.OutOfMemoryError):
        list(in_halves(fail(torch.OutOfMemoryError("too large")), [1, 2]))
    with pytest.raises(RuntimeError, match="something else"):
        list(in_halves(fail(RuntimeError("something else")), [1, 2]))


def test_texts_are_encoded_once_for_all_sites(monkeypatch):
    subject = tiny.subject("bert")
    found = explain(subject, tiny.SENTENCES, "gradcam")
    expected = [verify(subject, found, site=site) for site in found[0].sites]
    encoded, plain = [], type(subject).encode
    monkeypatch.setattr(type(subject), "encode", lambda *args: encoded.append(1) or plain(*args))
    unknown = type(subject)(subject.module, subject.tokenizer)  # nothing is remembered of it
    together = Verifier(unknown, tiny.SENTENCES).at_sites(found, found[0].sites)
    for one, other in zip(sum(together, []), sum(expected, []), strict=True):
        assert (one.site, one.verdict, one.removed) == (other.site, other.verdict, other.removed)
        assert one.divergence == pytest.approx(other.divergence, abs=1e-6)
    assert len(encoded) == 1


def test_removed_tokens_are_filled_in_from_the_kept_ones_alone(views):
    """A second, slow way, text by text; and what was removed has no say in it."""
    subject, batch, rows, keep = views
    language = tiny.model("bert", "mlm", seed=3).eval()
    keep = (keep | batch.special[rows]) & batch.valid[rows]
    found = outputs(Masked(subject, batch, Fill(language)), rows, keep)
    special = subject.tokenizer.all_special_ids
    for i, row in enumerate(rows):
        ids = batch.inputs["input_ids"][row][batch.valid[row]].clone()
        gone = ~keep[i][batch.valid[row]]
        ids[gone] = subject.tokenizer.mask_token_id
        logits = language(input_ids=ids[None]).logits[0]
        logits[:, special] = -torch.inf
        ids[gone] = logits.argmax(-1)[gone]
        torch.testing.assert_close(
            found[i], subject.module(input_ids=ids[None]).logits[0], atol=1e-5, rtol=1e-4
        )
    other = replace(batch, inputs=dict(batch.inputs))
    other.inputs["input_ids"] = torch.where(keep[::3].cpu(), batch.inputs["input_ids"], 7)  # 3 views a text
    again = outputs(Masked(subject, other, Fill(language)), rows[::3], keep[::3])
    torch.testing.assert_close(found[::3], again)
    whole = outputs(Masked(subject, batch, Fill(language)), rows, batch.valid[rows])
    torch.testing.assert_close(whole, subject.run(batch).output[rows], atol=1e-5, rtol=1e-4)


def test_what_cannot_fill_is_refused():
    subject = tiny.subject("bert")
    batch = subject.encode(tiny.SENTENCES)
    with pytest.raises(MethodError, match="no LM head"):
        Masked(subject, batch, "fill")
    with pytest.raises(MethodError, match="by a masked language model, this is a BertForSequence"):
        Masked(subject, batch, Fill(subject.module))
    with pytest.raises(MethodError, match="width 32, this model 16"):
        Masked(subject, batch, Fill(tiny.model("bert", "mlm", hidden_size=32)))
    with pytest.raises(MethodError, match="'mask', 'drop', 'fill'"):
        Masked(subject, batch, "erase")


def test_a_masked_language_model_fills_for_itself():
    subject = tiny.subject("bert", "mlm")
    batch = subject.encode(["the [MASK] is dull ."])
    keep = batch.valid.clone()
    keep[0, 4] = False
    moved = outputs(Masked(subject, batch, "fill"), [0], keep) - subject.run(batch).output
    assert moved.abs().max() > 0

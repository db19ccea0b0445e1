"""Lenses of causal language models, on a planted one whose needed words are known (asked.py)."""

import numpy as np
import pytest
import torch

import asked
import masklens as ml
from masklens.diffmask.judging import judge
from masklens.diffmask.lens import DiffMask
from masklens.diffmask.networks import Probe, read_from, rows_for
from masklens.diffmask.texts import FrozenTexts
from masklens.errors import LensError
from masklens.model.masking import edited_run

pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning")
TEST = asked.examples(120, seed=99)
LAST = 3
"""the deepest site"""


@pytest.fixture(scope="module")
def subject():
    return asked.subject()


@pytest.fixture(scope="module")
def lenses(subject):
    """With fewer steps than by default, at the embeddings and above the last block."""
    return {
        over: DiffMask.fit(subject, asked.texts(600), over, sites=[1, LAST], steps=500)
        for over in ("inputs", "states")
    }


def kinds(example, tokens):
    """What each token is to the answer."""
    known = {"<s>": "start", example.asked: "asked", example.other: "other"}
    return [known.get(t, "question" if t.endswith("?") else "filler") for t in tokens]


def kept_by_kind(lens, site):
    found = {}
    for example, a in zip(TEST, lens.explain([one.text for one in TEST]), strict=True):
        for kind, keep in zip(kinds(example, a.tokens), a.at(site), strict=True):
            found.setdefault(kind, []).append(keep > 0.5)
    return {kind: float(np.mean(values)) for kind, values in found.items()}


def test_the_planted_model_answers(subject):
    output = subject.run(subject.encode([one.text for one in TEST])).output
    names = subject.tokenizer.convert_ids_to_tokens(output[:, 0].argmax(-1).tolist())
    assert names == [one.asked for one in TEST]


@pytest.mark.parametrize("site", [1, LAST])
def test_fillers_go_and_the_word_that_was_asked_for_stays(site, lenses):
    kept = kept_by_kind(lenses["inputs"], site)
    assert kept["filler"] < 0.1 and kept["asked"] > 0.8 and kept["start"] == 1, kept
    assert kept["other"] < kept["asked"] - 0.1, kept  # only the last position knows what is asked for
    assert all(d.ok and d.agreement > 0.9 for d in lenses["inputs"].diagnostics)


def test_above_the_last_block_only_the_last_state_matters(lenses):
    kept = kept_by_kind(lenses["states"], LAST)
    assert kept["question"] > 0.9 and max(kept[k] for k in ("asked", "other", "filler")) < 0.1, kept


def test_states_of_the_asked_word_are_needed_below_attention(lenses):
    kept = kept_by_kind(lenses["states"], 1)
    assert kept["filler"] < 0.1 and kept["asked"] > 0.8, kept


def test_padding_changes_neither_masks_nor_divergence(subject, lenses):
    short, long = sorted(asked.texts(40, seed=3), key=len)[::39]
    for lens in lenses.values():
        (alone,), (padded, _) = lens.explain([short]), lens.explain([short, long])
        np.testing.assert_allclose(alone.scores, padded.scores, atol=1e-5)
        (proof,), (beside, _) = (
            ml.verify(subject, lens.explain(some), replace=lens) for some in ([short], [short, long])
        )
        assert proof.divergence == pytest.approx(beside.divergence, abs=1e-5)
        assert proof.share_removed == beside.share_removed > 0


def test_the_start_mark_is_never_dropped(subject, lenses):
    """Not when gates say so, not in verification, and it is not counted."""
    batch = subject.encode(asked.texts(8))
    assert not subject.task.removable(batch)[:, 0].any() and batch.tokens[0][0] == "<s>"
    reference, states = subject.states(batch, [1])
    nothing = torch.zeros(batch.shape, dtype=torch.bool)
    state = states[1].clone()
    state[batch.valid & ~batch.special] = 0.5
    by_hand = subject.run(batch, {1: state}).output
    for keep in (nothing, nothing.float()):
        found = edited_run(subject, batch, 1, states[1], keep, torch.full((32,), 0.5))
        torch.testing.assert_close(found, by_hand)
    moved = state.clone()
    moved[:, 0] = 0.5
    assert not torch.allclose(subject.run(batch, {1: moved}).output, by_hand)  # it would matter
    lens = lenses["states"]
    for a, proof in zip(
        lens.explain(batch.texts), ml.verify(subject, lens.explain(batch.texts), replace=lens), strict=True
    ):
        assert a.scores[:, 0].tolist() == [1.0, 1.0]
        kept = (a.at(LAST)[1:] > 0.5).mean()
        assert proof.share_removed == pytest.approx(1 - kept)


def test_diagnostics_are_those_of_the_model_run_again(subject, lenses):
    """The slow way, text by text: hard masks, the KL of the next token after the prompt, by hand."""
    lens, held = lenses["inputs"], asked.texts(20, seed=5)
    texts = FrozenTexts(subject, held, lens.probe.reads, 10**9)
    (found,) = judge(lens.probe, texts, [1])
    moved, kept, count = [], 0, 0
    for text in held:
        batch = subject.encode([text])
        plain = subject.module(**batch.inputs, output_hidden_states=True)
        words, last = subject.module.get_input_embeddings()(batch.inputs["input_ids"]), batch.shape[1] - 1
        state = subject.states(batch, [LAST]).states[LAST]
        read = torch.cat(
            [
                torch.stack([words[0, i], state[0, i], state[0, last]], 0).flatten()[None]
                for i in range(last + 1)
            ]
        )
        near = torch.tensor([[1 / (1 + last - i)] for i in range(last + 1)])
        keep = lens.probe.gate(1)(torch.cat([read, near], -1)) > -0.2 * np.log(5)  # P(kept) > 0.5
        keep[0] = True
        words = torch.where(keep[None, :, None], words, lens.probe.baseline(1))
        edited = subject.module(inputs_embeds=words, attention_mask=batch.inputs["attention_mask"])
        p, q = (x.logits[0, -1].log_softmax(-1) for x in (plain, edited))
        moved.append(float((p.exp() * (p - q)).sum()))
        kept, count = kept + int(keep[1:].sum()), count + last
    assert found.divergence == pytest.approx(np.mean(moved), abs=1e-5)
    assert found.kept == pytest.approx(kept / count) and 0.1 < found.kept < 0.9


def test_a_saved_lens_says_the_same(subject, lenses, tmp_path):
    for over, lens in lenses.items():
        again = DiffMask.from_pretrained(lens.save_pretrained(tmp_path / over), subject)
        (one,), (other,) = lens.explain([TEST[0].text]), again.explain([TEST[0].text])
        np.testing.assert_array_equal(one.scores, other.scores)


def test_gates_of_a_causal_model_need_the_reader(subject, lenses):
    batch = subject.encode([TEST[0].text])
    _, states = subject.states(batch)
    with pytest.raises(LensError, match="give the reader"):
        lenses["inputs"].keep(states)
    assert lenses["inputs"].keep(states, subject.task.reader(batch)).shape == (2, 1, batch.shape[1])


def test_what_a_gate_reads_from_elsewhere():
    state = torch.arange(24.0).view(2, 4, 3)
    there, near = read_from(state, torch.tensor([3, 1]))
    assert torch.equal(there[0], state[0, 3].expand(4, 3)) and torch.equal(there[1], state[1, 1].expand(4, 3))
    torch.testing.assert_close(near[0, :, 0], torch.tensor([1 / 4, 1 / 3, 1 / 2, 1]))
    probe = Probe(rows_for("inputs", [0, 2]), {0: 3, 2: 5}, hidden=4, causal=True)
    assert [len(gate.mean) for gate in probe.gates] == [3 + 3 + 3 + 1, 3 + 5 + 5 + 1]


def test_a_continuation_is_no_part_of_the_text(subject, lenses):
    """The masks of a prompt are the same whatever continuation is asked about."""
    text, lens = TEST[0].text, lenses["inputs"]
    (plain,), (asked_for,) = lens.explain([text]), lens.explain([text], target=["colour1 animal2"])
    assert asked_for.tokens == plain.tokens
    np.testing.assert_allclose(asked_for.scores, plain.scores, atol=1e-6)


def test_answers_are_explained_step_by_step(subject, lenses):
    lens = lenses["inputs"]
    made = ml.explain_generation(
        subject, TEST[0].text, "diffmask", sites=[LAST], max_new_tokens=2, method_options={"lens": lens}
    )
    (alone,) = lens.explain([TEST[0].text], sites=[LAST])
    np.testing.assert_allclose(made.step(0).scores[0], alone.scores[0], atol=1e-5)
    assert made.steps[0] == TEST[0].asked


def test_a_key_that_is_never_masked_cannot_be_found_unneeded(subject):
    """Negative control: with the asked word marked as special, gates cannot touch it."""

    class Fixed(type(subject.task)):
        def removable(self, batch):
            ids = batch.inputs["input_ids"]
            keys = torch.tensor(subject.tokenizer.convert_tokens_to_ids(sum(asked.KEYS, [])))
            return super().removable(batch) & ~torch.isin(ids, keys)

    fixed = ml.Subject(subject.module, subject.tokenizer, task=Fixed(subject.tokenizer))
    lens = DiffMask.fit(fixed, asked.texts(200), "inputs", sites=[1], steps=100)
    (found,) = lens.diagnostics
    assert found.ok and found.kept < 0.2  # all but the question can go
    for a in lens.explain([one.text for one in TEST[:20]]):
        assert all(
            keep == 1 for token, keep in zip(a.tokens, a.at(1), strict=True) if token in sum(asked.KEYS, [])
        )

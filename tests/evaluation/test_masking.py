"""What is hidden is not computed, and it makes no difference."""

import numpy as np
import pytest
import torch

import planted
import tiny
from masklens.errors import MethodError, ModelError
from masklens.evaluation.masking import Views, irrelevant_removal
from masklens.model.masking import Baseline

PACKED = ("bert", "roberta", "electra", "mpnet", "gpt2")
SLOW = ("albert", "deberta-v2", "t5", "llama")
LANGUAGE = [("bert", "mlm"), ("gpt2", "causal"), ("llama", "causal"), ("gemma", "causal")]


def every_view(views, seed=0):
    """Several random views of every text, nothing visible and everything visible among them."""
    draw = np.random.default_rng(seed).random((len(views), 6, views.removable.shape[1])) < 0.5
    draw[:, 0], draw[:, 1] = False, True
    return draw


@pytest.mark.parametrize(("family", "head"), [*((one, "classification") for one in PACKED), *LANGUAGE])
def test_packing_equals_the_slow_way(family, head):
    """A language model is read at a token that may be hidden itself, and so may all others."""
    subject, texts = tiny.subject(family, head), tiny.texts(family, head)
    fast = Views(subject, texts)
    slow = Views(subject, texts, pack=False)
    assert fast.masked.packed and not slow.masked.packed
    keep = every_view(fast)
    a, b = fast.read_steps(keep), slow.read_steps(keep)
    assert np.allclose(a.log_probability, b.log_probability, atol=1e-5)
    assert np.allclose(a.divergence, b.divergence, atol=1e-5)
    assert (a.agrees == b.agrees).all()
    assert np.ptp(a.log_probability, axis=1).min() > 1e-3, "hiding tokens changed nothing"


def test_a_window_of_attention_is_noticed_in_long_texts():
    """Packed tokens stand closer together, so that more of them are in the window of 8."""
    subject = tiny.subject("mistral", "causal")
    short, long = ["the plot"] * 6, ["the plot is dull . " * 6]
    assert Views(subject, short).masked.packed
    assert not Views(subject, short + long).masked.packed


def test_it_is_noticed_where_short_texts_came_before():
    """What was tried on short texts says nothing about longer ones; about shorter ones it does."""
    subject, short, long = tiny.subject("mistral", "causal"), ["the plot"], ["the plot is dull . " * 6]
    alone, after = Views(subject, long), Views(subject, long, like=Views(subject, short))
    keep = every_view(alone)
    a, b = alone.read_steps(keep), after.read_steps(keep)
    assert np.allclose(a.divergence, b.divergence, atol=1e-5)
    assert Views(subject, short, like=Views(subject, ["the plot is"])).masked.packed
    assert not Views(subject, short, like=alone).masked.packed


def test_one_manner_of_removal_after_another():
    """What was tried for one says nothing about another: ALBERT drops tokens, but cannot hide them packed."""
    subject, text = tiny.subject("albert"), ["the plot is dull ."]
    hidden, dropped = Views(subject, text), Views(subject, text, how="drop")
    keep = every_view(hidden)
    for how, first, other in (("drop", dropped, hidden), ("mask", hidden, dropped)):
        found = Views(subject, text, how=how, like=other).read_steps(keep).divergence
        assert np.allclose(found, first.read_steps(keep).divergence, atol=1e-6)
        assert np.abs(found - other.read_steps(keep).divergence).max() > 1e-3


def test_mpnet_needs_the_distances(monkeypatch):
    """Without its row in the table of families MPNet would see wrong distances: the trial must notice."""
    from masklens.model import families

    monkeypatch.delitem(families.FAMILIES, "mpnet")
    assert not Views(tiny.subject("mpnet"), tiny.SENTENCES).masked.packed


def test_mpnet_is_left_as_it_was(unchanged):
    subject = tiny.subject("mpnet")
    unchanged(subject.module)
    views = Views(subject, tiny.SENTENCES)
    views.read_steps(every_view(views))
    unchanged(subject.module)


@pytest.mark.parametrize("family", SLOW)
def test_other_families_take_the_slow_way(family):
    views = Views(tiny.subject(family), tiny.SENTENCES)
    assert not views.masked.packed
    found = views.read_steps(every_view(views))
    assert np.isfinite(found.log_probability).all()
    assert np.ptp(found.log_probability, axis=1).min() > 0


@pytest.mark.parametrize(
    ("family", "head"), [("bert", "qa"), ("bert", "tagging"), ("t5", "seq2seq"), ("opt", "causal")]
)
def test_tasks_with_an_output_for_each_token(family, head):
    views = Views(tiny.subject(family, head), tiny.texts(family, head))
    assert not views.masked.packed
    assert np.allclose(views.whole().divergence, 0, atol=1e-5)
    nothing = views.read_steps(np.zeros((len(views), 1, views.removable.shape[1]), dtype=bool))
    assert (nothing.divergence > 0).all()


def test_a_hidden_token_is_masked_and_leaves_attention():
    made = planted.subject()
    views = Views(made, ["fast dull plot ."])
    keep = views.removable.copy()
    keep[0, 1] = False  # fast
    rows, visible = torch.tensor([0]), torch.from_numpy(keep) | ~torch.from_numpy(views.removable)
    batch, output = views.masked._masked(rows, visible)
    assert batch.inputs["attention_mask"][0].tolist() == [1, 0, 1, 1, 1, 1]
    assert batch.inputs["input_ids"][0, 1] == made.tokenizer.mask_token_id
    assert output[0, 1] == pytest.approx(-2.5)


def test_special_tokens_and_masks_stay_visible(bert):
    views = Views(bert, ["a [MASK] plot ."])
    tokens = views.batch.tokens[0]
    shown = [token for token, hidden in zip(tokens, views.removable[0], strict=True) if not hidden]
    assert shown == ["[CLS]", "[MASK]", "[SEP]"]


def test_equal_views_are_run_once(bert, monkeypatch):
    views = Views(bert, tiny.SENTENCES)
    ran = []
    plain = views.masked.run
    monkeypatch.setattr(views.masked, "run", lambda rows, keep: ran.extend(rows) or plain(rows, keep))
    keep = every_view(views)
    views.read_steps(np.concatenate([keep, keep], axis=1))
    assert len(ran) <= keep.shape[0] * (keep.shape[1] - 1)  # the whole texts are known
    count = len(ran)
    views.read_steps(keep)
    assert len(ran) == count


def test_views_do_not_depend_on_other_texts(bert):
    together = Views(bert, tiny.SENTENCES)
    keep = every_view(together)
    found = together.read_steps(keep).log_probability
    for i, text in enumerate(tiny.SENTENCES):
        alone = Views(bert, [text])
        width = alone.removable.shape[1]
        assert np.allclose(alone.read_steps(keep[i : i + 1, :, :width]).log_probability, found[i], atol=1e-5)


def test_drop_is_the_shorter_text():
    made = planted.transformer()
    views = Views(made, ["a fast plot ."], how="drop")
    keep = np.array([[t != "fast" for t in views.batch.tokens[0]]])
    expected = made.run(made.encode(["a plot ."])).output.softmax(-1)[0, int(views.target[0])]
    assert views.read([0], keep).probability[0] == pytest.approx(float(expected), abs=1e-5)
    masked = Views(made, ["a fast plot ."]).read([0], keep).probability[0]
    assert masked != pytest.approx(float(expected), abs=1e-5), "the places of the tokens make no difference"


@pytest.mark.parametrize(("family", "head"), [("bert", "qa"), ("bert", "mlm"), ("gpt2", "causal")])
def test_tokens_cannot_be_dropped_where_positions_are_read(family, head):
    with pytest.raises(MethodError, match="replace='mask'"):
        Views(tiny.subject(family, head), tiny.texts(family, head)[:1], how="drop")


def test_a_baseline_takes_the_place_of_the_word_embedding(bert):
    text = "a fast plot ."
    vector = torch.randn(16)
    views = Views(bert, [text], how=Baseline(vector))
    keep = np.array([[t != "plot" for t in views.batch.tokens[0]]])
    state = bert.states(bert.encode([text]), [0]).states[0].clone()
    state[0, ~torch.from_numpy(keep[0])] = vector
    output = bert.run(bert.encode([text]), replace={0: state}).output
    expected = float(output.log_softmax(-1)[0, int(views.target[0])])
    assert views.read([0], keep).log_probability[0] == pytest.approx(expected, abs=1e-5)


def test_halves_a_batch_that_does_not_fit(bert, monkeypatch):
    views = Views(bert, tiny.SENTENCES)
    expected = views.read_steps(every_view(views)).log_probability
    small = Views(bert, tiny.SENTENCES)
    plain = small.masked.run

    def tight(rows, keep):
        if len(rows) > 2:
            raise torch.OutOfMemoryError("too large")
        return plain(rows, keep)

    monkeypatch.setattr(small.masked, "run", tight)
    assert np.allclose(small.read_steps(every_view(small)).log_probability, expected, atol=1e-5)


def test_errors_say_what_to_do(bert):
    with pytest.raises(MethodError, match="'mask', 'drop'"):
        Views(bert, ["a"], how="blank")
    made = planted.subject()
    made.tokenizer = None
    with pytest.raises(ModelError, match="replace=tensor"):
        Views(made, ["fast"])


def test_an_inserted_phrase_that_is_dropped_leaves_the_text():
    subject, texts = tiny.subject("bert"), tiny.SENTENCES
    assert np.allclose(irrelevant_removal(subject, texts, "drop"), 0, atol=1e-6)
    masked = irrelevant_removal(subject, texts, "mask")
    assert (masked > 1e-6).all(), "the tokens after the phrase are at other places"


def test_a_bag_of_words_does_not_feel_a_masked_phrase():
    made = planted.subject()
    assert np.allclose(irrelevant_removal(made, ["fast plot"], "mask", phrase="dull dull"), 0)
    kept = irrelevant_removal(made, ["fast plot"], Baseline(torch.tensor([-3.0])), phrase="the the")
    p, q = planted.sigmoid(2.5), planted.sigmoid(2.5 - 6)
    assert kept[0] == pytest.approx(p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q)))

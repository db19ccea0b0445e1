"""A class of which a lens keeps much less than of others is told."""

import pytest
import torch

import sevens
import tiny
import versus
from masklens import DiffMask
from masklens.methods.favoured import Favoured, favoured
from masklens.diffmask.objective import FrozenTexts
from masklens.diffmask.networks import Probe, rows_for

VERSUS = {"margin": 0.05, "steps": 600, "lr": 1e-2, "baseline_lr": 1e-2, "batch_size": 64, "hidden": 16}


def probe_that_keeps(frozen, of_no, of_yes):
    """A probe over inputs whose every row keeps these shares of texts without and with a seven."""
    probe = Probe(rows_for("inputs", frozen.subject.sites), frozen.widths, True, hidden=4)

    def log_keep(states, valid):
        seven = (states[0][..., 0] > 0.5).any(1)
        share = torch.where(seven, of_yes, of_no)[:, None]
        place = torch.arange(states[0].shape[1])
        keep = torch.where(place < share * 4, 0.9, 0.1)
        return keep.log().expand(len(probe.rows), -1, -1)

    probe.log_keep = log_keep
    return probe


def four_digits(count):
    return [text for text in sevens.texts(40 * count, seed=3) if len(text) == 4][:count]


def test_a_class_that_needs_nothing_is_told_at_every_site():
    frozen = FrozenTexts(sevens.subject(), four_digits(60), sevens.subject().sites, 0)
    found = favoured(probe_that_keeps(frozen, 0.0, 0.5), frozen)
    assert [one.site for one in found] == list(frozen.subject.sites)
    assert found[0] == Favoured(frozen.subject.sites[0], "no", 0.0, 0.5, "no")
    assert str(found[0]).endswith(
        "0% is kept of texts of which the model says 'no', 50% of the others; "
        "with everything dropped it says so too"
    )


def test_a_class_is_told_that_emptied_texts_are_not_of():
    """A baseline can lean towards a class without saying it."""
    frozen = FrozenTexts(sevens.subject(), four_digits(60), sevens.subject().sites, 0)
    found = favoured(probe_that_keeps(frozen, 0.75, 0.25), frozen)
    assert [one[1:] for one in found] == [("yes", 0.25, 0.75, "no")] * len(frozen.subject.sites)
    assert str(found[0]).endswith("says 'yes', 75% of the others; with everything dropped it says 'no'")


@pytest.mark.parametrize(("of_no", "of_yes"), [(0.5, 0.5), (0.25, 0.25), (1.0, 1.0)])
def test_masks_that_keep_as_much_of_all_are_not(of_no, of_yes):
    frozen = FrozenTexts(sevens.subject(), four_digits(60), sevens.subject().sites, 0)
    assert favoured(probe_that_keeps(frozen, of_no, of_yes), frozen) == []


def test_a_class_of_few_texts_is_not_judged():
    texts = [text for text in four_digits(200) if "7" not in text][:30] + ["1727"] * 9
    frozen = FrozenTexts(sevens.subject(), texts, sevens.subject().sites, 0)
    assert favoured(probe_that_keeps(frozen, 0.0, 0.5), frozen) == []


@pytest.mark.parametrize("head", ["qa", "mlm", "multi_label"])
def test_tasks_without_a_class_have_none(head):
    subject = tiny.subject("bert", head)
    frozen = FrozenTexts(subject, tiny.texts("bert", head), subject.sites, 0)
    assert favoured(Probe(rows_for("states", subject.sites), frozen.widths, False), frozen) == []


@pytest.mark.filterwarnings("ignore:.*training texts are few")
@pytest.mark.parametrize("over", ["inputs", "states"])
@pytest.mark.parametrize("seed", [0, 1])
def test_anchored_baselines_do_not_imitate_a_class(over, seed):
    lens = DiffMask.fit(versus.subject(), versus.texts(400), over=over, seed=seed, **VERSUS)
    assert all(d.ok and d.agreement == 1 for d in lens.diagnostics)
    assert kept_of_seven_and_three(lens) == ([2], [2])
    assert lens.probe.baseline(0)[:2].abs().max() < 0.25
    assert not any("everything dropped" in event for event in lens.events)


@pytest.mark.filterwarnings("ignore:.*training texts are few")
@pytest.mark.parametrize(("over", "seed"), [("inputs", 0), ("states", 0)])
def test_baselines_without_an_anchor_can_imitate_a_class(over, seed):
    """The lens is within its margin, and verifies; but it does not explain what it drops."""
    lens = DiffMask.fit(versus.subject(), versus.texts(400), over=over, seed=seed, anchor=0.0, **VERSUS)
    assert all(d.ok and d.agreement == 1 for d in lens.diagnostics)
    assert kept_of_seven_and_three(lens) == ([2], [])
    assert lens.probe.baseline(0)[1] > 0.5  # where the embedding of 3 has its 1


@pytest.mark.filterwarnings("ignore:.*training texts are few")
def test_baselines_that_are_left_after_warming_do_not_imitate_a_class():
    how = {**VERSUS, "joint": False, "anchor": 0.0}
    lens = DiffMask.fit(versus.subject(), versus.texts(400), over="states", **how)
    assert kept_of_seven_and_three(lens) == ([2], [2])


def kept_of_seven_and_three(lens):
    """Which places a lens keeps, at its last site, of a text with a 7 and of one with a 3."""
    found = lens.explain(["19724", "10344"])
    return tuple((a.scores[-1] > 0.5).nonzero()[0].tolist() for a in found)

"""What a model says with everything dropped: told where a lens keeps less of the texts of that class."""

import pytest
import torch

import sevens
import tiny
import versus
from masklens import DiffMask
from masklens.methods.defaults import Default, defaults
from masklens.objectives import FrozenTexts
from masklens.probes import Probe, rows_for


def probe_that_keeps(frozen, of_no, of_yes):
    """A probe over inputs whose every row keeps these shares of texts without and with a seven."""
    probe = Probe(rows_for("inputs", frozen.subject.sites), frozen.widths, True, hidden=4)

    def log_keep(states):
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
    found = defaults(probe_that_keeps(frozen, 0.0, 0.5), frozen)
    assert [one.site for one in found] == list(frozen.subject.sites)
    assert found[0] == Default(frozen.subject.sites[0], "no", 0.0, 0.5)
    assert "says 'no'; 0% is kept of texts of which it says so anyway, 50% of the others" in str(found[0])


@pytest.mark.parametrize(("of_no", "of_yes"), [(0.5, 0.5), (0.5, 0.0), (0.25, 0.25)])
def test_masks_that_keep_as_much_or_more_of_the_default_are_not(of_no, of_yes):
    frozen = FrozenTexts(sevens.subject(), four_digits(60), sevens.subject().sites, 0)
    assert defaults(probe_that_keeps(frozen, of_no, of_yes), frozen) == []


def test_a_class_of_few_texts_is_not_judged():
    texts = [text for text in four_digits(200) if "7" not in text][:30] + ["1727"] * 9
    frozen = FrozenTexts(sevens.subject(), texts, sevens.subject().sites, 0)
    assert defaults(probe_that_keeps(frozen, 0.0, 0.5), frozen) == []


@pytest.mark.parametrize("head", ["qa", "mlm", "multi_label"])
def test_tasks_without_a_class_have_none(head):
    subject = tiny.subject("bert", head)
    frozen = FrozenTexts(subject, tiny.texts("bert", head), subject.sites, 0)
    assert defaults(Probe(rows_for("states", subject.sites), frozen.widths, False), frozen) == []


@pytest.mark.filterwarnings("ignore:.*training texts are few")
@pytest.mark.parametrize("over", ["inputs", "states"])
@pytest.mark.parametrize("joint", [True, False])
def test_baselines_learned_beside_the_gates_imitate_a_class_and_others_do_not(over, joint):
    """Both lenses are within their margin, and verify; only one explains what it drops."""
    how = {"margin": 0.05, "steps": 600, "lr": 1e-2, "baseline_lr": 1e-2, "batch_size": 64, "hidden": 16}
    lens = DiffMask.fit(versus.subject(), versus.texts(400), over=over, joint=joint, **how)
    assert all(d.ok and d.agreement == 1 for d in lens.diagnostics)
    seven, three = ((a.scores[-1] > 0.5).tolist() for a in lens.explain(["19724", "10344"]))
    told = [
        event for event in lens.events if "with everything dropped the model says 'no'; 0% is kept" in event
    ]
    assert seven == [False, False, True, False, False]
    if joint:
        assert not any(three) and len(told) == 2
        assert lens.probe.baseline(0)[1] > 0.5  # where the embedding of 3 has its 1
    else:
        assert three == [False, False, True, False, False] and not told

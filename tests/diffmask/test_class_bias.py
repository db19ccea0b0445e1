"""A class of which a lens keeps much less than of others is told."""

import pytest
import torch

import sevens
import tiny
import versus
from lens_parts import frozen
from masklens import DiffMask, Subject
from masklens.diffmask.class_bias import ClassBias, class_biases
from masklens.diffmask.networks import Probe, rows_for
from masklens.model.tap import Point
from masklens.tasks.classification import Classification

VERSUS = {"margin": 0.05, "steps": 300, "lr": 3e-3, "batch_size": 32, "hidden": 16}


def probe_that_keeps(frozen, of_no, of_yes):
    """A probe over inputs whose every row keeps these shares of texts without and with a seven."""
    probe = Probe(rows_for("inputs", frozen.subject.sites), frozen.widths, hidden=4)

    def keep(states):
        seven = (states[0][..., 0] > 0.5).any(1)
        share = torch.where(seven, of_yes, of_no)[:, None]
        place = torch.arange(states[0].shape[1])
        return torch.where(place < share * 4, 0.9, 0.1).expand(len(probe.rows), -1, -1)

    probe.keep = keep
    return probe


def four_digits(count):
    return [text for text in sevens.texts(40 * count, seed=3) if len(text) == 4][:count]


def test_a_class_that_needs_nothing_is_told_at_every_site():
    texts = frozen(four_digits(60))
    found = class_biases(probe_that_keeps(texts, 0.0, 0.5), texts)
    assert [one.site for one in found] == list(texts.subject.sites)
    assert found[0] == ClassBias(texts.subject.sites[0], "no", 0.0, 0.5, "no")
    assert str(found[0]).endswith(
        "0% is kept of texts of which the model says 'no', 50% of the others; "
        "with everything dropped it says so too"
    )


def test_a_class_is_told_that_emptied_texts_are_not_of():
    """A baseline can lean towards a class without saying it."""
    texts = frozen(four_digits(60))
    found = class_biases(probe_that_keeps(texts, 0.75, 0.25), texts)
    assert [one[1:] for one in found] == [("yes", 0.25, 0.75, "no")] * len(texts.subject.sites)
    assert str(found[0]).endswith("says 'yes', 75% of the others; with everything dropped it says 'no'")


def test_what_emptied_texts_say_is_what_the_rows_own_baseline_says():
    texts = frozen(four_digits(60))
    probe = probe_that_keeps(texts, 0.0, 0.5)
    with torch.no_grad():
        probe.baselines[1][0] = 1.0  # as the embedding of a seven
    assert [one.emptied for one in class_biases(probe, texts)] == ["no", "yes"]


@pytest.mark.parametrize(("of_no", "of_yes"), [(0.5, 0.5), (0.25, 0.25), (1.0, 1.0)])
def test_masks_that_keep_as_much_of_all_are_not(of_no, of_yes):
    texts = frozen(four_digits(60))
    assert class_biases(probe_that_keeps(texts, of_no, of_yes), texts) == []


def test_a_class_of_few_texts_is_not_judged():
    without = [text for text in four_digits(200) if "7" not in text][:30]
    few, enough = frozen(without + ["1727"] * 9), frozen(without + ["1727"] * 10)
    assert class_biases(probe_that_keeps(few, 0.0, 0.5), few) == []
    assert len(class_biases(probe_that_keeps(enough, 0.0, 0.5), enough)) == 2


class ThreeClasses(sevens.CountSevens):
    """A 7 says c, else a 3 says b, else a."""

    def forward(self, digits, valid):
        super().forward(digits, valid)
        seven, three = ((digits == digit) & valid for digit in (7, 3))
        said = torch.where(seven.any(1), 2, torch.where(three.any(1), 1, 0))
        return 5.0 * torch.nn.functional.one_hot(said, 3)


def test_of_several_classes_the_one_that_keeps_least_is_told():
    module = ThreeClasses()
    points = [Point(module.embed), Point(module.body)]
    subject = Subject.from_module(module, points, Classification(["a", "b", "c"]), sevens.encode)
    texts = frozen(["1724"] * 20 + ["1324"] * 20 + ["1024"] * 20, subject)
    probe = Probe(rows_for("states", subject.sites), texts.widths, hidden=4)
    words = module.embed.weight

    def keep(states):
        seven, three = ((states[0] == words[digit]).all(-1).any(1) for digit in (7, 3))
        share = torch.where(seven, 0.25, torch.where(three, 0.0, 1.0))[:, None]
        return torch.where(torch.arange(4) < 4 * share, 0.9, 0.1).expand(2, -1, -1)

    probe.keep = keep
    assert class_biases(probe, texts) == [ClassBias(site, "b", 0.0, 0.625, "a") for site in (0, 1)]


@pytest.mark.parametrize("head", ["qa", "mlm", "multi_label", "regression"])
def test_tasks_without_a_class_have_none(head):
    subject = tiny.subject("llama" if head == "regression" else "bert", head)
    texts = frozen(tiny.texts("bert", head) * 10, subject)
    assert class_biases(Probe(rows_for("states", subject.sites), texts.widths), texts) == []


@pytest.mark.filterwarnings("ignore:.*training texts are few")
@pytest.mark.parametrize("over", ["inputs", "states"])
def test_baselines_do_not_imitate_a_class(over):
    lens = DiffMask.fit(versus.subject(), versus.texts(400), over=over, **VERSUS)
    assert all(d.ok and d.agreement == 1 for d in lens.diagnostics)
    assert kept_of_seven_and_three(lens) == ([2], [2])
    assert max(lens.probe.baseline(row)[:2].abs().max() for row in (0, 1)) < 0.25
    assert lens.events == []


@pytest.mark.filterwarnings("ignore:.*training texts are few")
def test_a_fit_gets_away_from_a_baseline_that_is_a_class():
    """Also without a prior. With a baseline that is a 3, a lens could keep nothing of texts with a 3."""
    subject, how = versus.subject(), {**VERSUS, "over": "states", "anchor": 0.0}
    first = DiffMask.fit(subject, versus.texts(400), **{**how, "steps": 1})
    with torch.no_grad():
        for baseline in first.probe.baselines:
            baseline.copy_(subject.module.embed.weight[3])
    lens = DiffMask.fit(subject, versus.texts(400), start=first, **{**how, "steps": 200})
    assert all(d.ok and d.agreement == 1 for d in lens.diagnostics)
    assert kept_of_seven_and_three(lens) == ([2], [2])


def kept_of_seven_and_three(lens):
    """Which places a lens keeps, at its last site, of a text with a 7 and of one with a 3."""
    found = lens.explain(["19724", "10344"])
    return tuple((a.scores[-1] > 0.5).nonzero()[0].tolist() for a in found)

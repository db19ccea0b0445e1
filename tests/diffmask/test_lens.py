"""A lens: a planted answer, proofs by running the model again, saving and loading, and what is refused."""

import json
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import masklens as ml
import sevens
import tiny
from masklens.diffmask.judging import judge
from masklens.diffmask.lens import DiffMask, _split, card
from masklens.diffmask.networks import MaskRow
from masklens.diffmask.texts import FrozenTexts
from masklens.diffmask.trainer import CHECKPOINT, Diagnostic, Training
from masklens.errors import LensError, MethodError, TrainingError
from masklens.model.masking import mix

pytestmark = pytest.mark.filterwarnings("ignore:.*training texts are few")
FIT = {"steps": 300, "lr": 3e-3, "batch_size": 32, "margin": 0.05, "hidden": 16}
SHORT = {**FIT, "steps": 5}
TEXTS = sevens.texts(400)


@pytest.fixture(scope="module")
def fitted():
    """Lenses over states and over inputs."""
    return {over: DiffMask.fit(sevens.subject(), TEXTS, over=over, **FIT) for over in ("states", "inputs")}


@pytest.fixture(scope="module")
def lens(fitted):
    return fitted["states"]


@pytest.mark.parametrize("over", ["states", "inputs"])
def test_a_lens_keeps_the_decisive_digit_and_nothing_else(over, fitted):
    assert all(d.ok and d.agreement == 1 for d in fitted[over].diagnostics)
    for a in fitted[over].explain(["17342", "7", "90817", "123456"]):
        for token, *keep in zip(a.tokens, *a.scores, strict=True):
            assert all((k > 0.5) == (token == "7") for k in keep), (a.text, a.scores)


@pytest.mark.parametrize("over", ["states", "inputs"])
def test_sites_that_know_the_same_keep_the_same(over, fitted):
    """Nothing depends on depth: both sites of this model hold the same states."""
    first, second = (d.kept for d in fitted[over].diagnostics)
    assert first == pytest.approx(second, abs=0.02) and 0.05 < first < 0.2


def test_sites_are_fitted_as_they_would_be_in_another_order():
    one = DiffMask.fit(sevens.subject(), TEXTS, over="states", sites=[0, 1], **FIT)
    other = DiffMask.fit(sevens.subject(), TEXTS, over="states", sites=[1, 0], **FIT)
    assert other.sites == (1, 0)
    shares = [{d.site: d.kept for d in made.diagnostics} for made in (one, other)]
    assert shares[0] == pytest.approx(shares[1], abs=0.02)


def test_a_longer_fit_drops_as_much_as_a_shorter_one():
    how = {**FIT, "sites": [0], "batch_size": 16, "seed": 1}
    short, long = (
        DiffMask.fit(sevens.subject(), TEXTS, "states", **{**how, "steps": n}) for n in (300, 2000)
    )
    assert short.diagnostics[0].kept < 0.15
    assert long.diagnostics[0].kept == pytest.approx(short.diagnostics[0].kept, abs=0.05)


@pytest.mark.parametrize("over", ["states", "inputs"])
def test_what_a_lens_drops_can_be_dropped(over, fitted):
    """The proof that goes with an explanation: replace what is not kept, and run the model again."""
    lens = fitted[over]
    subject, texts = lens.subject, sevens.texts(50, seed=3)
    batch = subject.encode(texts)
    reference, states = subject.states(batch)
    for i, row in enumerate(lens.probe.rows):
        keep = (lens.keep(states)[i] > 0.5).float()
        assert keep[batch.valid].mean() < 0.5
        state, baseline = states[row.edit], lens.probe.baseline(i)
        mixed = keep[..., None] * state + (1 - keep[..., None]) * baseline
        output = subject.run(batch, replace={row.edit: mixed}).output
        assert subject.task.divergence(reference, output).mean() < 0.05
        wrong = (1 - keep[..., None]) * state + keep[..., None] * baseline
        worse = subject.run(batch, replace={row.edit: wrong}).output
        assert subject.task.divergence(reference, worse).mean() > 0.5


def test_verify_agrees_with_the_model_run_by_hand(lens):
    texts = sevens.texts(30, seed=4)
    proofs = ml.verify(lens.subject, lens.explain(texts), replace=lens)
    batch = lens.subject.encode(texts)
    reference, states = lens.subject.states(batch)
    keep = (lens.keep(states)[1] > 0.5)[..., None]
    output = lens.subject.run(batch, replace={1: torch.where(keep, states[1], lens.probe.baseline(1))}).output
    expected = lens.subject.task.divergence(reference, output)
    assert np.allclose([p.divergence for p in proofs], expected, atol=1e-5)
    assert all(p.prediction_kept for p in proofs) and np.mean([p.share_removed for p in proofs]) > 0.5
    held = ml.verify(lens.subject, lens.explain(texts), replace=lens, margin=0.05)
    assert all(p.prediction_kept and p.divergence <= 0.05 for p in held)
    assert np.mean([p.share_removed for p in held]) > 0.5


class Doubled(sevens.CountSevens):
    """The second site holds other states than the words: twice as large."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 6, bias=False)
        with torch.no_grad():
            self.body.weight.copy_(2 * torch.eye(6))


def test_a_lens_over_inputs_edits_the_words_whichever_sites_it_reads():
    made = DiffMask.fit(sevens.subject(Doubled()), TEXTS, over="inputs", sites=[1], **FIT)
    assert made.sites == (1,) and made.probe.rows == (MaskRow(1, 0, (0, 1)),)
    assert made.baseline(1).site == 0 and made.probe.reads == (0, 1)
    assert made.diagnostics[0].ok and made.diagnostics[0].kept < 0.2
    subject, texts = made.subject, sevens.texts(50, seed=3)
    proofs = ml.verify(made.subject, made.explain(texts, sites=[1]), replace=made)
    batch = subject.encode(texts)
    reference, states = subject.states(batch)
    words = mix((made.keep(states)[0] > 0.5).float(), states[0], made.probe.baseline(0))
    expected = subject.task.divergence(reference, subject.run(batch, replace={0: words}).output)
    assert np.allclose([p.divergence for p in proofs], expected, atol=1e-5) and expected.mean() < 0.05


def test_pairs_of_an_edited_and_a_read_site():
    made = DiffMask.fit(sevens.subject(Doubled()), TEXTS, over=[(0, 1)], **FIT)
    assert made.probe.rows == (MaskRow(1, 0, (1,)),) and made.diagnostics[0].ok
    assert [int(k > 0.5) for k in made.explain("17342", sites=[1])[0].scores[0]] == [0, 1, 0, 0, 0]


def test_the_model_is_left_as_it_was(lens, unchanged):
    module = lens.subject.module
    unchanged(module)
    lens.explain(["17"])
    for recipe in ("default", "published"):
        DiffMask.fit(lens.subject, sevens.texts(40), over="states", recipe=recipe, **SHORT)
        unchanged(module)


def test_diagnostics_are_of_the_held_out_texts_and_calibration_of_the_validation_texts():
    subject, held, validation = sevens.subject(), sevens.texts(60, seed=5), sevens.texts(60, seed=6)
    made = DiffMask.fit(
        subject, TEXTS, "states", held_out=held, validation=validation, **{**FIT, "steps": 60}
    )
    for texts, check in ((held, made.diagnostics), (validation, None)):
        judged = judge(made.probe, FrozenTexts(subject, texts, subject.sites, 0))
        for i, one in enumerate(judged):
            if check:
                assert check[i].divergence == pytest.approx(one.divergence, abs=1e-6)
                assert (check[i].kept, check[i].kept_error) == pytest.approx((one.kept, one.kept_error))
            else:
                assert one.divergence + 2 * one.error <= 0.05


def test_texts_are_split_into_three_parts():
    texts = [str(i) for i in range(100)]
    train, validation, held = _split(texts, 0.2, None, 0)
    assert (len(train), len(validation), len(held)) == (80, 10, 10)
    assert sorted([*train, *validation, *held], key=int) == texts
    assert _split(texts, 0.2, None, 0) == (train, validation, held) != _split(texts, 0.2, None, 1)
    assert _split(texts, ["a", "b", "c"], None, 0) == (texts, ["a", "c"], ["b"])
    assert _split(texts, ["a", "b"], ["v"], 0) == (texts, ["v"], ["a", "b"])
    assert _split(texts, ["a"], None, 0) == (texts, ["a"], ["a"])


@pytest.mark.parametrize("over", ["inputs", "states", [(0, 1)], [(1, 0), (0, 1)]])
def test_save_and_load_of_every_form(over, tmp_path):
    made = DiffMask.fit(sevens.subject(), sevens.texts(40), over=over, **SHORT)
    with torch.no_grad():
        for p in made.probe.parameters():
            p.normal_()
    assert made.save_pretrained(tmp_path) == tmp_path
    again = DiffMask.from_pretrained(tmp_path, made.subject)
    assert again.explain("17342") == made.explain("17342")
    assert again.over == made.over and again.probe.rows == made.probe.rows
    assert again.diagnostics == made.diagnostics and again.settings == made.settings
    for site in made.sites:
        assert torch.equal(again.baseline(site).vector, made.baseline(site).vector)
        assert again.baseline(site).site == made.baseline(site).site
    assert not any(p.requires_grad for p in again.probe.parameters())


class Widening(nn.Module):
    """States of different widths: 6, then 200."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.body, self.out = nn.Embedding(10, 6), nn.Linear(6, 200), nn.Linear(200, 1)

    def forward(self, digits, valid):
        return self.out((self.body(self.embed(digits)) * valid[..., None]).sum(1))[:, 0]


@pytest.mark.parametrize(
    ("over", "hidden"),
    [
        ("inputs", 7),
        ("states", 7),
        ([(0, 1)], 7),
        ([(1, 0)], 7),
        ("inputs", None),
        ([(1, 0)], None),
        ("states", None),
    ],
)
def test_sites_of_different_widths_are_fitted_saved_and_loaded(over, hidden, tmp_path):
    made = DiffMask.fit(sevens.subject(Widening()), sevens.texts(40), over, steps=5, hidden=hidden)
    again = DiffMask.from_pretrained(made.save_pretrained(tmp_path), made.subject)
    assert again.explain("17342") == made.explain("17342")


def test_the_card_says_what_can_go(lens, tmp_path):
    lens.save_pretrained(tmp_path)
    page = (tmp_path / "README.md").read_text()
    assert page == card(lens)
    assert "| layer | can go | divergence | agreement | within |" in page
    lens = DiffMask.from_pretrained(tmp_path, lens.subject)
    lens.diagnostics = [Diagnostic(4, 0.0512, 0.3, 0.975, 0.01, False)]
    lens.events = ["block 3: something"]
    page = card(lens)
    assert "| block 3 | 70.0% ± 2.0% | 0.0512 | 97.5% | NO |" in page
    assert "- block 3: something" in page and "- margin: 0.05" in page
    assert "Masks over states, for CountSevens" in page


def test_a_lens_refuses_another_model(lens, tmp_path):
    lens.save_pretrained(tmp_path)
    other = sevens.subject()
    with torch.no_grad():
        other.module.embed.weight.mul_(1.5)
    with pytest.raises(LensError, match="fitted on another model"):
        DiffMask.from_pretrained(tmp_path, other)
    with pytest.raises(LensError, match="another subject"):
        ml.explain(other, ["17"], "diffmask", lens=lens, sites=[1])
    with pytest.raises(LensError, match="no such folder"):
        DiffMask.from_pretrained(tmp_path / "none", other)
    with pytest.raises(LensError, match="does not hold a lens"):
        DiffMask.from_pretrained(tmp_path.parent, other)


def test_a_lens_is_loaded_for_its_model_in_another_number_format(lens, tmp_path):
    lens.save_pretrained(tmp_path)
    half = sevens.subject()
    half.module.bfloat16()
    again = DiffMask.from_pretrained(tmp_path, half)
    assert again.explain("17342", sites=[1])[0].scores.argmax() == 1


def test_what_fit_refuses():
    subject = sevens.subject()
    with pytest.raises(TrainingError, match="no setting 'stepz'; there are anchor, batch_size"):
        DiffMask.fit(subject, sevens.texts(20), stepz=3)
    with pytest.raises(TrainingError, match="margin is 0"):
        DiffMask.fit(subject, sevens.texts(20), margin=0)
    with pytest.raises(TrainingError, match="too few"):
        DiffMask.fit(subject, ["7"])
    with pytest.raises(TrainingError, match="recipe='best'; use 'default' or 'published'"):
        DiffMask.fit(subject, sevens.texts(20), recipe="best")
    with pytest.raises(TrainingError, match="over='words'; use 'inputs', 'states', or pairs"):
        DiffMask.fit(subject, sevens.texts(20), over="words")
    with pytest.raises(TrainingError, match="precision='half'"):
        DiffMask.fit(subject, sevens.texts(20), precision="half")
    with pytest.raises(ml.errors.SiteError, match="unknown site"):
        DiffMask.fit(subject, sevens.texts(20), sites=[7])
    with pytest.raises(ml.errors.SiteError, match="unknown site"):
        DiffMask.fit(subject, sevens.texts(20), over=[(0, 7)])
    made = DiffMask.fit(subject, sevens.texts(20), sites=[1], over="states", steps=2)
    with pytest.raises(ml.errors.SiteError, match="no site 0"):
        made.explain("17", sites=[0])


def test_few_texts_get_a_warning():
    with pytest.warns(UserWarning, match="18 training texts are few"):
        DiffMask.fit(sevens.subject(), sevens.texts(20), steps=2)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*few")
        DiffMask.fit(sevens.subject(), sevens.texts(600), steps=2)


def test_a_site_over_its_margin_gets_a_warning():
    """Calibrated on texts without a seven, of which nothing is needed, and judged on others."""
    without = [text for text in TEXTS if "7" not in text]
    with pytest.warns(UserWarning, match="words, embeddings: over the margin of 0.05 on held-out texts"):
        made = DiffMask.fit(
            sevens.subject(), TEXTS, "states", validation=without, held_out=["17", "7"], **SHORT
        )
    assert not any(d.ok for d in made.diagnostics)


def test_a_lens_learned_in_bfloat16_is_judged_on_the_model_itself(monkeypatch):
    subject, seen, run = sevens.subject(), [], Training.run
    before = {name: value.clone() for name, value in subject.module.state_dict().items()}

    def noted(self, show_progress=False):
        seen.append(
            [
                part.subject.module.embed.weight.dtype
                for part in (self.objective.train, self.objective.validation)
            ]
        )
        run(self, show_progress)

    monkeypatch.setattr(Training, "run", noted)
    lens = DiffMask.fit(subject, TEXTS, "states", precision="bfloat16", **FIT)
    assert seen == [[torch.bfloat16, torch.float32]]
    assert all(p.dtype == torch.float32 for p in (*subject.module.parameters(), *lens.probe.parameters()))
    assert all(torch.equal(before[name], value) for name, value in subject.module.state_dict().items())
    assert lens.subject is subject and all(d.ok and d.kept < 0.2 for d in lens.diagnostics)


def test_a_fit_can_begin_from_another_lens(lens):
    how = {**FIT, "steps": 1, "lr": 0.0, "start": lens}
    same = DiffMask.fit(lens.subject, TEXTS, "states", **how)
    fresh = DiffMask.fit(lens.subject, TEXTS, "states", **{**how, "start": None})
    assert [d.kept for d in same.diagnostics] == pytest.approx([d.kept for d in lens.diagnostics], abs=0.05)
    assert min(d.kept for d in fresh.diagnostics) > 0.5
    before = {name: value.clone() for name, value in lens.probe.state_dict().items()}
    more = DiffMask.fit(lens.subject, TEXTS, "states", **{**SHORT, "start": lens})  # it learns, on a copy
    assert all(torch.equal(before[name], value) for name, value in lens.probe.state_dict().items())
    assert not torch.equal(more.probe.gate(0).outer.weight, lens.probe.gate(0).outer.weight)
    assert not any(p.requires_grad for p in lens.probe.parameters())


def test_a_fit_refuses_to_begin_from_a_lens_of_another_form(fitted):
    subject = fitted["states"].subject
    with pytest.raises(LensError, match=r"over states at sites \(0, 1\)"):
        DiffMask.fit(subject, TEXTS, "inputs", start=fitted["states"], **SHORT)
    with pytest.raises(LensError, match=r"over states at sites \(0, 1\)"):
        DiffMask.fit(subject, TEXTS, "states", sites=[1], start=fitted["states"], **SHORT)


def test_an_interrupted_fit_goes_on_from_its_folder(tmp_path, monkeypatch):
    how = {**FIT, "steps": 40, "evaluate_every": 10, "over": "states"}
    straight = DiffMask.fit(sevens.subject(), TEXTS, **how)
    one_step = Training._one_step

    def interrupted(self):
        if self.step == 25:
            raise KeyboardInterrupt
        return one_step(self)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Training, "_one_step", interrupted)
        DiffMask.fit(sevens.subject(), TEXTS, folder=tmp_path, **how)
    assert (tmp_path / CHECKPOINT).exists()
    steps = []
    monkeypatch.setattr(Training, "_one_step", lambda self: steps.append(self.step) or one_step(self))
    resumed = DiffMask.fit(sevens.subject(), TEXTS, folder=tmp_path, **how)
    assert steps == list(range(20, 40))
    for name, value in straight.probe.state_dict().items():
        assert torch.equal(value, resumed.probe.state_dict()[name]), name
    assert straight.diagnostics == resumed.diagnostics and straight.history == resumed.history


@pytest.mark.parametrize("recipe", ["default", "published"])
def test_same_seed_same_lens_whatever_happened_before(recipe):
    found = []
    for before in (7, 99):
        subject = sevens.subject()
        torch.manual_seed(before)
        state = torch.get_rng_state()
        found.append(DiffMask.fit(subject, TEXTS, over="states", recipe=recipe, **SHORT).probe.state_dict())
        assert torch.equal(torch.get_rng_state(), state)  # and nothing that happens afterwards changes
    for name, value in found[0].items():
        assert torch.equal(value, found[1][name]), name


def test_explanations_do_not_depend_on_the_batch(fitted):
    for lens in fitted.values():
        texts = ["17342", "7", "908171"]
        together = lens.explain(texts)
        for text, one in zip(texts, together, strict=True):
            alone = lens.explain(text)[0]
            assert np.allclose(alone.scores, one.scores, atol=1e-6) and alone.tokens == one.tokens
            assert one.settings["over"] == lens.over


def test_states_are_replaced_by_what_is_usual_at_their_place(tmp_path):
    subject = tiny.subject("bert")
    texts = ["a fast funny movie", "the plot is dull", "funny", "the movie is a car"] * 8
    lens = DiffMask.fit(subject, texts, "states", 0.1, steps=3, batch_size=8)
    longest = max(len(subject.encode([text]).tokens[0]) for text in texts)
    assert set(lens.probe.places) == {str(site) for site in subject.sites if site > 0}
    with torch.no_grad():
        for table in lens.probe.places.values():
            table.add_(torch.randn_like(table))
        for gate in lens.probe.gates:
            gate.outer.weight.zero_()
            gate.bias.fill_(-7.0)
    table, vector = lens.probe.baseline(2), lens.probe.baselines[2]
    assert table.shape[0] == longest + 1
    assert torch.equal(table[0], vector) and torch.equal(table[-1], vector)  # [CLS], and places never seen
    longer = "the movie is a car and the plot is dull and the car is fast"
    batch, (_, states) = subject.encode([longer]), subject.states(subject.encode([longer]), [2])
    tokens = batch.shape[1]
    assert tokens > longest
    mixed = mix(torch.zeros(1, tokens), states[2], table)[0]
    for place in range(tokens):
        own = lens.probe.places["2"][place - 1] if 0 < place < longest else 0.0
        torch.testing.assert_close(mixed[place], vector + own)
    proof = ml.verify(lens.subject, lens.explain([longer]), replace=lens, site=2)[0]
    output = subject.run(batch, replace={2: mixed[None]}).output
    expected = subject.task.divergence(subject.run(batch).output, output)
    assert proof.share_removed == 1.0 and proof.divergence == pytest.approx(expected.item(), abs=1e-5)
    again = DiffMask.from_pretrained(lens.save_pretrained(tmp_path), subject)
    assert torch.equal(again.probe.baseline(2), table)
    assert json.loads((tmp_path / "lens.json").read_text())["places"] == longest - 1


def test_only_states_of_a_tokenised_text_have_a_baseline_for_each_place(lens):
    subject, texts = tiny.subject("bert"), ["a fast funny movie", "the plot is dull"] * 8
    inputs = DiffMask.fit(subject, texts, "inputs", steps=1, batch_size=4)
    assert not inputs.probe.places and not lens.probe.places and lens.probe.baseline(1).dim() == 1


def test_a_fit_begins_from_a_lens_of_shorter_texts():
    subject = tiny.subject("bert")
    short, long = ["a fast movie", "the plot is dull"] * 8, ["the movie is a car and the plot is dull"] * 16
    first = DiffMask.fit(subject, short, "states", steps=1, batch_size=4)
    more = DiffMask.fit(subject, long, "states", steps=1, batch_size=4, start=first)
    assert more.probe.places["1"].shape == first.probe.places["1"].shape


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"steps": 0}, "steps is 0"),
        ({"evaluate_every": 0}, "evaluate_every is 0"),
        ({"validation": []}, "validation= has no texts"),
        ({"over": [(0, 1), (1, 1)]}, "a site is read twice"),
    ],
)
def test_what_cannot_be_fitted_is_said_before_the_work(given, said):
    with pytest.raises(TrainingError, match=said):
        DiffMask.fit(sevens.subject(), sevens.texts(40), **given)


def test_a_fit_does_not_start_from_a_lens_of_another_model(lens):
    with pytest.raises(LensError, match="start= is a lens of another model"):
        DiffMask.fit(sevens.subject(), sevens.texts(40), over="states", start=lens)


def test_masks_of_single_texts_need_a_step():
    with pytest.raises(MethodError, match="steps is 0"):
        ml.explain(sevens.subject(), ["17"], "diffmask", steps=0)

"""DiffMask: a planted answer, single texts, saving and loading, and what is refused."""

import itertools
import json
import warnings

import numpy as np
import pytest
import torch

import masklens as ml
import sevens
import tiny
import versus
from masklens.errors import LensError, MethodError, TrainingError
from masklens.diffmask.trainer import Settings, Training
from masklens.diffmask.lens import DiffMask, _settled, _start
from masklens.diffmask.objective import FrozenTexts, LensObjective, TextObjective
from masklens.diffmask.networks import SHUT, Probe, mix, rows_for

pytestmark = pytest.mark.filterwarnings("ignore:.*training texts are few", "ignore:diffmask without lens")
FIT = {"steps": 600, "lr": 1e-2, "batch_size": 64, "margin": 0.05, "hidden": 16}


@pytest.fixture(scope="module")
def lens():
    return DiffMask.fit(sevens.subject(), sevens.texts(400), over="states", **FIT)


def test_a_lens_keeps_the_decisive_digit_and_nothing_else(lens):
    assert all(d.ok for d in lens.diagnostics)
    for a in lens.explain(["17342", "7", "90817", "123456"]):
        for token, *keep in zip(a.tokens, *a.scores, strict=True):
            assert all((k > 0.5) == (token == "7") for k in keep), (a.text, a.scores)


def test_members_each_learn_and_settle_together(lens, tmp_path):
    texts = sevens.texts(400)
    found = DiffMask.fit(sevens.subject(), texts, over="states", members=2, **{**FIT, "batch_size": 32})
    assert all(d.ok for d in found.diagnostics)
    for a in found.explain(["17342", "90817"]):
        assert all((k > 0.5) == (token == "7") for token, k in zip(a.tokens, a.scores[1], strict=True))
    assert not any(torch.equal(p[0], p[1]) for p in found.probe.gate(1).parameters())
    found.save_pretrained(tmp_path)
    assert "- members: 2" in (tmp_path / "README.md").read_text()
    again = DiffMask.from_pretrained(tmp_path, found.subject)
    assert again.explain("17342") == found.explain("17342")
    more = DiffMask.fit(found.subject, texts, over="states", start=again, **{**FIT, "steps": 2})
    assert more.probe.members == 2


@pytest.mark.parametrize("context", [True, False])
def test_gates_with_context_know_what_else_is_in_the_text(context, tmp_path):
    """Where a 3 takes the 7's effect away, a text with both needs neither."""
    subject = sevens.subject(versus.SevenUnlessThree())
    texts = [text.replace("3", "73") if i % 4 == 1 else text for i, text in enumerate(versus.texts(400))]
    lens = DiffMask.fit(subject, texts, over="states", sites=[0], compared=0, context=context, **FIT)
    assert all(d.ok for d in lens.diagnostics)
    alone, both = lens.explain(["1724", "17324"])
    assert alone.scores[0].argmax() == 1 and alone.scores[0][1] > 0.5
    assert both.scores[0][1] < 0.5 if context else both.scores[0][1] > 0.5
    again = DiffMask.from_pretrained(lens.save_pretrained(tmp_path), subject)
    assert again.probe.context == context and again.explain("17324") == [both]
    assert f"- context: {context}" in (tmp_path / "README.md").read_text()


def test_masks_over_inputs_do_not_grow_with_depth():
    found = DiffMask.fit(sevens.subject(), sevens.texts(400), over="inputs", **FIT)
    assert all(d.ok for d in found.diagnostics)
    a = found.explain("17342")[0]
    assert (a.scores[1] <= a.scores[0] + 1e-6).all()
    assert a.scores[1].argmax() == 1


def test_what_a_lens_drops_can_be_dropped(lens):
    """The proof that goes with an explanation: replace what is not kept, and run the model again."""
    subject, texts = lens.subject, sevens.texts(50, seed=3)
    batch = subject.encode(texts)
    reference, states = subject.states(batch)
    keep = (lens.keep(states, batch.valid)[1] > 0.5).float()
    assert keep[batch.valid].mean() < 0.5
    mixed = keep[..., None] * states[1] + (1 - keep[..., None]) * lens.probe.baseline(1)
    output = subject.run(batch, replace={1: mixed}).output
    assert subject.task.divergence(reference, output).mean() < 0.05
    wrong = (1 - keep[..., None]) * states[1] + keep[..., None] * lens.probe.baseline(1)
    worse = subject.run(batch, replace={1: wrong}).output
    assert subject.task.divergence(reference, worse).mean() > 0.5


def test_verify_agrees_with_the_model_run_by_hand(lens):
    texts = sevens.texts(30, seed=4)
    proofs = lens.verify(lens.explain(texts))
    batch = lens.subject.encode(texts)
    reference, states = lens.subject.states(batch)
    keep = (lens.keep(states, batch.valid)[1] > 0.5)[..., None]
    output = lens.subject.run(batch, replace={1: torch.where(keep, states[1], lens.probe.baseline(1))}).output
    expected = lens.subject.task.divergence(reference, output)
    assert np.allclose([p.divergence for p in proofs], expected, atol=1e-5)
    assert all(p.prediction_kept for p in proofs) and np.mean([p.share_removed for p in proofs]) > 0.5
    held = lens.verify(lens.explain(texts), margin=0.05)
    assert all(p.prediction_kept and p.divergence <= 0.05 for p in held)
    assert np.mean([p.share_removed for p in held]) > 0.5


def test_the_model_is_left_as_it_was(lens, unchanged):
    module = lens.subject.module
    unchanged(module)
    lens.explain(["17"])
    DiffMask.fit(lens.subject, sevens.texts(40), over="states", **{**FIT, "steps": 5})
    unchanged(module)


def test_save_and_load(lens, tmp_path):
    lens.save_pretrained(tmp_path)
    again = DiffMask.from_pretrained(tmp_path, lens.subject)
    assert again.diagnostics == lens.diagnostics and again.settings == lens.settings
    assert again.explain("17342") == lens.explain("17342")
    assert "| site | divergence |" in (tmp_path / "README.md").read_text()


def test_save_and_load_of_every_form(tmp_path):
    for i, (over, context) in enumerate(itertools.product(("inputs", [(0, 1)]), (True, False))):
        how = {**FIT, "steps": 5, "context": context}
        made = DiffMask.fit(sevens.subject(), sevens.texts(40), over=over, **how)
        made.save_pretrained(tmp_path / str(i))
        again = DiffMask.from_pretrained(tmp_path / str(i), made.subject)
        assert again.explain("17342") == made.explain("17342")


def test_a_lens_without_a_limit_for_shut_gates_and_an_anchor_is_read_as_it_was_made(tmp_path):
    """Older lenses' gates shut as far as they open."""
    made = DiffMask.fit(sevens.subject(), sevens.texts(40), over="inputs", **{**FIT, "steps": 5})
    for gate in made.probe.gates:
        gate.bias.data.fill_(-99.0)
    file = made.save_pretrained(tmp_path) / "lens.json"
    about = json.loads(file.read_text())
    assert about.pop("shut") == SHUT[True] and about["settings"].pop("anchor") > 0
    newer = DiffMask.from_pretrained(tmp_path, made.subject)
    file.write_text(json.dumps(about))
    older = DiffMask.from_pretrained(tmp_path, made.subject)
    assert newer.explain("17342") == made.explain("17342")
    assert older.probe.gate(0).limits[0] == -older.probe.gate(0).limits[1] and older.settings.anchor == 0
    assert (older.explain("17342")[0].scores < 0.5 * newer.explain("17342")[0].scores).all()


def test_a_lens_refuses_another_model(lens, tmp_path):
    lens.save_pretrained(tmp_path)
    other = sevens.subject()
    with torch.no_grad():
        other.module.embed.weight.mul_(1.5)
    with pytest.raises(LensError, match="fitted on another model"):
        DiffMask.from_pretrained(tmp_path, other)
    with pytest.raises(LensError, match="another subject"):
        ml.explain(other, ["17"], "diffmask", lens=lens, sites=[1])
    with pytest.raises(LensError, match="does not hold a lens"):
        DiffMask.from_pretrained(tmp_path / "none", other)


def test_what_fit_refuses():
    subject = sevens.subject()
    with pytest.raises(TrainingError, match="no setting 'stepz'"):
        DiffMask.fit(subject, sevens.texts(20), stepz=3)
    with pytest.raises(TrainingError, match="margin is 0"):
        DiffMask.fit(subject, sevens.texts(20), margin=0)
    with pytest.raises(TrainingError, match="too few"):
        DiffMask.fit(subject, ["7"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = DiffMask.fit(subject, sevens.texts(20), sites=[1], over="states", steps=2)
    with pytest.raises(MethodError, match="no site 0"):
        made.explain("17", sites=[0])


def test_few_texts_get_a_warning():
    with pytest.warns(UserWarning, match="training texts are few"):
        DiffMask.fit(sevens.subject(), sevens.texts(20), steps=2)


def test_a_site_over_its_margin_gets_a_warning():
    made = DiffMask.fit(sevens.subject(), sevens.texts(20), steps=2)
    made.diagnostics = [made.diagnostics[0]._replace(ok=False)]
    with pytest.warns(UserWarning, match="over their margin"):
        made._warn()


def test_a_fixed_baseline_stays():
    made = DiffMask.fit(sevens.subject(), sevens.texts(60), learn_baseline=False, **{**FIT, "steps": 20})
    start = DiffMask.fit(sevens.subject(), sevens.texts(60), learn_baseline=False, **{**FIT, "steps": 1})
    assert torch.equal(made.probe.baseline(0), start.probe.baseline(0))


@pytest.mark.parametrize("method", ["diffmask", "reinforce"])
def test_single_texts_find_the_decisive_digit(method):
    found = ml.explain(sevens.subject(), ["17342", "90876"], method, sites=[0, 1])
    for a in found:
        assert [a.tokens[i] for i in a.scores.argmax(1)] == ["7", "7"]
        others = np.delete(a.scores, a.tokens.index("7"), axis=1)
        assert a.scores[:, a.tokens.index("7")].min() > 0.5 > others.max(), a.scores


def test_single_texts_do_not_depend_on_their_batch():
    subject = sevens.subject()
    together = ml.explain(subject, ["17342", "908767", "1"], "diffmask", steps=50)
    alone = [ml.explain(subject, [t], "diffmask", steps=50)[0] for t in ("17342", "908767", "1")]
    for one, other in zip(together, alone, strict=True):
        assert np.allclose(one.scores, other.scores, atol=1e-5)


def test_a_learned_baseline_can_drop_even_the_decisive_digit():
    """Figure 12b: without amortisation a baseline made for one text stands in for all of it."""
    subject = sevens.subject()
    options = {"steps": 800, "baselines": "zero"}
    learned = ml.explain(subject, ["17342"], "diffmask", learn_baseline=True, **options)[0]
    fixed = ml.explain(subject, ["17342"], "diffmask", learn_baseline=False, **options)[0]
    assert learned.scores.sum() < fixed.scores.sum()


def test_reinforce_estimates_the_gradient_of_the_divergence():
    """The surrogate's mean gradient over many draws is that of the exact expectation."""
    from masklens.diffmask.objective import ReinforceObjective

    subject = sevens.subject()
    batch = subject.encode(["17"])
    generator = torch.Generator().manual_seed(0)
    noise = iter(lambda: torch.rand(1, 2, 1, generator=generator), None)
    made = ReinforceObjective(subject, batch, 0, 0.1, noise, torch.zeros(6), False)
    with torch.no_grad():
        made.module.values.fill_(0.3)
    total = torch.zeros(1, 2)
    for step in range(4000):
        terms = made.terms(step, 0, 1)
        total += torch.autograd.grad(terms.divergence.sum(), made.module.values)[0]
    p = torch.full((1, 2), 0.3).sigmoid().requires_grad_()
    expected = 0.0
    for keep in torch.cartesian_prod(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 1.0])):
        with torch.no_grad():
            cost = TextObjective.divergence(made, keep[None])
        expected = expected + (torch.where(keep == 1, p, 1 - p).prod() * cost).sum()
    (exact,) = torch.autograd.grad(expected, p)
    exact = exact * (p * (1 - p)).detach()
    assert torch.allclose(total / 4000, exact, atol=0.03)


def test_a_lens_learned_in_bfloat16_is_judged_on_the_model_itself():
    subject = sevens.subject()
    before = {name: value.clone() for name, value in subject.module.state_dict().items()}
    lens = DiffMask.fit(
        subject, sevens.texts(600), "states", 0.05, steps=60, batch_size=32, mixed_precision="bf16", lr=1e-2
    )
    assert all(p.dtype == torch.float32 for p in subject.module.parameters())
    assert all(torch.equal(before[name], value) for name, value in subject.module.state_dict().items())
    assert any(d.kept < 1 for d in lens.diagnostics)
    assert lens.subject is subject


def test_a_fit_can_begin_from_another_lens():
    subject, texts = sevens.subject(), sevens.texts(600)
    first = DiffMask.fit(subject, texts, "states", 0.05, steps=60, batch_size=32, lr=1e-2)
    same = DiffMask.fit(subject, texts, "states", 0.05, steps=1, batch_size=32, lr=0.0, start=first)
    fresh = DiffMask.fit(subject, texts, "states", 0.05, steps=1, batch_size=32, lr=0.0)
    assert [d.kept for d in same.diagnostics] == pytest.approx([d.kept for d in first.diagnostics], abs=0.05)
    assert [d.kept for d in fresh.diagnostics] != [d.kept for d in same.diagnostics]


def test_a_lens_that_ends_badly_goes_back_to_its_best_weights():
    """The last weights drop everything; opening their gates again keeps more than the best ones did."""
    subject, texts = sevens.subject(), sevens.texts(600)
    settings = Settings(margin=0.05, steps=200, batch_size=64, evaluate_every=20, lr=1e-2, patience=0)
    train, held = (FrozenTexts(subject, part, subject.sites, 10**9) for part in (texts[:500], texts[500:]))
    torch.manual_seed(0)
    probe = Probe(rows_for("states", subject.sites), train.widths, False, hidden=8)
    _start(probe, subject, train)
    objective = LensObjective(probe, train, held, settings)
    with subject.frozen():
        training = Training(objective, settings)
        training.run()
        assert training.best
        kept = sum(d.kept for d in objective.diagnose([0, 0]))
        for i in range(objective.groups):
            torch.nn.init.zeros_(probe.gate(i).out.size)
            probe.gate(i).bias.data.fill_(-5.0)  # all gates shut, whatever they read
        events = _settled(training, objective)
    assert events[0].startswith("put back")
    assert all(d.ok for d in objective.diagnose([0, 0]))
    assert sum(d.kept for d in objective.diagnose([0, 0])) < 1.2 * kept + 0.05


def test_states_are_replaced_by_what_is_usual_at_their_place(tmp_path):
    subject = tiny.subject("bert")
    texts = ["a fast funny movie", "the plot is dull", "funny", "the movie is a car"] * 8
    with pytest.warns(UserWarning, match="few"):
        lens = DiffMask.fit(subject, texts, "states", 0.1, steps=3, batch_size=8)
    longest = max(len(subject.encode([text]).tokens[0]) for text in texts)
    assert set(lens.probe.places) == {str(site) for site in subject.sites if site > 0}
    with torch.no_grad():
        for table in lens.probe.places.values():
            table.add_(torch.randn_like(table))
        for gate in lens.probe.gates:
            gate.bias.fill_(-9.0)
    table, vector = lens.probe.baseline(2), lens.probe.baselines["2"]
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
    proof = lens.verify(lens.explain([longer]), site=2)[0]
    output = subject.run(batch, replace={2: mixed[None]}).output
    expected = subject.task.divergence(subject.run(batch).output, output)
    assert proof.share_removed == 1.0 and proof.divergence == pytest.approx(expected.item(), abs=1e-5)
    again = DiffMask.from_pretrained(lens.save_pretrained(tmp_path), subject)
    assert torch.equal(again.probe.baseline(2), table)


def test_a_baseline_without_places():
    subject = tiny.subject("bert")
    texts = ["a fast funny movie", "the plot is dull"] * 8
    with pytest.warns(UserWarning, match="few"):
        one = DiffMask.fit(subject, texts, "states", steps=1, batch_size=4, by_place=False)
        inputs = DiffMask.fit(subject, texts, "inputs", steps=1, batch_size=4)
    assert not one.probe.places and not inputs.probe.places
    assert one.probe.baseline(1).dim() == 1
    assert not DiffMask.fit(sevens.subject(), sevens.texts(600), "states", 0.05, steps=1).probe.places


def test_a_fit_begins_from_a_lens_of_other_texts_and_refuses_another_form():
    subject = tiny.subject("bert")
    short, long = ["a fast movie", "the plot is dull"] * 8, ["the movie is a car and the plot is dull"] * 16
    with pytest.warns(UserWarning, match="few"):
        first = DiffMask.fit(subject, short, "states", steps=1, batch_size=4)
        more = DiffMask.fit(subject, long, "states", steps=1, batch_size=4, start=first)
        with pytest.raises(LensError, match="over states at sites"):
            DiffMask.fit(subject, long, "inputs", steps=1, batch_size=4, start=first)
    assert more.probe.places["1"].shape == first.probe.places["1"].shape
    assert not torch.equal(more.probe.gate(1).bias, first.probe.gate(1).bias)  # it learns, on a copy
    assert not any(p.requires_grad for p in first.probe.parameters())

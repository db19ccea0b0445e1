"""Lenses whose deepest site reads what the output points at: the answer to a question."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import tiny
from masklens import DiffMask, Subject
from masklens.cli import app
from masklens.errors import TrainingError
from masklens.diffmask.trainer import Multipliers, Settings
from masklens.diffmask.objective import FrozenTexts, LensObjective, edited_run, masked_outputs
from masklens.diffmask.networks import Probe, rows_for
from masklens.reproduce.questions import read_questions, shuffled
from masklens.tasks import POINTED

PAIRS = [
    ("who lives in Paris ?", "John Smith lives in Paris . the plot is dull"),
    ("what is fast ?", "a fast funny movie is a movie"),
    ("what is dull ?", "the plot is dull and the movie is slow"),
]


@pytest.fixture(scope="module")
def subject():
    return tiny.subject("bert", "qa")


def probe_of(subject, seed=0, **options):
    torch.manual_seed(seed)
    states = subject.states(subject.encode(PAIRS[:1]), [*subject.sites, POINTED]).states
    widths = {site: state.shape[-1] for site, state in states.items()}
    made = Probe(rows_for("inputs", subject.sites), widths, True, pointed=True, **options)
    with torch.no_grad():
        for name in made.baselines:
            made.baselines[name].normal_()
    return made


def test_what_the_output_points_at(subject):
    batch = subject.encode(PAIRS)
    output, states = subject.states(batch, [0, POINTED])
    for i, (start, end) in enumerate(subject.task.predict(output, batch).tolist()):
        answer, asking = states[POINTED][i].T
        assert answer.nonzero()[:, 0].tolist() == list(range(start, end + 1))
        words = [t for t in range(batch.shape[1]) if asking[t] and not batch.special[i, t]]
        asked = "".join(batch.tokens[i][t].removeprefix("##") for t in words)
        assert asked == PAIRS[i][0].lower().replace(" ", "")
        assert not (answer * asking).any()


def test_how_far_an_answer_is_lost(subject):
    reference = torch.tensor([[[4.0, 0.0, 0.0], [0.0, 0.0, 4.0]]])
    assert float(subject.task.lost(reference, 0.1 * reference)) == 0  # less certain, the same answer
    other = torch.tensor([[[1.0, 1.0 + math.log(4), 0.0], [0.0, 0.0, 4.0]]])
    assert float(subject.task.lost(reference, other)) == pytest.approx(0.75)  # a start four times as likely
    twice = torch.tensor([[[1.0, 1.0 + math.log(4), 0.0], [math.log(2), 0.0, 0.0]]])
    assert float(subject.task.lost(reference, twice)) == pytest.approx(1 - 1 / 8)


@pytest.mark.parametrize("members", [1, 3])
def test_the_deepest_row_begins_with_the_answer_alone(subject, members):
    probe, batch = probe_of(subject, members=members), subject.encode(PAIRS)
    _, states = subject.states(batch, probe.reads)
    keep = probe.log_keep(states, batch.valid).exp()
    assert (keep[:-1][:, batch.valid] > 0.9).all()
    assert torch.equal((keep[-1] > 0.5) & batch.valid, states[POINTED][..., 0].bool())
    assert (keep[-1][batch.valid & ~states[POINTED][..., 0].bool()] < 0.05).all()


def test_what_an_earlier_row_drops_stays_dropped(subject):
    probe, batch = probe_of(subject), subject.encode(PAIRS)
    _, states = subject.states(batch, probe.reads)
    with torch.no_grad():
        probe.gate(1).bias.fill_(-20.0)
    keep = probe.log_keep(states, batch.valid).exp()
    assert (keep[0][batch.valid] > 0.9).all()
    assert (keep[1:][:, batch.valid] < 0.05).all()


def test_what_the_deepest_row_wants_is_no_reason_for_the_others(subject):
    probe, batch = probe_of(subject), subject.encode(PAIRS)
    _, states = subject.states(batch, probe.reads)
    last = len(probe.rows) - 1
    logits = probe.logits(states, batch.valid)
    logits[last].sum().backward(retain_graph=True)
    for i in range(last):
        assert all(p.grad is None or not p.grad.any() for p in probe.gate(i).parameters())
    assert probe.gate(last).bias.grad.any() and probe.pointing.grad.any()
    logits[last - 1].sum().backward()
    assert all(probe.gate(i).bias.grad.any() for i in range(last))


def test_every_row_is_masked_with_its_own_baseline(subject):
    """Against one plain run a row."""
    probe = probe_of(subject)
    batch = subject.encode(PAIRS)
    run = subject.states(batch, probe.reads)
    keeps = (torch.rand(len(probe.rows), *batch.shape) > 0.5).float()
    keeps[-1] = keeps[-2]  # the same mask with another baseline is another text
    found = list(masked_outputs(subject, probe, batch, run, keeps, range(len(keeps))))
    for i, output in enumerate(found):
        slow = edited_run(subject, batch, 0, run.states[0], keeps[i], probe.baseline(i))
        torch.testing.assert_close(output, slow)
    differ = torch.where(batch.valid[:, None], found[-1] - found[-2], 0.0).abs()
    assert differ.amax() > 1e-3


def test_a_step_masks_each_example_with_its_rows_baseline(subject):
    probe = probe_of(subject)
    frozen = FrozenTexts(subject, PAIRS, probe.reads, 0)
    objective = LensObjective(probe, frozen, frozen, Settings(hold=2.0))
    batch, (reference, states) = frozen.draw([0, 1, 2])
    last = len(probe.rows) - 1
    chosen = torch.tensor([last, 0, last])
    keep = (torch.rand(batch.shape) > 0.5).float()
    output = objective._outputs(batch, states, keep, chosen)
    for i, row in enumerate(chosen.tolist()):
        slow = edited_run(subject, batch, 0, states[0], keep, probe.baseline(row))[i]
        torch.testing.assert_close(output[i], slow)
    lost = objective._lost(reference, output, chosen)
    assert lost[1] == 0 and lost[0] == 2 * subject.task.lost(reference, output)[0]


def test_what_is_lost_is_paid_for_but_is_no_divergence(subject):
    probe = probe_of(subject)
    frozen = FrozenTexts(subject, PAIRS * 5, probe.reads, 0)
    terms = [
        LensObjective(probe, frozen, frozen, Settings(hold=hold, batch_size=15)).terms(500, 0, 1)
        for hold in (0.0, 5.0)
    ]
    torch.testing.assert_close(terms[0].divergence, terms[1].divergence)
    assert not terms[0].lost.any() and terms[1].lost.any()


def test_shares_of_the_aim():
    settings = Settings(margin=1.0, slack=0.0, first_aim=0.01, late_aim=0.25, multiplier=7.0)
    made = Multipliers(torch.ones(4), settings, votes=True, pointed=True)
    assert made.aim.tolist() == pytest.approx([0.01, 0.05, 0.25, 1.0])
    assert made.values.tolist() == [7.0, 7.0, 7.0, settings.pointed_multiplier]
    assert Multipliers(torch.ones(3), settings, votes=True).aim.tolist() == pytest.approx([0.01, 0.1, 1.0])
    assert Multipliers(torch.ones(1), settings, votes=True).aim.tolist() == [1.0]
    assert Multipliers(torch.ones(2), settings, votes=True, pointed=True).aim.tolist() == [0.25, 1.0]


def fit(subject, **options):
    with pytest.warns(UserWarning):
        return DiffMask.fit(
            subject, PAIRS * 6, "inputs", 1.0, steps=4, batch_size=4, evaluate_every=2, **options
        )


def test_a_lens_is_saved_loaded_and_used(subject, tmp_path):
    lens = fit(subject, pointed=True)
    lens.save_pretrained(tmp_path)
    again = DiffMask.from_pretrained(tmp_path, subject)
    assert again.probe.pointed and "- pointed: True" in (tmp_path / "README.md").read_text()
    for one, other in zip(lens.explain(PAIRS), again.explain(PAIRS), strict=True):
        np.testing.assert_array_equal(one.scores, other.scores)
    deepest, first = again.sites[-1], again.sites[0]
    assert not torch.equal(again.baseline(deepest).vector, again.baseline(first).vector)
    begun = fit(subject, start=again)
    assert begun.probe.pointed and begun.settings.pointed_multiplier == begun.settings.multiplier
    assert not fit(subject).probe.pointed


def test_explaining_does_not_depend_on_the_batch(subject):
    lens = fit(subject, pointed=True)
    together = lens.explain(PAIRS, batch_size=3)
    for pair, one in zip(PAIRS, together, strict=True):
        np.testing.assert_allclose(lens.explain([pair])[0].scores, one.scores, atol=1e-5)


@pytest.mark.parametrize("options", [{"sites": [0, 1]}, {"sums": False}])
def test_only_where_it_makes_sense(subject, options):
    with pytest.raises(TrainingError, match="pointed=True is for question answering, over inputs"):
        DiffMask.fit(subject, PAIRS, "inputs", pointed=True, **options)


def test_only_for_answers_over_inputs(subject):
    with pytest.raises(TrainingError, match="this is Classification"):
        DiffMask.fit(tiny.subject("bert"), ["a movie"] * 4, "inputs", pointed=True)
    with pytest.raises(TrainingError, match="over states"):
        DiffMask.fit(subject, PAIRS, "states", pointed=True)


def test_on_the_command_line(subject, tmp_path):
    subject.module.save_pretrained(tmp_path / "model")
    subject.tokenizer.save_pretrained(tmp_path / "model")
    rows = [json.dumps({"question": q, "context": c}) for q, c in PAIRS * 4]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    given = ["--model", tmp_path / "model", "--data", tmp_path / "rows.jsonl", "--out", tmp_path / "lens"]
    given += ["--column", "question", "--column", "context", "--margin", 1.0, "--steps", 2]
    done = CliRunner().invoke(app, ["fit", *map(str, given), "--pointed", "--json"])
    assert done.exit_code == 0, done.output
    about = json.loads((tmp_path / "lens" / "lens.json").read_text())
    assert about["pointed"] and about["settings"]["slack"] == 0.15
    given[given.index("--out") + 1] = tmp_path / "other"
    done = CliRunner().invoke(app, ["fit", *map(str, given), "--pointed", "--over", "states"])
    assert done.exit_code == 2 and "pointed=True is for question answering, over inputs" in done.output


@pytest.mark.slow
def test_an_answer_alone_is_nearly_enough(model_folder):
    """minilm-squad: with a baseline learned for it most answers stay with nearly all else dropped."""
    model = Subject.from_pretrained(model_folder("minilm-squad"), truncate=True)
    data = Path(__file__).parents[2] / "shared" / "data"
    if not (data / "squad").exists():
        pytest.skip("no folder of data beside the project")
    every = shuffled(read_questions(data, "train"), 0)
    short = [q.pair for q in every if len(" ".join(q.pair).split()) < 60][:300]
    how = {"batch_size": 16, "warmup": 5, "warm_until": 1.0, "sites": [0, model.sites[-1]], "pointed": True}
    spans = []
    for steps in (1, 30):  # baselines alone are learned; the margin is wide enough to leave gates as they are
        found = DiffMask.fit(model, short, "inputs", 9.0, held_out=0.3, steps=steps, **how).diagnostics[-1]
        assert found.kept < 0.1
        spans.append(found.agreement)
    assert spans[1] > 0.8 and spans[1] > spans[0] + 0.1

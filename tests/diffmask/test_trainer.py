"""The trainer: its loss a second time, resuming, same seed same result, and what is an error."""

import json
import math
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sevens
import tiny
from lens_parts import QUICK, objective, shaken
from masklens import progress
from masklens.diffmask.first_states import first_states
from masklens.diffmask.judging import Judged
from masklens.diffmask.networks import MaskRow
from masklens.diffmask.trainer import (
    BASELINE_LR,
    WEIGHT,
    Diagnostic,
    Settings,
    Training,
    _now,
    diagnostics,
    fast_products,
)
from masklens.errors import TrainingError
from masklens.model.subject import Subject
from tampering import damage, often, one_line

TEXTS = ["a fast funny movie", "dull", "the plot is dull and the movie is slow", "funny"]
RATES = ("kept", "divergence", "hard", "emptied")


def weights(training):
    return {name: value.clone() for name, value in training.probe.state_dict().items()}


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


def trained(settings=QUICK, **options):
    training = Training(objective(settings, **options), settings)
    training.run()
    return training


def test_the_loss_is_equation_3():
    """A divergence as large as the margin costs as much as so large a share of a text kept, at every row."""
    made = shaken(objective())
    training = Training(made, replace(QUICK, anchor=0.7))
    terms = made.terms(30)
    expected = warm = 0.0
    for row in range(2):
        kept, divergence, hard, emptied = (float(getattr(terms, name)[row].detach()) for name in RATES)
        misses = divergence + 0.5 * hard + 0.7 * emptied  # through the last two the baselines alone learn
        expected += kept + WEIGHT / 0.05 * misses
        warm += WEIGHT / 0.05 * misses
    assert training.loss(terms, warming=False).item() == pytest.approx(expected, rel=1e-5)
    assert training.loss(terms, warming=True).item() == pytest.approx(warm, rel=1e-5)


def test_a_step_goes_down_the_loss():
    settings = replace(QUICK, steps=10_000)
    made = shaken(objective(settings))
    training = Training(made, settings)
    training.step = 2000
    before = weights(training)
    training.loss(made.terms(2000), warming=False).backward()
    slopes = {name: p.grad.clone() for name, p in training.probe.named_parameters()}
    with training.watched():
        training._one_step()
    for name, p in training.probe.named_parameters():
        moved, seen = p.detach() - before[name], slopes[name].abs() > 1e-6
        assert seen.any()  # Adam's first step is against the sign of each slope
        assert torch.equal(moved[seen].sign(), -slopes[name][seen].sign())


@pytest.mark.parametrize("model", [None, ("bert", "sequence"), ("gpt2", "causal")])
@pytest.mark.parametrize("over", ["inputs", "states"])
@pytest.mark.parametrize("warming", [True, False])
def test_rows_one_after_the_other_have_the_gradients_of_all_together(model, over, warming):
    settings = replace(QUICK, batch_size=24)
    texts = model and (tiny.subject(*model), TEXTS * 4, TEXTS)
    whole, apart = (Training(shaken(objective(settings, over, *(texts or ()))), settings) for _ in range(2))
    apart.at_once.texts = 2
    with whole.watched(), apart.watched():
        (terms, need), (parts, needs) = (one.gradients(20, warming) for one in (whole, apart))
    torch.testing.assert_close(tuple(terms), tuple(parts))
    torch.testing.assert_close(need, needs)
    for one, other in zip(whole.parameters, apart.parameters, strict=True):
        assert (one.grad is None) == (other.grad is None)
        if one.grad is not None:
            torch.testing.assert_close(one.grad, other.grad)
            assert one.grad.stride() == one.stride()  # several GPUs sum only such gradients
    assert any(p.grad is not None and p.grad.any() for p in whole.parameters)


def test_rows_that_do_not_fit_into_memory_go_one_after_the_other():
    seen, training, plain = [], Training(objective(), QUICK), Training(objective(), QUICK)
    terms = training.objective.terms

    def small(step, rank, world, warming, rows):
        seen.append(list(rows))
        if len(rows) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return terms(step, rank, world, warming, rows)

    training.objective.terms = small
    training.run()
    plain.run()
    assert seen[:5] == [[0, 1], [0], [1], [0], [1]] and training.history != []
    for name, value in weights(plain).items():
        torch.testing.assert_close(weights(training)[name], value, atol=1e-4, rtol=1e-3)


def test_a_row_that_does_not_fit_into_memory_alone_is_an_error():
    training = Training(objective(), QUICK)

    def never(*given):
        raise torch.OutOfMemoryError("CUDA out of memory")

    training.objective.terms = never
    with pytest.raises(
        TrainingError, match=r"more memory than .* \(8 texts each\); give a smaller batch_size"
    ):
        training.run()


def test_rates_go_up_and_come_down():
    settings = Settings(steps=1000)
    assert settings.rate(0) == pytest.approx(1 / 50) and settings.rate(24) == pytest.approx(0.5)
    assert settings.rate(49) == settings.rate(690) == 1.0
    assert settings.rate(849) == pytest.approx(0.55) and settings.rate(999) == pytest.approx(0.1)


def test_baselines_learn_in_units_of_the_spread_of_their_states():
    made = objective()
    with torch.no_grad():
        made.train._kept.states[1].mul_(10.0)
    training = Training(made, QUICK)
    gates, words, later = training.optimizer.param_groups
    assert gates["peak"] == QUICK.lr
    assert words["peak"] == pytest.approx(BASELINE_LR * first_states(made.train).spread(0))
    assert later["peak"] == pytest.approx(10 * words["peak"], rel=1e-4)
    learned = [id(p) for group in training.optimizer.param_groups for p in group["params"]]
    assert sorted(learned) == sorted(map(id, made.probe.parameters()))


def test_at_first_the_baselines_alone_are_learned():
    training = Training(objective(), QUICK)
    before = weights(training)
    assert [QUICK.warming(step) for step in (0, 3, 4, 39)] == [True, True, False, False]
    for expected in ({"baselines"}, {"baselines", "gates"}):
        for _ in range(4):
            with training.watched():
                training._one_step()
            training.step += 1
        changed = {name for name, value in weights(training).items() if not torch.equal(value, before[name])}
        assert {name.split(".")[0] for name in changed} == expected
    assert {"gates.0.bias", "gates.1.bias", "gates.0.outer.weight"} <= changed


def test_biases_follow_the_divergence_of_hard_masks():
    made = objective()
    training = Training(made, QUICK)
    training.step = 20
    terms = made.terms
    made.terms = lambda *given: terms(*given)._replace(hard=torch.tensor([0.0, 9.0]))
    before = [float(gate.bias) for gate in made.probe.gates]
    with training.watched():
        for _ in range(30):
            training._one_step()
    after = [float(gate.bias) for gate in made.probe.gates]
    assert after[0] < before[0] and after[1] > before[1]


def test_same_seed_same_result_and_another_seed_another():
    one, two, other = (trained(settings) for settings in (QUICK, QUICK, replace(QUICK, seed=1)))
    assert same(weights(one), weights(two)) and one.history == two.history
    assert not same(weights(one), weights(other))


def test_evaluations_are_written_down():
    training = trained(replace(QUICK, steps=25))
    assert [entry["step"] for entry in training.history] == [10, 20, 25]
    for entry in training.history:
        assert [row["site"] for row in entry["rows"]] == [0, 1]
        assert all(row.keys() == set(Diagnostic._fields) for row in entry["rows"])
    last = diagnostics(training.probe.rows, training.objective.judge(), QUICK.margin)
    assert [one._asdict() for one in last] == training.history[-1]["rows"]


def test_diagnostics_say_whether_the_margin_is_kept():
    rows = (MaskRow(3, 0, (0, 3)), MaskRow(5, 0, (0, 5)))
    judged = [Judged(0.1, 0.01, 0.4, 0.02, 0.97), Judged(0.1001, 0.01, 0.3, 0.03, 0.9)]
    assert diagnostics(rows, judged, 0.1) == [
        Diagnostic(3, 0.1, 0.4, 0.97, 0.02, True),
        Diagnostic(5, 0.1001, 0.3, 0.9, 0.03, False),
    ]


KILLED = """
import os, sys
sys.path.insert(0, sys.argv[2])
from lens_parts import QUICK, objective
from masklens.diffmask.trainer import Training
class Killed(Training):
    def _one_step(self):
        if self.step == 25:
            os.kill(os.getpid(), 9)
        return super()._one_step()
Killed(objective(), QUICK, sys.argv[1]).run()
"""


def test_a_killed_run_resumes_to_the_same_result(tmp_path):
    helpers = Path(sevens.__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path), str(helpers)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == -9
    resumed = Training(objective(), QUICK, tmp_path)
    assert resumed.resume() and resumed.step == 20
    resumed.run()
    straight = trained()
    assert same(weights(resumed), weights(straight))
    assert torch.equal(resumed.offsets.divergence, straight.offsets.divergence)
    assert resumed.history == straight.history


def test_the_running_mean_is_resumed_too(tmp_path):
    """Without it a resumed run would move its biases differently."""
    first = Training(objective(), replace(QUICK, steps=20), tmp_path)
    first.run()
    again = Training(objective(), replace(QUICK, steps=20), tmp_path)
    assert not torch.equal(again.offsets.divergence, first.offsets.divergence)
    again.resume()
    assert torch.equal(again.offsets.divergence, first.offsets.divergence)


@pytest.mark.parametrize(("name", "value"), [("lr", 0.5), ("steps", 41), ("seed", 3), ("anchor", 0.0)])
def test_resume_refuses_other_settings_by_name(name, value, tmp_path):
    Training(objective(), QUICK, tmp_path).save()
    given = replace(QUICK, **{name: value})
    with pytest.raises(
        TrainingError, match=f"was written with {name} {getattr(QUICK, name)!r}, this run has {value!r}"
    ):
        Training(objective(given), given, tmp_path).resume()


def test_resume_refuses_another_model_and_other_texts_by_name(tmp_path):
    Training(objective(), QUICK, tmp_path, {"model": "a", "training texts": "b"}).save()
    for name, identity in (("model", {"model": "z", "training texts": "b"}),
                           ("training texts", {"model": "a", "training texts": "z"})):  # fmt: skip
        with pytest.raises(
            TrainingError, match=f"written with {name} '[ab]', this run has 'z'; go on with the same"
        ):
            Training(objective(), QUICK, tmp_path, identity).resume()
    assert Training(objective(), QUICK, tmp_path, {"model": "a", "training texts": "b"}).resume()


def test_no_checkpoint_no_resume(tmp_path):
    assert not Training(objective(), QUICK, tmp_path).resume()
    assert not Training(objective(), QUICK).resume()


def test_a_loss_that_is_not_finite_is_an_error():
    made = objective()
    training = Training(made, replace(QUICK, evaluate_every=40))  # told long before that
    with torch.no_grad():
        made.probe.baselines[0].fill_(math.nan)
    with pytest.raises(TrainingError, match="not finite before step 10"):
        training.run()


def test_a_loss_that_was_not_finite_once_is_an_error_too(tmp_path):
    made = objective()
    training = Training(made, replace(QUICK, evaluate_every=5), tmp_path)
    terms = made.terms

    def once_infinite(step, *given):
        found = terms(step, *given)
        return found._replace(divergence=found.divergence + math.inf) if step == 3 else found

    made.terms = once_infinite
    with pytest.raises(TrainingError, match="not finite before step 5"):
        training.run()
    assert not training.file.exists()  # nothing is kept of it


@pytest.mark.parametrize("over", ["inputs", "states"])
def test_a_step_does_not_look_at_its_outputs(over, monkeypatch):
    """Each look would wait for a GPU; the loss tells of them every few steps."""
    training = Training(objective(over=over), QUICK)
    looked = []
    read = Subject._read
    monkeypatch.setattr(Subject, "_read", lambda *given: looked.append(given[3]) or read(*given))
    training._one_step()
    assert looked and not any(looked)
    training.objective.judge()
    assert looked[-1]  # judging does


def test_products_are_fast_while_training_and_as_before_afterwards():
    training = Training(objective(), QUICK)
    seen, one_step = [], training._one_step

    def step():
        seen.append(torch.get_float32_matmul_precision())
        if len(seen) == 3:
            raise KeyboardInterrupt
        return one_step()

    training._one_step = step
    before = torch.get_float32_matmul_precision()
    with pytest.raises(KeyboardInterrupt):
        training.run()
    assert seen == ["high"] * 3 and torch.get_float32_matmul_precision() == before
    torch.set_float32_matmul_precision("medium")
    try:
        with fast_products():
            assert torch.get_float32_matmul_precision() == "high"
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


def test_settings_that_make_no_sense_are_errors():
    with pytest.raises(TrainingError, match="margin is 0; it must be above 0"):
        Settings(margin=0)
    with pytest.raises(TrainingError, match="precision='fp8'; use 'float32' or 'bfloat16'"):
        Settings(precision="fp8")


def test_a_batch_has_so_many_texts_a_site():
    assert Settings().batch_on(torch.device("cpu"), 10) == 160
    assert Settings().batch_on(torch.device("cuda"), 5) == 160
    assert Settings().batch_on(torch.device("cpu"), 1) == Settings().batch_on(torch.device("cuda"), 1) == 128
    assert Settings(batch_size=7).batch_on(torch.device("cpu"), 5) == 7


def test_progress_names_the_layers_over_their_margin(capsys, monkeypatch):
    monkeypatch.setattr(progress, "BETWEEN_LINES", 0.0)
    terms = SimpleNamespace(kept=torch.tensor([0.2, 0.4]), hard=torch.tensor([0.01, 0.03]))
    assert _now(terms, []) == "fitting: kept 30%  divergence 0.020"
    history = [{"rows": [{"site": 1, "ok": True}, {"site": 4, "ok": False}]}]
    assert _now(terms, history) == "fitting: kept 30%  divergence 0.020  over the margin: block 3"
    training = Training(objective(), QUICK)
    training.run(show_progress=True)
    assert "fitting" in capsys.readouterr().err and training.step == QUICK.steps


@settings(often, max_examples=30)
@given(st.data())
def test_a_damaged_checkpoint_is_told(data):
    with tempfile.TemporaryDirectory() as folder:
        training = Training(objective(), QUICK, folder)
        training.step = 10
        training.save()
        damage(data.draw, training.file)
        try:
            Training(objective(), QUICK, folder).resume()
        except TrainingError as error:
            one_line(error)


@pytest.mark.parametrize(
    "change", [{"step": -1}, {"step": 10**9}, {"step": "x"}, {"history": 3}, {"more": 1}]
)
def test_a_checkpoint_with_other_metadata_is_told(change, tmp_path):
    from safetensors.torch import load_file, save_file

    training = Training(objective(), QUICK, tmp_path)
    training.save()
    about = {"step": 0, "history": [], "made_for": training._made_for} | change
    save_file(load_file(training.file), training.file, metadata={"training": json.dumps(about)})
    with pytest.raises(TrainingError, match="checkpoint.safetensors"):
        Training(objective(), QUICK, tmp_path).resume()

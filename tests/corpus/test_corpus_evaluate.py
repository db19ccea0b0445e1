"""Evaluation over corpus runs: the same numbers as in memory, some texts at a time."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import masklens as ml
from masklens import bootstrap
from masklens.bootstrap import sample_weights
from masklens.cli.main import app
from masklens.corpus import evaluate as streaming
from masklens.corpus import read_back
from masklens.corpus.evaluate import common, evaluate_corpora
from masklens.corpus.shards import Explained
from masklens.errors import MethodError
from masklens.evaluation.table import cell

METRICS = ["revealing", "hiding", "aopc_comprehensiveness", "loo_correlation"]


def test_the_table_is_that_of_evaluate(model, runs, monkeypatch):
    monkeypatch.setattr(bootstrap, "AT_ONCE", 13)
    subject = ml.Subject.from_pretrained(model)
    found = evaluate_corpora(subject, runs, METRICS, random_draws=3)
    rows = [list(read_back(url)) for url in runs.values()]
    both = {row.row_id for row in rows[0]} & {row.row_id for row in rows[1]}
    kept = [[row for row in some if row.row_id in both] for some in rows]
    sets = {name: [row.attribution for row in some] for name, some in zip(runs, kept, strict=True)}
    labels = [int(row.label) for row in kept[0]]
    expected = ml.evaluate(subject, sets, labels, METRICS, random_draws=3)
    assert found.rows.keys() == expected.rows.keys() == {"gradient@0", "gradient@2", "noise", "random"}
    assert found.settings == expected.settings and found.settings["texts"] == len(both) < 60
    for row in expected.rows:
        for name in METRICS:
            here, there = found[row][name], expected[row][name]
            assert here.value == pytest.approx(there.value, abs=1e-5), (row, name)
            assert here.spread == pytest.approx(there.spread, abs=1e-5)
            assert here.low == pytest.approx(there.low, abs=0.2 * (there.high - there.low) + 1e-6)
        for game in ("revealing", "hiding"):
            np.testing.assert_allclose(found.curves[row][game], expected.curves[row][game], atol=1e-6)


def test_the_interval_is_that_of_the_bootstrap():
    values = np.random.default_rng(0).exponential(size=400)
    values[::50] = np.nan
    column = streaming.RunningCell()
    for number, some in enumerate(np.split(values, 8)):
        column.add([some], sample_weights(0, number, len(some)))
    found, expected = column.cell(), cell(values)
    assert found.value == pytest.approx(expected.value)
    width = expected.high - expected.low
    assert found.low == pytest.approx(expected.low, abs=0.1 * width)
    assert found.high == pytest.approx(expected.high, abs=0.1 * width)


def test_rows_that_one_run_lacks_are_passed_over():
    def rows(*places):
        return iter([Explained(place, str(place), None, None) for place in places])

    found = common([rows((0, 1), (0, 2), (0, 4), (1, 1)), rows((0, 2), (0, 3), (1, 1), (1, 2))])
    assert [row[0].place for row in found] == [(0, 2), (1, 1)]


def test_runs_without_a_common_row_and_unknown_metrics_are_errors(model, runs):
    subject = ml.Subject.from_pretrained(model)
    with pytest.raises(MethodError, match="'overlap' cannot be measured over a corpus run"):
        evaluate_corpora(subject, runs, ["overlap"])
    with pytest.raises(MethodError, match="no row in common"):
        evaluate_corpora(subject, runs, ["hiding"], limit=0)


def test_the_command_takes_folders_of_runs(model, runs):
    arguments = ["evaluate", "--model", model, "--metric", "hiding", "--draws", "2", "--json"]
    given = [part for url in runs.values() for part in ("--attributions", url)]
    done = CliRunner().invoke(app, arguments + given)
    assert done.exit_code == 0, done.output
    table = json.loads(done.stdout)
    assert table["rows"].keys() == {"gradient@0", "gradient@2", "noise", "random"}
    refused = CliRunner().invoke(app, [*arguments, *given, "some text"])
    assert refused.exit_code == 2 and "by themselves" in refused.output

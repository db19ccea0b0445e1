"""`masklens evaluate`."""

import json

import pytest
from typer.testing import CliRunner

import planted
from masklens.cli.main import app

TEXTS = ["fast plot .", "the plot is dull .", "enjoyable", "a fast dull plot ."]


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A checkpoint, its texts with labels, and attributions that another tool made."""
    root = tmp_path_factory.mktemp("cli")
    made = planted.transformer()
    made.module.save_pretrained(root / "model")
    made.tokenizer.save_pretrained(root / "model")
    rows = "".join(f"{text},{i % 3}\n" for i, text in enumerate(TEXTS))
    (root / "texts.csv").write_text("text,label\n" + rows)
    scores = [{"text": t, "tokens": t.split(), "scores": list(range(len(t.split())))} for t in TEXTS]
    (root / "theirs.json").write_text(json.dumps(scores))
    return root


def test_one_table_of_ours_and_theirs(folder):
    common = ("--model", folder / "model", "--input", folder / "texts.csv", "--label-column", "label")
    more = ("--method", "gradient", "--method", "grad_x_input", "--attributions", folder / "theirs.json")
    metrics = ("--metric", "hiding", "--metric", "log_odds", "--draws", 2)
    ends = ("--out", folder / "t.json", "--json")
    found = json.loads(call("evaluate", *common, *more, *metrics, *ends).stdout)
    assert set(found["rows"]) == {"theirs", "gradient", "grad_x_input", "random"}
    assert found["settings"]["accuracy"] == "gold labels"
    assert found["rows"]["gradient"]["seconds"] > 0 and found["rows"]["theirs"]["seconds"] is None
    assert json.loads((folder / "t.json").read_text())["rows"] == found["rows"]


def test_normalised_areas(folder):
    common = ("--model", folder / "model", *TEXTS[:2], "--method", "gradient", "--metric", "aopc_by_token")
    plain, scaled = (
        json.loads(call("evaluate", *common, "--draws", 9, "--json", *more).stdout)
        for more in ((), ("--normalised",))
    )
    assert scaled["settings"]["normalised"] and not plain["settings"]["normalised"]
    values = [found["rows"]["random"]["aopc_by_token"]["value"] for found in (plain, scaled)]
    assert values[0] != values[1] and 0.2 < values[1] < 0.8


def test_the_table_is_printed(folder):
    done = call("evaluate", "--model", folder / "model", TEXTS[0], TEXTS[1], "--method", "gradient",
                "--metric", "hiding", "--draws", 0)  # fmt: skip
    assert done.exit_code == 0 and "gradient" in done.stdout and "hiding" in done.stdout


def test_mistakes_are_said_in_one_line(folder):
    done = call("evaluate", "--model", folder / "model", TEXTS[0], "--method", "gradient", "--metric", "best")
    assert done.exit_code == 2 and "no metric 'best'" in done.stderr
    done = call("evaluate", "--model", folder / "model")
    assert done.exit_code == 2 and "nothing to evaluate" in done.stderr

"""`masklens corpus` on the command line."""

import json
import shutil
import sys

import pytest
from typer.testing import CliRunner

from masklens.cli.main import app


def invoke(*arguments):
    return CliRunner().invoke(app, ["corpus", *map(str, arguments)])


@pytest.fixture
def basic(model, corpus, tmp_path):
    return ["--model", model, "--input", corpus, "--method", "gradient", "--out", tmp_path / "out"]


def test_the_command_runs_and_goes_on(basic, tmp_path):
    done = invoke(*basic, "--shard-rows", 20, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == [{"explained": 60, "rejected": 7, "shards": 4}]
    again = invoke(*basic, "--shard-rows", 20, "--json")
    assert again.stdout == done.stdout and "4 shards are done already" in again.stderr
    other = invoke(*basic, "--shard-rows", 20, "--no-verify")
    assert other.exit_code == 2 and "verify was True, is False" in other.stderr


def test_strict_and_mistakes_end_with_one_line(basic, tmp_path):
    strict = invoke(*basic, "--strict")
    assert strict.exit_code == 2 and "texts.jsonl:6 cannot be explained" in strict.stderr
    missing = invoke("--model", tmp_path / "nowhere", "--input", basic[3], "--out", tmp_path / "x")
    assert missing.exit_code == 2 and "nowhere" in missing.stderr
    lens = invoke(*basic, "--lens", tmp_path / "no-lens")
    assert lens.exit_code == 2 and "no-lens" in lens.stderr


def test_ray_says_what_to_install(basic, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    done = invoke(*basic, "--ray", "auto")
    assert done.exit_code == 2 and "pip install" in done.stderr


def test_code_that_comes_with_a_model_is_not_run(basic, tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    model = tmp_path / "foreign"
    shutil.copytree(basic[1], model)
    config = json.loads((model / "config.json").read_text())
    config |= {"model_type": "foreign", "auto_map": {"AutoConfig": "code.Config"}}
    (model / "config.json").write_text(json.dumps(config))
    (model / "code.py").write_text(f"open({str(tmp_path / 'was-run')!r}, 'w')\n")
    done = invoke("--model", model, *basic[2:])
    assert done.exit_code == 2 and "masklens: " in done.stderr
    assert not (tmp_path / "was-run").exists()
    invoke("--model", model, *basic[2:-1], tmp_path / "other", "--trust-remote-code")
    assert (tmp_path / "was-run").exists()  # so that the test can fail

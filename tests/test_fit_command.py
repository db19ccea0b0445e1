"""`masklens fit`: its settings, and what it says when it is stopped."""

import pytest
import typer
from typer.testing import CliRunner

import masklens
from lens_parts import QUICK as SMALL
from lens_parts import objective
from masklens.cli import fit
from masklens.cli.main import app
from masklens.diffmask.forecast import saved_step
from masklens.diffmask.trainer import Settings, Training


def test_options_go_before_quick():
    assert fit.chosen_settings(False, None, None) == {}
    assert fit.chosen_settings(True, None, None) == fit.QUICK
    assert fit.chosen_settings(True, 7, 9) == fit.QUICK | {"steps": 7, "batch_size": 9}
    assert Settings().steps == fit.STEPS > fit.QUICK["steps"]


def test_quick_reaches_the_fit_and_ctrl_c_is_told(monkeypatch, tmp_path):
    given = {}

    def stopped(subject, texts, *more, folder, report, **settings):
        given.update(settings, texts=len(texts))
        raise KeyboardInterrupt

    monkeypatch.setattr(fit, "load_subject", lambda *how: None)
    monkeypatch.setattr(masklens.DiffMask, "fit", stopped)
    (tmp_path / "x.txt").write_text("one\ntwo\n")
    done = CliRunner().invoke(
        app, ["fit", "--quick", "--data", str(tmp_path / "x.txt"), "--out", str(tmp_path / "lens")]
    )
    assert done.exit_code == 130 and "nothing is saved" in done.stderr
    assert given == {**fit.QUICK, "texts": 2}


def test_what_is_saved_is_told(tmp_path, capsys):
    training = Training(objective(), SMALL, tmp_path)
    training.step = 3
    training.save()
    assert saved_step(tmp_path) == 3 and saved_step(tmp_path / "none") == 0
    with pytest.raises(typer.Exit) as left, fit.told_when_stopped(tmp_path):
        raise KeyboardInterrupt
    assert left.value.exit_code == 130
    assert f"3 steps are saved in {tmp_path}: the same command goes on" in capsys.readouterr().err

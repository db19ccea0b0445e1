"""What all tests share: tiny models (see tiny.py), and a look at whether a model is as it was."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tiny
from masklens import progress
from restored import snapshot


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-table", action="store_true", help="write what the contract found to docs/families.md"
    )


CONTRACT: list[tuple[str, Any]] = []
"""(outcome, [method, family, task, why not]) of each contract test, also of those that other workers ran"""
LANGUAGE: list[tuple[str, Any]] = []
"""(outcome, [method, family, why not]) of the contract tests on further language models"""


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call":
        for name, value in report.user_properties:
            if name in ("contract", "language"):
                (CONTRACT if name == "contract" else LANGUAGE).append((report.outcome, value))


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.getoption("--write-table") and not hasattr(session.config, "workerinput"):
        import family_table

        family_table.write(CONTRACT, LANGUAGE)


@pytest.fixture(scope="session")
def bert():
    """A tiny BERT with three classes."""
    return tiny.subject("bert")


@pytest.fixture(autouse=True)
def never_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a command says about slow work would depend on the machine."""
    monkeypatch.setattr(progress, "SLOW", 3600.0)


@pytest.fixture
def unchanged():
    """A function that raises unless a model is as it was when the function was asked for first.

    Hooks are compared with those before, not with none: transformers leaves some of its own.
    """
    seen: dict[int, Any] = {}

    def check(module: nn.Module) -> None:
        now = snapshot(module)
        before = seen.setdefault(id(module), now)
        for name in before:
            assert before[name] == now[name], f"{name} changed"

    return check


@pytest.fixture(scope="session")
def model_folder():
    """A function from a checkpoint's name to its folder; skips the test where there is none."""

    def find(name: str) -> Path:
        shared = Path(__file__).parents[2] / "shared"
        for folder in (os.environ.get("MASKLENS_MODELS"), shared / "models"):
            if folder and (Path(folder) / name / "config.json").exists():
                return Path(folder) / name
        pytest.skip(f"no checkpoint {name}; set MASKLENS_MODELS to a folder of reference checkpoints")

    return find


@pytest.fixture(autouse=True)
def _same_random_numbers():
    torch.manual_seed(0)

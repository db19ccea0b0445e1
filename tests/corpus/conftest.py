from dataclasses import replace

import pytest

from corpora import save_model, write_corpus
from masklens.corpus import Job, run


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """The folder of a tiny model."""
    return save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """A jsonl file with good and bad rows."""
    path = tmp_path_factory.mktemp("corpus") / "texts.jsonl"
    write_corpus(path)
    return str(path)


@pytest.fixture
def job(model, corpus):
    return Job(model, corpus, "grad_x_input", label_column="label", batch_size=8, shard_rows=16)


@pytest.fixture(scope="session")
def runs(model, corpus, tmp_path_factory):
    """Two runs over the same rows: one with two sites, one that took fewer rows."""
    folder = tmp_path_factory.mktemp("runs")
    job = Job(model, corpus, "grad_x_input", label_column="label", sites=(0, 2), shard_rows=16, verify=False)
    run(job, str(folder / "gradient"))
    run(replace(job, method="random", sites=None, shard_rows=25, limit=50), str(folder / "noise"))
    return {name: str(folder / name) for name in ("gradient", "noise")}

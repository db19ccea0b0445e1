import pytest

from corpora import save_model, write_corpus
from masklens.corpus import Job


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

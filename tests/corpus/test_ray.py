"""Corpus runs on a real Ray cluster of several nodes on this machine."""

import os
import signal
from dataclasses import replace

import pytest

from corpora import content, write_corpus
from masklens.corpus import run
from masklens.errors import CorpusError

ray = pytest.importorskip("ray", reason="Ray is not installed; pip install 'masklens[ray]'")


@pytest.fixture(scope="module")
def cluster():
    """The address of a cluster of two nodes with one core each."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    made.add_node(num_cpus=1)
    ray.init(address=made.address, log_to_driver=False)
    yield made.address
    ray.shutdown()
    made.shutdown()


def replicas():
    """The processes that hold a model."""
    from ray._private.state import actors

    return [
        one["Address"]["Pid"] if "Pid" in one["Address"] else one["Pid"]
        for one in actors().values()
        if one["State"] == "ALIVE"
    ]


def test_relative_paths_are_refused(job, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CorpusError, match="relative path"):
        run(job, "somewhere", ray="auto")


@pytest.mark.slow
def test_a_cluster_writes_what_one_machine_writes_though_a_worker_is_killed(job, tmp_path, cluster):
    for name in ("a", "b", "c"):
        write_corpus(tmp_path / f"{name}.jsonl", 200)
    many = replace(job, input=f"file://{tmp_path}/*.jsonl", shard_rows=20)
    said, killed = [], []

    def report(message):
        said.append(message)
        if len(said) == 3:
            killed.append(replicas()[0])
            os.kill(killed[0], signal.SIGKILL)

    totals = run(many, f"file://{tmp_path}/far", ray=cluster, report=report)
    assert killed and killed[0] not in replicas()
    assert totals.explained == 600 and len(said) == totals.shards
    run(many, str(tmp_path / "near"))
    assert content(tmp_path / "far") == content(tmp_path / "near")
    said.clear()
    assert run(many, f"file://{tmp_path}/far", ray=cluster, report=said.append) == totals
    assert said == []


@pytest.mark.slow
def test_strict_stops_a_cluster(job, tmp_path, cluster):
    with pytest.raises(CorpusError, match="cannot be explained"):
        run(job, str(tmp_path / "out"), ray=cluster, strict=True)

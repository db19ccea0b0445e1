"""What a corpus run does on a Ray cluster, step by step, without one."""

import pyarrow as pa

from corpora import content
from masklens.corpus import run
from masklens.corpus.job import begin, finish
from masklens.corpus.local import Plan
from masklens.corpus.ray import Replica, _follow, _packed, _read, _unpacked
from masklens.corpus.shards import totals
from masklens.corpus.storage import Folder
from masklens.files.reading import Row


def test_rows_travel_unchanged():
    rows = [Row(1, "x", "0"), Row(3, ("a", "b")), Row(4, None, reason="empty")]
    assert _unpacked(_packed(rows)) == rows


def test_chunks_that_are_read_explained_and_followed_make_the_same_run(job, tmp_path):
    expected = run(job, str(tmp_path / "near"))
    folder = Folder(str(tmp_path / "far"))
    begin(job, folder, [job.input])
    plan = Plan(job, folder.url, [job.input], [None], frozenset({"part-00000-000001"}))
    replica = Replica(plan, cores=1)
    entry = pa.Table.from_pylist([{"number": 0, "file": job.input, "share": None}])

    def done(skip):
        return [row for table in _read(entry, job, skip) for row in replica(table).to_pylist()]

    said = []
    names = _follow(done(plan.done), said.append)
    assert len(names) == 5 and [line[:17] for line in said] == sorted(names - plan.done)
    _follow(done(frozenset(names - plan.done)), said.append)
    found = totals(folder, names)
    finish(folder, found.shards)
    assert found == expected and content(tmp_path / "far") == content(tmp_path / "near")

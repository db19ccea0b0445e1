"""Explain corpora of any size. A run can be stopped at any moment and resumed.

    from masklens.corpus import Job, run

    run(Job(model="PATH", input="texts/*.jsonl", method="gradient"), "out")

`out/data` holds Parquet shards, `out/rejects.jsonl` the rows that could not be explained and why,
`out/manifest.json` the settings, inputs and versions of the run.
"""

from .job import Job as Job
from .local import run as run
from .shards import read_back as read_back

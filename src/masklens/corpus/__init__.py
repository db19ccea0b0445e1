"""Whole corpora: explain any number of texts, stop at any moment, and go on.

    from masklens.corpus import Job, run

    run(Job(model="PATH", input="texts/*.jsonl", method="gradient"), "out")

`out/data` holds Parquet shards, `out/rejects.jsonl` the rows that could not be explained and why,
`out/manifest.json` what the run was made of.
"""

from .job import Job as Job
from .local import run as run
from .shards import read_back as read_back

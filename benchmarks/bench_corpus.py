"""The speed of `masklens corpus` relative to the bare forward pass, its memory, and Ray, on minilm-sst2.

The bare pass runs the model over the same batches of similar length, tokenised in advance. A corpus run
reads, tokenises, explains and writes. Loading the model counts for neither. All jobs are run in turn in
several rounds, and a ratio is the median of the rounds' ratios. Times are CPU seconds of all threads of the
process, so that other work on the machine does not count. They do not show that reading and writing overlap
with the model.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.reference import Missing, checkpoint, sst2_dev
from benchmarks.timing import Times, Way, in_turn, ratio, table
from masklens import Subject
from masklens.corpus import Job, run
from masklens.corpus.job import manifest
from masklens.corpus.local import Plan, Share, work
from masklens.corpus.storage import Folder
from masklens.corpus.worker import Worker
from masklens.diffmask.lens import DiffMask
from masklens.diffmask.networks import Probe, rows_for
from masklens.diffmask.trainer import Settings

ROUNDS, BATCH = 3, 32
FEW_ROWS, MANY_ROWS = 5_000, 100_000
BARE = "bare forward pass"
LENS, VERIFIED = "fitted lens (at least 0.8)", "fitted lens, verified (at least 0.4)"
LAYER = 4
"""the block that Decoded Grad-CAM is asked for"""


def main() -> str:
    """Throughput, memory and Ray."""
    try:
        model, head, texts = checkpoint("minilm-sst2"), checkpoint("minilm-mlm"), sst2_dev()[0]
    except Missing as reason:
        return f"not run: {reason}"
    with tempfile.TemporaryDirectory() as name, one_thread():
        folder = Path(name)
        corpus = write_texts(folder / "texts.jsonl", texts)
        lens = any_lens(Subject.from_pretrained(model), folder / "lens")
        jobs = {
            LENS: Job(str(model), corpus, "diffmask", lens=lens, verify=False),
            VERIFIED: Job(str(model), corpus, "diffmask", lens=lens),
            "Decoded Grad-CAM, one layer (at least 0.35)": decoded(model, head, corpus, verify=False),
            "Decoded Grad-CAM, one layer, verified (at least 0.25)": decoded(model, head, corpus),
        }
        found = throughput(jobs)
        job = Job(str(model), corpus, "gradient", shard_rows=64)
        return "\n\n".join(
            [rates(found, len(texts)), lost(found), memory(folder, texts), ray_overhead(folder, job)]
        )


@contextmanager
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def write_texts(path: Path, texts: list[str]) -> str:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return str(path)


def any_lens(subject: Subject, folder: Path) -> str:
    """A lens over inputs at all sites; what it costs does not depend on what it has learned.

    Its gates are half open, so that there is something to verify: a lens that keeps all is verified at once.
    """
    widths = dict.fromkeys(subject.sites, subject.module.config.hidden_size)
    probe = Probe(rows_for("inputs", subject.sites), widths)
    for row in range(len(probe.rows)):
        torch.nn.init.zeros_(probe.gate(row).bias)
        torch.nn.init.normal_(probe.gate(row).outer.weight)
    return str(DiffMask(subject, probe, "inputs", Settings()).save_pretrained(folder))


def decoded(model: Path, head: Path, corpus: str, verify: bool = True) -> Job:
    return Job(str(model), corpus, "decoded_gradcam", lm_head=str(head), sites=(LAYER + 1,), verify=verify)


def throughput(jobs: dict[str, Job]) -> Times:
    """CPU seconds of the bare forward pass and of each job, in each round."""
    ways: dict[str, Way] = {}
    with tempfile.TemporaryDirectory() as out:
        for i, (name, job) in enumerate(jobs.items()):
            worker = Worker(job, "cpu")
            ways.setdefault(BARE, bare(worker))
            ways[name] = whole_run(worker, Path(out) / str(i))
        return in_turn(ways, ROUNDS)


def bare(worker: Worker) -> Way:
    """The model alone, over the batches that the run has."""
    encoded = [one.batch for one in map(worker.encode, share(worker, "").pending()) if one.batch is not None]
    batches = [
        batch.take(rows).trimmed() for batch in encoded for rows in worker.size.cut(batch.lengths.tolist())
    ]
    return torch.no_grad()(lambda: [worker.subject.module(**batch.inputs) for batch in batches])


def whole_run(worker: Worker, out: Path) -> Way:
    """Read, tokenise, explain and write everything."""

    folder = Folder(str(out))
    manifest(worker.job, [worker.job.input]).write(folder)
    return lambda: list(work(lambda: worker, folder, share(worker, str(out)).pending()))


def share(worker: Worker, out: str) -> Share:
    return Share(Plan(worker.job, out, [worker.job.input], [None], frozenset()), "cpu")


def rates(times: Times, count: int) -> str:
    """Texts a CPU second, and their share of the bare pass's."""
    rows = [[n, f"{count / median(t):.1f}", f"{ratio(times, BARE, n):.2f}"] for n, t in times.items()]
    about = f"{count} sentences of SST-2, minilm-sst2, batches of {BATCH}, one thread, {ROUNDS} rounds"
    return f"{about}\n\n{table(['', 'texts a CPU second', 'of the bare pass'], rows)}"


def lost(times: Times) -> str:
    """What verification of a lens costs, and the least that one more forward pass can cost."""
    least = ratio(times, BARE, LENS)  # of the bare pass; one more pass makes it least / (1 + least)
    return (
        f"verification of the lens loses {1 - ratio(times, LENS, VERIFIED):.2f} of the throughput; one more "
        f"forward pass of each text, and nothing else, would lose {least / (1 + least):.2f}"
    )


def memory(folder: Path, texts: list[str]) -> str:
    """The largest resident size of a whole run in a process of its own, for few and for many texts.

    The model is a small random one: what must not grow with the corpus is everything else.
    """
    model = small_model(folder / "small")
    peaks = [peak(folder, model, texts, rows) for rows in (FEW_ROWS, MANY_ROWS)]
    return (
        f"peak memory: {peaks[0] / 1024:.0f} MB for {FEW_ROWS:,} texts, {peaks[1] / 1024:.0f} MB for "
        f"{MANY_ROWS:,}: {peaks[1] / peaks[0]:.2f} (at most 1.10)"
    )


def small_model(folder: Path) -> str:
    """A random BERT of two narrow layers, with minilm's tokenizer."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint("minilm-sst2"))
    sizes: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=len(tokenizer), intermediate_size=64, **sizes)
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def peak(folder: Path, model: str, texts: list[str], rows: int) -> int:
    """Kilobytes."""
    corpus = write_texts(folder / f"{rows}.jsonl", [texts[i % len(texts)] for i in range(rows)])
    job = Job(model, corpus, "gradient", verify=False)
    code = (
        "import json, resource, sys\nfrom masklens.corpus import Job, run\n"
        "given = json.load(sys.stdin)\ngiven['columns'] = tuple(given['columns'])\n"
        "run(Job(**given), sys.argv[1], 'cpu')\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder / f"out{rows}")],
        input=json.dumps(asdict(job)),
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    return int(done.stdout.split()[-1])


def ray_overhead(folder: Path, job: Job) -> str:
    """Two workers of one core each, under Ray and as two local processes, once their models are loaded."""
    try:
        import ray
    except ImportError:
        return "Ray: not run: not installed"
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        ratios = []
        for i in range(ROUNDS):
            local = steady(job, str(folder / f"local{i}"), device="cpu,cpu")
            ratios.append(steady(job, str(folder / f"ray{i}"), ray="auto") / local)
    finally:
        ray.shutdown()
    return f"Ray with 2 workers on 2 cores: {median(ratios):.2f} of two local processes (at least 0.8)"


def steady(job: Job, out: str, **where: Any) -> float:
    """Shards a second after the first ones, one a worker, are done: models are loaded then."""
    run(job, out, **where)
    times = sorted(path.stat().st_mtime for path in (Path(out) / "data").iterdir())
    return (len(times) - 2) / (times[-1] - times[1])

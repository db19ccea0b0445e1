"""What `masklens corpus` gives beside the bare forward pass, peers, its memory and Ray, on minilm-sst2.

The bare pass runs the model over the same length-bucketed batches, tokenised before. A corpus run reads,
tokenises, explains and writes; loading the model is left out of both. The ways take turns, and a ratio is the
median of the rounds' ratios. Times are CPU seconds of all threads of the process, so that other work on the
machine does not count; that reading and writing overlap with the model is not credited.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import torch

from masklens import Subject
from masklens.corpus import Job, run
from masklens.corpus.running import pending, work
from masklens.corpus.storage import Folder
from masklens.corpus.worker import Worker
from masklens.diffmask.lens import DiffMask
from masklens.diffmask.networks import Probe, rows_for
from masklens.diffmask.trainer import Settings

from .reference import Missing, checkpoint, sst2_dev

ROUNDS, BATCH, FEW = 3, 32, 16
FEW_ROWS, MANY_ROWS = 5_000, 100_000
LAYER = 4
"""the block that Decoded Grad-CAM is asked for"""

Way = Callable[[], object]


def main() -> str:
    """Throughput, peers, memory and Ray."""
    try:
        model, head, texts = checkpoint("minilm-sst2"), checkpoint("minilm-mlm"), sst2_dev()[0]
    except Missing as reason:
        return f"not run: {reason}"
    with tempfile.TemporaryDirectory() as name, one_thread():
        folder = Path(name)
        corpus = write_texts(folder / "texts.jsonl", texts)
        lens = any_lens(Subject.from_pretrained(model), folder / "lens")
        jobs = {
            "fitted lens (at least 0.8)": Job(str(model), corpus, "diffmask", lens=lens, verify=False),
            "fitted lens, verified (at least 0.4)": Job(str(model), corpus, "diffmask", lens=lens),
            "Decoded Grad-CAM, one layer (at least 0.35)": decoded(model, head, corpus, verify=False),
            "Decoded Grad-CAM, one layer, verified (at least 0.25)": decoded(model, head, corpus),
        }
        found = throughput(jobs, len(texts))
        parts = [table(found, len(texts)), against_peers(model, texts[:FEW], found), memory(folder, texts)]
        return "\n\n".join([*parts, ray_overhead(folder, Job(str(model), corpus, "gradient", shard_rows=64))])


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


def throughput(jobs: dict[str, Job], count: int) -> dict[str, list[float]]:
    """Texts a second of the bare forward pass and of each job, in each round."""
    ways: dict[str, Way] = {}
    with tempfile.TemporaryDirectory() as out:
        for i, (name, job) in enumerate(jobs.items()):
            worker = Worker(job, "cpu")
            ways.setdefault("bare forward pass", bare(worker))
            ways[name] = whole_run(worker, Path(out) / str(i))
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(ROUNDS):
            for name, way in ways.items():
                start = time.process_time()
                way()
                rates[name].append(count / (time.process_time() - start))
    return rates


def bare(worker: Worker) -> Way:
    """The model alone, over the batches that the run has."""
    chunks = pending(worker.job, [worker.job.input], [None], set())
    encoded = [one.batch for one in map(worker.encode, chunks) if one.batch is not None]
    batches = [batch.take(rows).trimmed() for batch in encoded for rows in worker._batches(batch)]
    return torch.no_grad()(lambda: [worker.subject.module(**batch.inputs) for batch in batches])


def whole_run(worker: Worker, out: Path) -> Way:
    """Read, tokenise, explain and write everything."""

    def once() -> None:
        todo = pending(worker.job, [worker.job.input], [None], set())
        work(lambda: worker, Folder(str(out)), todo, lambda message: None)

    return once


def table(rates: dict[str, list[float]], count: int) -> str:
    lines = [
        f"{count} sentences of SST-2, minilm-sst2, batches of {BATCH}, one thread, {ROUNDS} rounds in turn",
        "",
        "| | texts a CPU second | of the bare pass |",
        "|---|---|---|",
    ]
    for name, some in rates.items():
        lines.append(f"| {name} | {median(some):.1f} | {ratio(rates, name):.2f} |")
    return "\n".join(lines)


def ratio(rates: dict[str, list[float]], name: str) -> float:
    return median(a / b for a, b in zip(rates[name], rates["bare forward pass"], strict=True))


def against_peers(model: Path, texts: list[str], rates: dict[str, list[float]]) -> str:
    """How many times a peer's texts a second a run with a lens gives; both are measured in forward passes."""
    python = os.environ.get("MASKLENS_PEERS", sys.executable)
    script = str(Path(__file__).with_name("peers.py"))
    done = subprocess.run(
        [python, script, str(model)], input=json.dumps(texts), capture_output=True, text=True
    )
    if done.returncode:
        return f"peers: not run: {done.stderr.strip().splitlines()[-1]}"
    seconds = json.loads(done.stdout)
    ours = ratio(rates, next(name for name in rates if "lens" in name))
    lines = [
        "| peer | cost in forward passes | corpus with a lens is faster by (at least 50) |",
        "|---|---|---|",
    ]
    for name in ("captum", "transformers_interpret", "interpreto"):
        cost = seconds.get(name, float("nan")) / seconds["forward"]
        lines.append(
            f"| {name} | {cost:.0f} | {ours * cost:.0f}x |"
            if name in seconds
            else f"| {name} | not installed | |"
        )
    return "\n".join(lines)


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

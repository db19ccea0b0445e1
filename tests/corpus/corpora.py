"""Small corpora and a small model on disk, for the tests of corpus runs."""

import json
import time
from pathlib import Path

import tiny
from masklens.corpus import Job, run

GOOD = ["a fast , funny movie", "the plot is dull", "she sold the red car", "a funny car and a dull plot ."]
BAD = ['{"text": ""}', '{"text": null}', '{"text": 3}', '{"other": "x"}', "{not json", '{"text": "\\ud800"}']
TOO_LONG = json.dumps({"text": "dull " * 100, "label": 0})


def save_model(folder, seed=0):
    """A tiny BERT with three classes and its tokenizer."""
    tiny.model("bert", seed=seed).save_pretrained(folder)
    tiny.FAMILIES["bert"].tokenizer().save_pretrained(folder)
    return str(folder)


def write_corpus(path, rows=60):
    """Good rows of different lengths with bad ones in between; returns how many are good and bad."""
    lines, bad = [], [*BAD, TOO_LONG]
    for i in range(rows):
        text = " ".join([GOOD[i % 4], *GOOD[: i % 3]])
        lines.append(json.dumps({"text": text, "label": i % 3}))
        if i % 9 == 4:
            lines.append(bad[i // 9 % len(bad)])
    Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return rows, len(lines) - rows


def content(folder):
    """Every file of a run that must not depend on how it went, by name."""
    files = [*Path(folder).glob("data/*"), *Path(folder).glob("rejects/*"), Path(folder) / "rejects.jsonl"]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def slowly(job: Job, out: str) -> None:
    """A run that rests after every shard; for a process of its own, which says when it begins."""
    Path(f"{out}.begun").touch()
    run(job, out, report=lambda message: time.sleep(0.03))

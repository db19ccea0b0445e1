"""How far the published recipe gets on SST in a given time, on any device.

    python -m benchmarks.published_sst MODEL_DIR DATA_DIR OVER SECONDS OUT.json

The texts are those of `masklens reproduce sst`. The file has the time it took, every site's divergence and
share kept on held-out texts, and the sites that collapsed.
"""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from pathlib import Path

import torch

from masklens import DiffMask, Subject
from masklens.reproduce.running import commit, device_name, fast_products, write_json
from masklens.reproduce.sst import MARGIN
from masklens.reproduce.treebank import texts_to_fit_on

TIMED = 50
"""steps from which the speed is taken"""


def main(model: Path, data: Path, over: str, seconds: float, out: Path) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    subject = Subject.from_pretrained(model, device=device, truncate=True)
    texts, watched, judged = texts_to_fit_on(data, model.name.rpartition("-")[2])

    def fit(steps: int) -> tuple[DiffMask, float]:
        start = time.perf_counter()
        how = {"held_out": judged, "validation": watched, "recipe": "published", "steps": steps}
        lens = DiffMask.fit(subject, texts, over, MARGIN, **how)  # type: ignore[arg-type]
        return lens, time.perf_counter() - start

    with fast_products(device):
        once, many = fit(TIMED)[1], fit(2 * TIMED)[1]
        lens, spent = fit(round(seconds / (many - once) * TIMED))
    found = {
        "device": device_name(device),
        "commit": commit(),
        "over": over,
        "seconds": spent,
        "lens": asdict(lens.settings),
        "sites": [d._asdict() for d in lens.diagnostics],
        "events": lens.events,
    }
    write_json(out, found)


if __name__ == "__main__":
    model, data, over, seconds, out = sys.argv[1:]
    main(Path(model), Path(data), over, float(seconds), Path(out))

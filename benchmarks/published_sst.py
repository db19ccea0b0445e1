"""How far the published loop gets on SST in a given time (see bench_fit.Published), on any device.

    python -m benchmarks.published_sst MODEL_DIR DATA_DIR OVER SECONDS OUT.json

Batches of 64 and 1,200 steps of warming up, as published; the same probe, data and validation texts as
`masklens reproduce sst` uses. The file has the time and every site's divergence and share kept on the
validation texts, over and over.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch

from benchmarks.bench_fit import Published
from masklens import Subject
from masklens.diffmask.trainer import Settings
from masklens.diffmask.lens import _split, _start
from masklens.diffmask.objective import FrozenTexts, LensObjective
from masklens.diffmask.networks import Probe, rows_for
from masklens.reproduce.running import device_name, fast_products, write_json
from masklens.reproduce.treebank import read_split

MARGIN, BATCH, WARMUP, EVERY = 0.1, 64, 1200, 30.0
"""`EVERY`: seconds between looks at the validation texts"""


def main(model: Path, data: Path, over: str, seconds: float, out: Path) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    subject = Subject.from_pretrained(model, device=device, truncate=True)
    train, validation, _ = _split(read_split(data, "sst5", "train").texts, 0.1, None, 0)
    rows = rows_for(over, subject.sites)
    frozen = FrozenTexts(subject, train, subject.sites, 0)  # the published loop computes states anew
    held = FrozenTexts(subject, validation, subject.sites, 2 * 10**9)
    torch.manual_seed(0)
    probe = Probe(rows, frozen.widths, over == "inputs", gate="tanh", compared=0, sums=False).to(device)
    _start(probe, subject, frozen)
    objective = LensObjective(probe, frozen, held, Settings(margin=MARGIN, batch_size=BATCH))
    loop, history, spent, looked = Published(objective, WARMUP), [], 0.0, 0.0
    with subject.frozen(), fast_products(device):
        while spent < seconds:
            start = time.perf_counter()
            loop.one_step()
            spent += time.perf_counter() - start
            if spent - looked > EVERY or spent >= seconds:
                looked = spent
                found = [j._asdict() for j in objective.judge(range(objective.groups))]
                history.append({"seconds": spent, "steps": loop.step, "sites": found})
                write_json(out, {"device": device_name(device), "over": over, "history": history})


if __name__ == "__main__":
    model, data, over, seconds, out = sys.argv[1:]
    main(Path(model), Path(data), over, float(seconds), Path(out))

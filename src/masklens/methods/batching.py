"""How methods that expand a batch keep memory bounded and padding out of the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from ..errors import MethodError
from ..model.batch import Batch
from ..model.masking import Baseline, Masked
from ..model.memory import even
from ..progress import track
from ..tasks.base import per_text
from .registry import Request

NUMBERS_AT_ONCE = {"cpu": 2**20, "cuda": 2**23}
"""the internal batch limit when none is given: rows x tokens x width of the states of one forward pass. For a
model of 12 blocks with gradients it is about 1 GB on the CPU; a GPU needs more work at a time to be busy."""
MOST_ROWS = 4096
PADDING = {"cpu": 0.0, "cuda": 0.15}
"""how much longer than the shortest the texts of a group may be: a GPU is slowed by many small groups more
than by some padding"""


def rows_at_once(batch: Batch, width: int, internal_batch_size: int | None) -> int:
    """How many expanded rows go through the model together, for states of the given width."""
    if internal_batch_size is None:
        limit = NUMBERS_AT_ONCE.get(batch.valid.device.type, NUMBERS_AT_ONCE["cpu"])
        return min(MOST_ROWS, max(1, limit // (batch.shape[1] * width)))
    if internal_batch_size < 1:
        raise MethodError(f"internal_batch_size is {internal_batch_size}; it must be at least 1")
    return internal_batch_size


def pairs(examples: int, steps: int, limit: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Every (example, step) pair, an example's steps together, at most `limit` pairs at a time."""
    parts = torch.arange(examples * steps).split(even(examples * steps, limit))
    for index in track(parts, "running the model"):
        yield index // steps, index % steps


def masked_at(request: Request, site: int, baseline: Tensor, internal_batch_size: int | None) -> Masked:
    """The texts, ready to have states at a site replaced by a baseline (examples, tokens, width)."""
    state, length = request.states()[site], request.batch.shape[1]
    rows = rows_at_once(request.batch, state.shape[-1], internal_batch_size)
    batch = request.batch
    if request.shared:
        batch, state, baseline = request.whole, state[-1:], baseline[-1:]
    return Masked(request.subject, batch, Baseline(baseline, site, state), tokens_at_once=rows * length)


def stacked(request: Request, score: Callable[[int], Tensor]) -> Tensor:
    """(examples, sites, tokens) from a function that gives the scores (examples, tokens) of one site."""
    return torch.stack([score(site) for site in track(request.sites, "layers")], dim=1)


def site_by_site(request: Request, score: Callable[[Request, int], Tensor]) -> Tensor:
    """The same, the texts of each length apart (see `by_length`)."""
    return by_length(request, lambda part: stacked(part, lambda site: score(part, site)))


def by_length(request: Request, function: Callable[[Request], Tensor]) -> Tensor:
    """Apply `function` to the texts of each length apart, so that no forward pass computes padding; on a GPU,
    to those of nearly one length.

    Worth it where a text goes through the model many times. The unedited states are computed once for all,
    if the task's output allows it. The scores come back as (examples, sites, tokens) of the whole batch.
    """
    if request.shared or not _can_cut(request):
        return function(request)
    if request.subject.task.fixed_shape:
        request.states()
    padding = PADDING.get(request.batch.valid.device.type, PADDING["cuda"])
    return _in_groups(request, groups_of(request.batch.valid.sum(1).tolist(), padding), function)


def groups_of(lengths: Sequence[int], padding: float) -> list[list[int]]:
    """Texts in groups by length, the shortest first; none is longer than a group's shortest by more than the
    given share."""
    groups: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        if not groups or lengths[i] > (1 + padding) * lengths[groups[-1][0]]:
            groups.append([])
        groups[-1].append(i)
    return groups


def _in_groups(request: Request, groups: list[list[int]], function: Callable[[Request], Tensor]) -> Tensor:
    valid = request.batch.valid
    attended = valid | request.batch.inputs["attention_mask"].bool()
    shape = len(valid), len(request.sites), valid.shape[1]
    scores = torch.zeros(shape, device=valid.device, dtype=torch.float32)
    outputs = []
    for rows in groups:
        part, index = part_of(request, rows), torch.tensor(rows, device=valid.device)
        whole = scores.new_zeros(len(rows), *shape[1:])
        found = torch.where(part.batch.valid[:, None], function(part), 0.0)
        whole[:, :, attended[index].any(0)] = found.to(whole)
        scores[index] = whole
        outputs.append(part.reference)
        for j, i in enumerate(rows):
            request.notes.setdefault(i, {}).update(part.notes.get(j, {}))
            request.expected[i] = part.expected.get(j, ())
    if len({output.shape[1:] for output in outputs}) == 1:
        order = torch.tensor([i for rows in groups for i in rows]).argsort()
        request.note(torch.cat(outputs)[order.to(valid.device)])
    return scores


def part_of(request: Request, rows: list[int]) -> Request:
    """The request for some of its texts, without the padding that none of them needs."""
    wanted, batch = per_text(request.wanted, len(request.batch)), request.batch.take(rows)
    part = Request(
        request.subject,
        batch.trimmed(),
        request.sites,
        [wanted[i] for i in rows],
        request.seed,
        request.baselines,
        None if request.heads is None else request.heads[rows][:, batch.columns],
    )
    if request._states is not None:
        part._states = {site: state[rows][:, batch.columns] for site, state in request._states.items()}
        part.note(request.reference[rows])
    return part


def _can_cut(request: Request) -> bool:
    """Padding columns can go if every input is known to have one column per token, and no baseline has."""
    baselines = request.baselines
    by_position = isinstance(baselines, dict) or (isinstance(baselines, Tensor) and baselines.dim() > 1)
    return request.batch.by_token and not by_position

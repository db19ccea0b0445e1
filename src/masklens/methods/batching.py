"""For methods that run many copies of a text: bounded memory, and little or no padding."""

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
"""the default internal batch limit: rows x tokens x width of the states of one forward pass. For a model with
12 blocks and gradients this is about 1 GB on the CPU; a GPU needs larger batches to be busy."""
MOST_ROWS = 4096
PADDING = {"cpu": 0.0, "cuda": 0.15}
"""how much longer than the shortest text of a group the others may be, as a share: on a GPU many small groups
cost more than some padding"""


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
    """The texts, ready to be run with states at a site replaced by a baseline (examples, tokens, width)."""
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
    """The same as `stacked`, for the texts of each length separately (see `by_length`)."""
    return by_length(request, lambda part: stacked(part, lambda site: score(part, site)))


def by_length(request: Request, function: Callable[[Request], Tensor]) -> Tensor:
    """Apply `function` to the texts of each length separately, so that no forward pass computes padding. On a
    GPU a group holds texts of nearly the same length.

    This pays for methods that run a text many times. The unedited states are computed once for all groups, if
    the task's output allows it. Returns scores (examples, sites, tokens) of the whole batch.
    """
    if request.shared or not _can_cut(request):
        return function(request)
    if request.subject.task.fixed_shape:
        request.states()
    padding = PADDING.get(request.batch.valid.device.type, PADDING["cuda"])
    return _in_groups(request, groups_of(request.batch.valid.sum(1).tolist(), padding), function)


def groups_of(lengths: Sequence[int], padding: float) -> list[list[int]]:
    """The numbers of the texts in groups by length, the shortest first. No text is longer than the shortest
    one of its group by more than the share `padding`."""
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
    """The request for some of its texts, cut to the longest of them."""
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
    """Whether padding columns can be cut off: every input has one column per token, and no baseline has."""
    baselines = request.baselines
    by_position = isinstance(baselines, dict) or (isinstance(baselines, Tensor) and baselines.dim() > 1)
    return request.batch.by_token and not by_position

"""Explain the rows of a chunk with one model on one device. Texts of similar length share a batch, and bad
rows are set aside."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from ..attribution import probability_rows
from ..errors import CorpusError, OutputError, TextError
from ..evaluation.masking import Views
from ..evaluation.ranking import Ranking
from ..evaluation.verify import Question, removal, try_removal, verifications
from ..files.reading import Row
from ..methods.explain import (
    Computed,
    chosen_sites,
    finite_scores,
    one_behind,
    run_method,
    shown_settings,
)
from ..methods.registry import Request, find
from ..model.batch import Batch
from ..model.known import Known
from ..model.memory import BatchSize, out_of_memory, tokens_at_once
from ..model.nans import Look, looking_later
from ..model.subject import Subject
from ..records.verification import Verification
from .job import Job
from .shards import SCHEMA, Place, Reject, columns_of, row_id, table_of

T = TypeVar("T")


class Chunk(NamedTuple):
    """Rows of one file that are explained together and written as one shard."""

    place: Place
    file: str
    rows: list[Row]

    def id_of(self, i: int) -> str:
        return row_id(self.file, self.rows[i].number)


class Encoded(NamedTuple):
    """A chunk after tokenising."""

    chunk: Chunk
    batch: Batch | None
    """the rows that can be explained, on the CPU; None if there are none"""
    which: list[int]
    """for each text of the batch, the number of its row in the chunk"""
    rejects: dict[int, str]
    """why rows were rejected, by their number in the chunk"""


class Shard(NamedTuple):
    """An explained chunk."""

    place: Place
    table: pa.Table
    rejects: list[Reject]


OUT_OF_MEMORY = "out of memory, even in a batch of its own"

Result = dict[str, Any] | str
"""the columns of some texts, or the reason why they could not be explained"""
BAD = (OutputError, TextError)
"""what the model says to a bad text"""


class Launched(NamedTuple):
    """A batch that the device is at work on."""

    request: Request
    computed: Computed


def _reason_of_one(
    work: Callable[[Worker, Batch, list[int]], T],
) -> Callable[[Worker, Batch, list[int]], T | str]:
    """Work on some texts of a batch; for a single text that fails, the reason."""

    def tried(self: Worker, batch: Batch, rows: list[int]) -> T | str:
        try:
            return work(self, batch, rows)
        except (*BAD, RuntimeError) as error:
            short = out_of_memory(error)
            if len(rows) > 1 or (isinstance(error, RuntimeError) and not short):
                raise
            return OUT_OF_MEMORY if short else str(error)

    return tried


class Worker:
    """A model on a device, and the job that it works on."""

    def __init__(self, job: Job, device: str | None = None, strict: bool = False) -> None:
        self.job, self.strict = job, strict
        self.subject = Subject.from_pretrained(
            job.model, device, truncate=job.truncate, trust_remote_code=job.trust_remote_code
        )
        self.method = find(job.method_name())
        self.options = self._options()
        self.sites = chosen_sites(self.subject, self.method, job.sites, self.options.get("lens"))
        self.settings: dict[str, Any] = {"seed": job.seed, "baselines": None, **self.options}
        self.shown = shown_settings({**self.method.options, **self.settings})
        self.size = BatchSize(job.batch_size, tokens_at_once(self.subject.module, self.subject.device))
        self._views: Views | None = None

    def _options(self) -> dict[str, Any]:
        options = dict(self.job.options)
        if self.job.lm_head is not None:
            options["lm_head"] = self.job.lm_head
        if self.job.lens is not None:
            from ..diffmask.lens import DiffMask

            options["lens"] = DiffMask.from_pretrained(self.job.lens, self.subject)
        self.method.check_options(list(options))
        return options

    def encode(self, chunk: Chunk) -> Encoded:
        """Tokenise the rows of a chunk that hold a text."""
        rejects = {i: row.reason for i, row in enumerate(chunk.rows) if row.reason is not None}
        which = [i for i in range(len(chunk.rows)) if i not in rejects]
        try:
            batch = self._encode(chunk, which)
        except TextError:
            too_long = {i: reason for i in which if (reason := self._refusal(chunk, i)) is not None}
            rejects |= too_long
            which = [i for i in which if i not in too_long]
            batch = self._encode(chunk, which)
        return Encoded(chunk, batch, which, rejects)

    def _encode(self, chunk: Chunk, which: Sequence[int]) -> Batch | None:
        texts = [text for i in which if (text := chunk.rows[i].text) is not None]
        return self.subject.tokenized(texts, [self.job.target] * len(texts)) if texts else None

    def _refusal(self, chunk: Chunk, i: int) -> str | None:
        """Why the model does not take a row; None if it does."""
        try:
            self._encode(chunk, [i])
        except TextError as error:
            return str(error)
        return None

    def explain(self, encoded: Encoded) -> Shard:
        """Explain the texts of a chunk. Rows for which the model fails join the rejects."""
        chunk, batch, which, rejects = encoded
        self._check_strict(chunk, rejects)
        tables, order = [], []
        with self.subject.frozen():
            for part, result in [] if batch is None else self._explain(batch):
                if isinstance(result, str):
                    rejects[which[part[0]]] = result
                    self._check_strict(chunk, rejects)
                else:
                    here = [which[i] for i in part]
                    tables.append(self._with_rows(result, chunk, here))
                    order += here
        table = pa.concat_tables([SCHEMA.empty_table(), *tables]).take(np.argsort(order))
        listed = [Reject(chunk.id_of(i), rejects[i]) for i in sorted(rejects)]
        return Shard(chunk.place, table, listed)

    def _check_strict(self, chunk: Chunk, rejects: dict[int, str]) -> None:
        if self.strict and rejects:
            i = min(rejects)
            raise CorpusError(
                f"row {chunk.id_of(i)} cannot be explained: {rejects[i]}. Fix or remove it, or run without "
                f"--strict to set such rows aside"
            )

    def _explain(self, batch: Batch) -> Iterator[tuple[list[int], Result]]:
        """The columns of the texts, batch by batch; for a single text that failed, the reason.

        A GPU computes a batch while the columns of the last one are made. A batch that does not fit into
        memory is halved, and so are the batches after it. If the model fails for a text (NaN), its batch is
        halved until the text is alone.
        """
        alone: list[list[int]] = []
        for part, launched in one_behind(self._launched(batch)):
            try:
                done: Iterable[tuple[list[int], Result]] = [(part, self._columns(launched))]
            except (OutputError, TextError, RuntimeError) as error:
                if isinstance(error, RuntimeError) and not out_of_memory(error):
                    raise
                done = self.size.within_memory(lambda some: self._at_once(batch, some), part, BAD)
            del launched  # its states, before the batch after the next one is begun
            for some, result in done:
                if isinstance(result, str) and result == OUT_OF_MEMORY:
                    alone.append(some)
                else:
                    yield some, result
        for some in alone:  # now nothing else is on the device
            yield some, self._at_once(batch, some)

    def _launched(self, batch: Batch) -> Iterator[tuple[list[int], Launched | str]]:
        """What the device is at work on, batch by batch; for a single text that failed, the reason."""
        for rows in self.size.cut(batch.lengths.tolist()):
            yield from self.size.within_memory(lambda some: self._launch(batch, some), rows, BAD)

    @_reason_of_one
    def _launch(self, batch: Batch, rows: list[int]) -> Launched:
        """Have the device begin with these texts."""
        with looking_later() as looks:
            return self._begun(batch, rows, looks)

    def _begun(self, batch: Batch, rows: list[int], looks: Sequence[Look] = ()) -> Launched:
        some, wanted = batch.take(rows).trimmed(), [self.job.target] * len(rows)
        request = Request(self.subject, some.to(self.subject.device), self.sites, wanted, self.job.seed)
        scores = run_method(request, self.method, self.settings)
        return Launched(request, Computed(some, request, scores, looks))

    @_reason_of_one
    def _at_once(self, batch: Batch, rows: list[int]) -> Result:
        """The columns of these texts, without a batch in between."""
        return self._columns(self._begun(batch, rows))

    def _columns(self, launched: Launched | str) -> Result:
        """The shard's columns for one batch, without those that come from the rows."""
        if isinstance(launched, str):
            return launched
        request, computed = launched
        computed.wait()
        batch, task = computed.batch, self.subject.task
        scores = finite_scores(self.method, computed.scores)
        predicted = task.predict(computed.reference, batch)
        columns = columns_of(batch, self.sites, scores, self._proof(request, scores))
        return columns | {
            "prediction": task.describe(predicted, batch),
            "target": task.describe(computed.target, batch),
            "method": [self.method.name] * len(batch),
            "merge": [self.method.merge] * len(batch),
            "parts": [[] if isinstance(text, str) else list(task.parts) for text in batch.texts],
            "settings": self._settings_of(computed.notes),
            "probabilities": [probability_rows(one) for one in task.probabilities(computed.reference)],
            "answer": task.answers(predicted, batch),
            "expected": [computed.expected.get(i, ()) for i in range(len(batch))],
        }

    def _settings_of(self, notes: Sequence[dict[str, Any]]) -> list[str]:
        """The settings of each text as JSON, written once for all texts with the same notes."""
        names = [repr(one) for one in notes]
        written = {
            name: json.dumps(self.shown | one, sort_keys=True, default=str)
            for name, one in dict(zip(names, notes, strict=True)).items()
        }
        return [written[name] for name in names]

    def _proof(self, request: Request, scores: np.ndarray) -> list[Verification]:
        """Verify the scores of the deepest site (see `verify`)."""
        if not self.job.verify:
            return []
        how = request.known(removal(self.options.get("lens") or "mask", self.sites[-1]))
        known = Known(request.batch, request.reference)
        views = Views(self.subject, request.batch.texts, how=how, known=known, like=self._views)
        if self._views is None or views.masked.longest > self._views.masked.longest:
            self._views = views
        ranking = Ranking.of(scores[:, -1].astype(np.float64), views.removable)
        question = Question(guard=self.job.guard, control=self.job.control)
        tried = try_removal(views, ranking, self.method.merge == "max", question)
        return verifications(views, tried, self.sites[-1], request.batch.tokens)

    def _with_rows(self, columns: dict[str, Any], chunk: Chunk, here: Sequence[int]) -> pa.Table:
        own = {"row_id": [chunk.id_of(i) for i in here], "label": [chunk.rows[i].label for i in here]}
        return table_of(columns | own)

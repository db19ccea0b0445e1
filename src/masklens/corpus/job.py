"""The settings of a corpus run, and its manifest, by which a resumed run is checked."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ..errors import CorpusError, LensError, MethodError, ModelError, check_seed
from ..files import FileModel, file_system, parse, reason
from ..files.formats import STANDARD_INPUT, Columns
from ..files.reading import check_columns
from ..methods.usual import NEXT_TOKEN, USUAL
from ..model.loading import LANGUAGE_MODELS, loader_of
from ..model.places import check_place, gguf_place
from .storage import Folder

MANIFEST, DATA, REJECTS = "manifest.json", "data", "rejects"
LIBRARIES = ("masklens", "torch", "transformers", "tokenizers", "pyarrow", "numpy")
HASHED = (".safetensors", ".gguf", ".json", ".txt", ".model")
"""endings of the files that make a model: weights, configuration, tokenizer"""
TAGS = ("ETag", "etag", "md5Hash", "content_md5")
"""names under which storage systems report a hash of a file's content, so that the file need not be read"""


@dataclass(frozen=True)
class Job:
    """The settings that decide what a run writes."""

    model: str
    """a folder or a hub id"""
    input: str
    """a path, a URL or a pattern of them"""
    method: str | None = None
    """by default diffmask with a lens, else the usual one for the model"""
    options: dict[str, Any] = field(default_factory=dict)
    """the method's own options: numbers, strings, booleans"""
    lens: str | None = None
    lm_head: str | None = None
    columns: tuple[str, ...] = ("text",)
    label_column: str | None = None
    target: str | int | None = None
    sites: tuple[int, ...] | None = None
    verify: bool = True
    """whether each explanation is verified"""
    control: bool = False
    guard: float | None = None
    """`control` and `guard` are as in `masklens.verify`"""
    truncate: bool = False
    batch_size: int | None = None
    shard_rows: int = 2048
    """rows of the input in one shard; a killed run loses at most its unfinished shards"""
    limit: int | None = None
    seed: int = 0
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        for name in ("batch_size", "shard_rows"):
            given = getattr(self, name)
            if given is not None and given < 1:
                raise CorpusError(f"{name} is {given}; it must be at least 1")
        if self.guard is not None and not (self.verify and self.guard >= 0):
            raise CorpusError(f"guard is {self.guard}; give 0 nats or more, and verify, or leave it out")
        check_seed(self.seed)
        check_columns(self.columns)
        if self.input == STANDARD_INPUT:
            raise CorpusError("a corpus run reads its input again to go on after a stop; give a file, not -")
        odd = [k for k, v in self.options.items() if not isinstance(v, bool | int | float | str | None)]
        if odd:
            raise MethodError(f"option {odd[0]!r} of a corpus run must be a number, a string or a boolean")

    @property
    def read(self) -> Columns:
        return Columns(self.columns, self.label_column)

    def method_name(self) -> str:
        """The method that is named, or else the one for the lens, or for the kind of model."""
        if self.method is not None:
            return self.method
        if self.lens is not None:
            return "diffmask"
        loader = loader_of(self.model, self.trust_remote_code)
        return NEXT_TOKEN if loader in LANGUAGE_MODELS else USUAL


class Input(FileModel):
    """A file that a run read: its size and a hash of its content."""

    bytes: int
    content: str
    """SHA-256, or the hash that the storage reports"""


class Hashes(FileModel):
    """Hashes of the model, the lens and the LM head of a run."""

    model: str
    lens: str | None
    lm_head: str | None


class Manifest(FileModel):
    """The settings and inputs of a run. Runs that agree in them, versions aside, write the same output."""

    settings: dict[str, Any]
    inputs: dict[str, Input]
    hashes: Hashes
    versions: dict[str, str | None]
    shards: int | None = None
    """how many shards the run has; None until all are written"""

    def write(self, folder: Folder) -> None:
        folder.write(MANIFEST, self.model_dump_json(indent=1).encode())


def read_manifest(folder: Folder) -> Manifest | None:
    """The manifest of the run in a folder; None if there is none."""
    content = folder.read(MANIFEST)
    return None if content is None else parse(Manifest, content, folder.path(MANIFEST), CorpusError)


def manifest(job: Job, files: Sequence[str]) -> Manifest:
    return Manifest(
        settings=json.loads(json.dumps(asdict(job))),
        inputs={name: fingerprint_of_files(name) for name in files},
        hashes=Hashes(
            model=model_hash(job.model, job.trust_remote_code),
            lens=None if job.lens is None else folder_hash(job.lens),
            lm_head=None if job.lm_head is None else model_hash(job.lm_head, job.trust_remote_code),
        ),
        versions={name: _version(name) for name in LIBRARIES} | {"python": platform.python_version()},
    )


def begin(job: Job, folder: Folder, files: Sequence[str]) -> list[str]:
    """Write the manifest, or check that the folder holds the same run.

    Returns the libraries whose versions have changed since the run was started.
    """
    new, old = manifest(job, files), read_manifest(folder)
    if not folder.names(DATA):
        folder.clear(REJECTS)
        new.write(folder)
        return []
    if old is None:
        raise CorpusError(
            f"{folder.url} holds shards of an unknown run: there is no {MANIFEST}; remove them, or use "
            f"another folder"
        )
    differences = list(_differences(old, new))
    if differences:
        raise CorpusError(
            f"{folder.url} holds another run: {'; '.join(differences)}. Use the same settings to go on with "
            f"it, or another folder"
        )
    changed = {name for name in LIBRARIES if old.versions.get(name) != new.versions[name]}
    return [f"{name} was {old.versions.get(name)}, is {new.versions[name]}" for name in sorted(changed)]


def finish(folder: Folder, shards: int) -> None:
    """Write the number of shards into the manifest: the run is complete."""
    begun = read_manifest(folder)
    if begun is None:
        raise CorpusError(f"{MANIFEST} was removed from {folder.url} during the run; start again")
    begun.model_copy(update={"shards": shards}).write(folder)


def _differences(old: Manifest, new: Manifest) -> Iterator[str]:
    for name, value in new.settings.items():
        before = old.settings.get(name)
        if before != value:
            yield f"{name} was {before!r}, is {value!r}"
    for name, value in new.hashes:
        if getattr(old.hashes, name) != value:
            yield f"the {name.replace('_', ' ')} is not the same (its hash differs)"
    for name in sorted({*old.inputs, *new.inputs}):
        was, now = old.inputs.get(name), new.inputs.get(name)
        if was is None or now is None:
            yield f"the input {name} is {'new' if was is None else 'gone'}"
        elif was.bytes != now.bytes:
            yield f"the input {name} had {was.bytes} bytes, has {now.bytes}"
        elif was != now:
            yield f"the input {name} has the same size but other content"


def fingerprint_of_files(path: str, endings: str | tuple[str, ...] = "", depth: int | None = None) -> Input:
    """Size and hash of a file, or of the files in a folder with one of the endings, down to a depth."""
    total, size = hashlib.sha256(), 0
    try:
        fs, name = file_system(path)
        for one in sorted(file for file in fs.find(name, maxdepth=depth) if file.endswith(endings)):
            info = fs.info(one)
            size += info["size"]
            tag = next((info[key] for key in TAGS if info.get(key)), None)
            total.update(f"{one.removeprefix(name)!a} {info['size']} {tag}\n".encode())
            if tag is None:
                with fs.open(one, "rb") as file:
                    while block := file.read(1 << 20):
                        total.update(block)
    except OSError as error:
        raise CorpusError(f"cannot read {path}: {reason(error)}") from error
    return Input(bytes=size, content=f"sha256 {total.hexdigest()}")


def model_hash(path: str, trust_remote_code: bool = False) -> str:
    """The hash of a local folder, or the commit of a hub id."""
    folder, gguf_file = gguf_place(path)
    check_place(folder, gguf_file)
    if Path(folder).is_dir():
        return folder_hash(str(folder))
    import transformers

    try:
        config = transformers.AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
    except (OSError, ValueError) as error:
        raise ModelError(f"{path!r} is neither a folder nor a model on the hub that can be read") from error
    return f"commit {config._commit_hash}"


def folder_hash(path: str) -> str:
    """SHA-256 over the names and contents of the weights, configuration and tokenizer in a folder."""
    if not Path(path).is_dir():
        raise LensError(f"{path} is not a folder; give the folder of a lens")
    return fingerprint_of_files(path, HASHED, depth=1).content


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None

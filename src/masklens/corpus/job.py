"""What a corpus run is: its settings, and the manifest that lets the same run go on."""

from __future__ import annotations

import hashlib
import json
import platform
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ..errors import CorpusError, LensError, MethodError, ModelError
from .rows import Columns, find_files
from .storage import Folder, is_url

MANIFEST, DATA = "manifest.json", "data"
LIBRARIES = ("masklens", "torch", "transformers", "tokenizers", "pyarrow", "numpy")
HASHED = (".safetensors", ".gguf", ".json", ".txt", ".model")
"""endings of the files that make a model: weights, configuration, tokenizer"""


@dataclass(frozen=True)
class Job:
    """The settings that decide what a run writes."""

    model: str
    """a folder or a hub id"""
    input: str
    """a path, a URL or a pattern of them"""
    method: str = "integrated_gradients"
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
    keep: float = 0.5
    guard: float | None = None
    """both as in `masklens.verify`"""
    truncate: bool = False
    batch_size: int = 32
    shard_rows: int = 2048
    """rows of the input in one shard: what is lost at most when a run is killed"""
    limit: int | None = None
    seed: int = 0
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        for name in ("batch_size", "shard_rows"):
            if getattr(self, name) < 1:
                raise CorpusError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.guard is not None and not (self.verify and self.guard >= 0):
            raise CorpusError(f"guard is {self.guard}; give 0 nats or more, and verify, or leave it out")
        if not 1 <= len(self.columns) <= 2:
            raise CorpusError(f"{len(self.columns)} columns were given; give one, or two for pairs of texts")
        odd = [k for k, v in self.options.items() if not isinstance(v, bool | int | float | str | None)]
        if odd:
            raise MethodError(f"option {odd[0]!r} of a corpus run must be a number, a string or a boolean")

    @property
    def read(self) -> Columns:
        return Columns(self.columns, self.label_column)


def manifest(job: Job, files: list[str]) -> dict[str, Any]:
    """What a run is made of; two runs with the same manifest, versions aside, write the same."""
    return {
        "settings": json.loads(json.dumps(asdict(job))),
        "inputs": {name: _size(name) for name in files},
        "hashes": {
            "model": model_hash(job.model, job.trust_remote_code),
            "lens": None if job.lens is None else folder_hash(job.lens),
            "lm_head": None if job.lm_head is None else model_hash(job.lm_head, job.trust_remote_code),
        },
        "versions": {name: _version(name) for name in LIBRARIES} | {"python": platform.python_version()},
    }


def begin(job: Job, folder: Folder) -> list[str]:
    """Write the manifest, or check that what is in the folder is of the same run; returns the input files."""
    files = find_files(job.input)
    new = manifest(job, files)
    content = folder.read(MANIFEST)
    if content is None or not folder.names(DATA):
        folder.write(MANIFEST, json.dumps(new, indent=1).encode())
        return files
    differences = list(_differences(json.loads(content), new))
    if differences:
        raise CorpusError(
            f"{folder.url} holds another run: {'; '.join(differences)}. Use the same settings to go on with "
            f"it, or another folder"
        )
    return files


def changed_versions(folder: Folder) -> list[str]:
    """Libraries that are not those the run was begun with: numbers may differ in their last digits."""
    before = json.loads(folder.read(MANIFEST) or b"{}").get("versions", {})
    now = {name: _version(name) for name in LIBRARIES}
    return [
        f"{name} was {before.get(name)}, is {there}"
        for name, there in now.items()
        if name in before and before[name] != there
    ]


def _differences(old: dict[str, Any], new: dict[str, Any]) -> Any:
    for name, value in new["settings"].items():
        before = old.get("settings", {}).get(name)
        if before != value:
            yield f"{name} was {before!r}, is {value!r}"
    for name, value in new["hashes"].items():
        if old.get("hashes", {}).get(name) != value:
            yield f"the {name.replace('_', ' ')} is not the same (its hash differs)"
    inputs = old.get("inputs", {})
    for name in sorted({*inputs, *new["inputs"]}):
        if inputs.get(name) != new["inputs"].get(name):
            yield f"the input {name} had {inputs.get(name)} bytes, has {new['inputs'].get(name)}"


def _size(path: str) -> int:
    """Bytes in a file, or in all files of a data set on disk."""
    if is_url(path):
        import fsspec

        fs, name = fsspec.core.url_to_fs(path)
        return sum(fs.size(one) or 0 for one in fs.find(name))
    here = Path(path)
    return here.stat().st_size if here.is_file() else sum(f.stat().st_size for f in here.iterdir())


def model_hash(path: str, trust_remote_code: bool = False) -> str:
    """The content of a local folder, or the commit of a hub id."""
    if Path(path).is_dir():
        return folder_hash(path)
    import transformers

    try:
        config = transformers.AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
    except (OSError, ValueError) as error:
        raise ModelError(f"{path!r} is no folder here, and no model on the hub that can be read") from error
    return f"commit {config._commit_hash}"


def folder_hash(path: str) -> str:
    """SHA-256 over the names and contents of the weights, configuration and tokenizer in a folder."""
    if not Path(path).is_dir():
        raise LensError(f"{path} is no folder; give one that holds a lens")
    total = hashlib.sha256()
    for file in sorted(Path(path).iterdir()):
        if file.suffix in HASHED and file.is_file():
            total.update(f"{file.name}\0{file.stat().st_size}\0".encode())
            with file.open("rb") as content:
                while block := content.read(1 << 20):
                    total.update(block)
    return f"sha256 {total.hexdigest()}"


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None

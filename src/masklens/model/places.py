"""Check the place that a model is loaded from, and explain why a model cannot be loaded."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ..errors import ModelError, did_you_mean


def check_place(path: str | os.PathLike[str], gguf_file: str | None = None) -> None:
    """Raise a ModelError if a path names no folder, or a folder without a model. A hub id is not checked."""
    place = Path(path)
    if place.is_dir():
        if not gguf_file and not (place / "config.json").exists():
            held = ", ".join(sorted(one.name for one in place.iterdir())[:5])
            raise ModelError(
                f"the folder {place} {f'holds {held}, but' if held else 'is empty:'} no config.json; give a "
                f"folder with config.json, model.safetensors and a tokenizer"
            )
    elif place.exists():
        raise ModelError(f"{place} is a file; give the folder that holds the model")
    elif not isinstance(path, str) or _is_local(path):
        beside = [one.name for one in place.parent.iterdir()] if place.parent.is_dir() else []
        raise ModelError(
            f"no such folder: {place}{did_you_mean(place.name, beside)}; give a folder that holds a model, "
            f"or a hub id"
        )


def _is_local(path: str) -> bool:
    """Whether a name can only be meant for a folder: a hub id is NAME or OWNER/NAME."""
    parts = re.split(r"[/\\]", path)
    return path[:1] in ("/", ".", "~") or len(parts) > 2 or (len(parts) == 2 and Path(parts[0]).is_dir())


def not_loaded(path: str | os.PathLike[str], error: Exception) -> ModelError:
    """The error of transformers about a model, as a ModelError in one line."""
    said = " ".join(str(error).strip().split("\n")[0].split()).rstrip(".")[:300] or type(error).__name__
    if "requires `accelerate`" in str(error):
        return ModelError("device_map= needs the package accelerate; install it with: pip install accelerate")
    if "trust_remote_code" in str(error):
        return ModelError(
            f"{os.fspath(path)!r} comes with code of its own, which is not run; if you trust its author, "
            f"give trust_remote_code=True"
        )
    here = "" if Path(path).is_dir() else "there is no such folder here, and on the hub: "
    return ModelError(
        f"no model could be loaded from {os.fspath(path)!r}: {here}{said}. Give a folder with config.json, "
        f"model.safetensors and a tokenizer, or a hub id that can be reached"
    )

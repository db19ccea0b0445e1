"""Check the place that a model is loaded from, and explain why a model cannot be loaded."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ..errors import ModelError, did_you_mean


def gguf_place(path: str | os.PathLike[str]) -> tuple[str | os.PathLike[str], str | None]:
    """The folder and the name of a GGUF file: of the file that is given, or of the only one in a folder
    without config.json. Any other path comes back as it is, without a name."""
    place = Path(path)
    if place.suffix == ".gguf" and place.is_file():
        return place.parent, place.name
    held = _gguf_files(place)
    return (place, held[0]) if len(held) == 1 and not (place / "config.json").exists() else (path, None)


def _gguf_files(place: Path) -> list[str]:
    return sorted(one.name for one in place.glob("*.gguf")) if place.is_dir() else []


def check_place(path: str | os.PathLike[str], gguf_file: str | None = None) -> None:
    """Raise a ModelError if a path names no folder, or a folder without a model. A hub id is not checked."""
    place = Path(path)
    if place.is_dir():
        if not gguf_file and not (place / "config.json").exists():
            if len(several := _gguf_files(place)) > 1:
                raise ModelError(
                    f"the folder {place} holds {', '.join(several)}; give the path of one of them"
                )
            held = ", ".join(sorted(one.name for one in place.iterdir())[:5])
            raise ModelError(
                f"the folder {place} {f'holds {held}, but' if held else 'is empty:'} no config.json; give a "
                f"folder with config.json, model.safetensors and a tokenizer"
            )
    elif place.exists():
        raise ModelError(f"{place} is a file; give the folder that holds the model, or a GGUF file")
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

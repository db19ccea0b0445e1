"""masklens shows how a decision emerges across the layers of a neural text model.

import masklens as ml

subject = ml.Subject.from_pretrained("PATH_OR_HUB_ID")
out = ml.explain(subject, ["a fast , funny movie"], method="integrated_gradients")
out[0].tokens, out[0].sites, out[0].scores

Names are imported on first use, so that `import masklens` and `masklens --help` are fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import analysis
    from .attribution import Attribution
    from .diffmask.lens import DiffMask
    from .evaluation.choose import choose
    from .evaluation.evaluate import evaluate
    from .evaluation.generation import verify_generation
    from .evaluation.verify import verify
    from .methods.explain import explain
    from .methods.generation import explain_generation
    from .methods.logit_lens import layer_predictions
    from .model.families import register_family
    from .model.subject import Subject
    from .model.windows import windows
    from .records.generation import Generation, load, save
    from .reports.report import report

    def methods() -> list[str]:
        """The names of the registered methods."""


__version__ = "0.2.0"
__all__ = [
    "Attribution",
    "DiffMask",
    "Generation",
    "Subject",
    "analysis",
    "choose",
    "evaluate",
    "explain",
    "explain_generation",
    "layer_predictions",
    "load",
    "methods",
    "register_family",
    "report",
    "save",
    "verify",
    "verify_generation",
    "windows",
]

_HOME = {
    "Attribution": "attribution",
    "DiffMask": "diffmask.lens",
    "Subject": "model.subject",
    "choose": "evaluation",
    "evaluate": "evaluation",
    "explain": "methods.explain",
    "explain_generation": "methods.generation",
    "Generation": "records.generation",
    "layer_predictions": "methods.logit_lens",
    "load": "records.generation",
    "register_family": "model.families",
    "report": "reports.report",
    "save": "records.generation",
    "verify": "evaluation",
    "verify_generation": "evaluation",
    "windows": "model.windows",
}


def __getattr__(name: str) -> Any:
    if name == "methods":  # the subpackage is callable, so that ml.methods() and ml.methods.METHODS both work
        return import_module(".methods", __name__)
    if name == "analysis":
        return import_module(".analysis", __name__)
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]

"""The method that explains where none is named."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..model.subject import Subject

USUAL = "integrated_gradients"
NEXT_TOKEN = "gradient"
"""for the next token of a language model, where integrated gradients often do not add up"""


def usual_method(subject: Subject) -> str:
    from ..tasks.lm import CausalLM, Seq2SeqLM  # here: the command line reads the names without torch

    return NEXT_TOKEN if isinstance(subject.task, CausalLM | Seq2SeqLM) else USUAL

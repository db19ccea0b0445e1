"""Typed errors. Each message says what was given, what is allowed and what to do."""


class MasklensError(Exception):
    """Base of every error that a user's input or model can cause."""


class SiteError(MasklensError):
    """A site that does not exist, that the model never reached, or a replacement of another shape."""


class OutputError(MasklensError):
    """The model produced something that cannot be explained, such as NaN."""


class ModelError(MasklensError):
    """The model's architecture or head cannot be handled as it is."""


class TextError(MasklensError):
    """A text that the tokenizer or the model cannot take."""


class TargetError(MasklensError):
    """A target that the task does not have."""


class MethodError(MasklensError):
    """An unknown method, an unknown option, or a missing input of a method."""


class LensError(MasklensError):
    """A lens that does not fit the model, or a folder that does not hold one."""


class FileError(MasklensError):
    """A file of attributions or texts that cannot be read or written."""


class TrainingError(MasklensError):
    """Training cannot start or continue."""


class CorpusError(MasklensError):
    """A corpus run that cannot start, continue or be resumed."""

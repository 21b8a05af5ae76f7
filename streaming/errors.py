"""The error tree. Every message is for a person: what happened, and what to do about it.

Knows nothing else of the project. Inside a worker, the exception that a library raised stays attached as `__cause__`.
"""


class StreamingError(Exception):
    """Anything that this project raises on purpose; `str(error)` can be shown to a user as it is."""


class ConfigError(StreamingError):
    """A flag or an environment variable that cannot be understood or does not fit the others."""


class InvalidRequest(StreamingError):
    """A request that can never work as it stands; `field` names the part at fault."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class ContextTooLong(InvalidRequest):
    """A prompt that does not fit the model's context even after all older turns were left out."""

    def __init__(self, prompt_tokens: int, context_tokens: int) -> None:
        super().__init__(
            f"This message is too long for the model: the prompt has {prompt_tokens:,} tokens, "
            f"the model's context holds {context_tokens:,}. Shorten it, or choose a model with a longer context.",
            field="messages",
        )
        self.prompt_tokens = prompt_tokens
        self.context_tokens = context_tokens


class NoDraft(InvalidRequest):
    """A request for guesses by a draft model that this engine does not have."""


class WrongModel(InvalidRequest):
    """A request that names another model than the one that would answer it."""


class ModelError(StreamingError):
    """The model could not be found, fetched or loaded."""


class ModelNotFound(ModelError):
    """No model has this name: not on the Hub, not as a folder, not as a file."""


class NoNetwork(ModelError):
    """The model has to be downloaded and the network does not answer."""


class NoDiskSpace(ModelError):
    """The disk has no room for the model, or refuses to be written."""


class ModelTooLarge(ModelError):
    """The model needs more memory than this machine has free."""


class ServerUnavailable(ModelError):
    """The server that has the model does not answer, or not yet."""


class ServerRefused(ModelError):
    """The server does not let us in, or is no server of the kind we need."""


class GenerationFailed(StreamingError):
    """The model raised in the middle of an answer; what it raised is the `__cause__`."""


class EngineBusy(StreamingError):
    """So many requests wait already that one more is not taken."""


class EngineClosed(StreamingError):
    """The engine was closed while a request waited or ran."""


class ConversationBusy(StreamingError):
    """Something that has to wait until the conversation's running answer has ended."""


class NotFound(StreamingError):
    """A conversation, a message or a run that does not exist, or belongs to somebody else."""

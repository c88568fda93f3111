"""What several answers have."""

from typing import Literal

from pydantic import Field
from pydantic_core import PydanticSerializationError

from kvcalc.layers import Frozen


class ModelInfo(Frozen):
    """The model that was asked about. `source` says where its layers were read; None stands for what the source does not tell."""

    name: str
    source: str
    model_type: str | None
    parameters: int | None
    parameters_text: int | None
    max_context: int | None


class Parallel(Frozen):
    """GPUs that share heads (tp), layers (pp), requests (dp), and the tokens of a copied cache (dcp)."""

    tp: int
    pp: int
    dp: int
    dcp: int


class Seconds(Frozen):
    """`lower`: no server is faster. Four of five take `low` to `high`; `likely` is their geometric mean."""

    lower: float
    low: float
    likely: float
    high: float


def as_json(part: Frozen) -> str:
    """A part of an answer as JSON. Bytes of a file's name that are no text are escaped as Python's own json does."""
    try:
        return part.model_dump_json(by_alias=True)
    except PydanticSerializationError:
        import json  # only such a name needs it

        return json.dumps(part.model_dump(mode="json", by_alias=True), separators=(",", ":"))


class Answer(Frozen):
    """What every JSON object of kvcalc begins with."""

    schema_version: Literal[1] = Field(default=1, serialization_alias="schema")

    def to_json(self) -> str:
        """The whole answer as one JSON object."""
        return as_json(self)

"""The JSON Schema of each command's `--json`, made of the models that the answers are instances of, so that it cannot differ from them."""

from difflib import get_close_matches
from functools import reduce
from operator import or_
from typing import Any, Final

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from kvcalc import __version__
from kvcalc.errors import ExitCode, KvcalcError
from kvcalc.results.compare import Comparison
from kvcalc.results.estimate import Estimate
from kvcalc.results.explain import Explanation
from kvcalc.results.fit import Fit, Fits
from kvcalc.results.gpus import Gpus
from kvcalc.results.models import Models
from kvcalc.results.prefix import Prefix
from kvcalc.results.replay import Replay
from kvcalc.results.shared import Answer
from kvcalc.results.speed import Speed
from kvcalc.results.sweep import Sweep
from kvcalc.results.verify import Verified

ANSWERS: Final[dict[str, tuple[type[Answer], ...]]] = {
    "estimate": (Estimate,),
    "fit": (Fit, Fits),  # the second without --model
    "sweep": (Sweep,),
    "speed": (Speed,),
    "compare": (Comparison,),
    "explain": (Explanation,),
    "replay": (Replay,),
    "prefix": (Prefix,),
    "verify": (Verified,),
    "models": (Models,),
    "gpus": (Gpus,),
}
"""What each command answers."""


class _Plain(GenerateJsonSchema):
    """Without titles that only repeat the name of a field."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ANN401, ARG002 (a core schema, of any kind)
        return False


def schema_of(command: str) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of what `command` prints with `--json`. Raises KvcalcError (usage) for a command that has none."""
    if command not in ANSWERS:
        close = get_close_matches(command, ANSWERS)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(ANSWERS)}"
        raise KvcalcError(f"no command {command[:40]!r} with --json", hint=hint, code=ExitCode.USAGE)
    answer: Any = reduce(or_, ANSWERS[command])
    body = TypeAdapter(answer).json_schema(mode="serialization", by_alias=True, schema_generator=_Plain)
    head = {
        "$schema": _Plain.schema_dialect,
        "$id": f"urn:kvcalc:{command}:1",
        "$comment": f"kvcalc {__version__}",
        "title": f"kvcalc {command} --json",
    }
    schema: dict[str, Any] = _unwrapped({**head, **{key: value for key, value in body.items() if key != "title"}})
    return schema


def _unwrapped(part: Any) -> Any:  # noqa: ANN401 (JSON)
    """Descriptions on one line, whichever way the docstrings that they are were wrapped."""
    if isinstance(part, dict):
        return {key: " ".join(value.split()) if key == "description" and isinstance(value, str) else _unwrapped(value) for key, value in part.items()}
    return [_unwrapped(each) for each in part] if isinstance(part, list) else part

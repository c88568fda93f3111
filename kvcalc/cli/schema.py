"""`kvcalc schema`."""

from typing import Annotated

import typer


def complete_answering(incomplete: str) -> list[str]:
    from kvcalc.schemas import ANSWERS

    return [name for name in ANSWERS if name.startswith(incomplete)]


def schema(
    command: Annotated[
        str | None, typer.Argument(metavar="COMMAND", help="Whose; without it, the commands that have one are listed.", autocompletion=complete_answering)
    ] = None,
) -> None:
    """The JSON Schema of what a command prints with --json."""
    import json

    from kvcalc.schemas import ANSWERS, schema_of

    if command is None:
        print("\n".join(ANSWERS))
    else:
        print(json.dumps(schema_of(command), indent=2))

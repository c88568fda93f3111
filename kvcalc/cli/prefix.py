"""`kvcalc prefix`."""

from typing import Annotated, Final

import typer

from kvcalc.asking.prefix import cached_on
from kvcalc.cli.budget import BUDGET
from kvcalc.cli.machine import MACHINE
from kvcalc.cli.options import DEPLOYMENT, MODEL, Context, Json, ServerName, with_options

DEFAULTS: Final = {name: default for group in (MODEL, BUDGET, DEPLOYMENT, MACHINE) for name, (_, default) in group.items()}
"""What an option is where it is not typed."""


@with_options(MODEL, BUDGET, DEPLOYMENT, MACHINE)
def prefix(
    call: typer.Context,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="Prompts in the order that they arrive: JSONL, an OpenAI batch file, or text, one a line; - for a pipe.")
    ],
    tokenizer: Annotated[
        str | None, typer.Option("--tokenizer", metavar="FILE", help="The model's tokenizer.json, or its folder; without, 4 bytes are a token.")
    ] = None,
    form: Annotated[str | None, typer.Option("--format", metavar="jsonl|text", help="What FILE is, where its first lines do not tell.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first line that holds no prompt.")] = False,
    context: Context = None,
    engine: ServerName = "vllm",
    as_json: Json = False,
) -> None:
    """What prompts share, and what breaks it.

    Hit rates of the prefix cache, where sharing breaks and what that costs; with a model and a GPU also under the KV budget. No word of
    a prompt is shown.
    """
    from kvcalc.files import size_of
    from kvcalc.prefix.answer import answer
    from kvcalc.prompts import PromptFile, encode_bytes, form_named, load_tokenizer
    from kvcalc.render.progress import progress

    deployed = cached_on(call.params, DEFAULTS)
    encode = encode_bytes if tokenizer is None else load_tokenizer(tokenizer)
    with progress(size_of(file)) as told:
        prompts = PromptFile(file, form=None if form is None else form_named(form), strict=strict, progress=told)
        result = answer(prompts.read, encode, deployed, lambda: prompts.reading, again=prompts.again, by_tokenizer=tokenizer is not None)
    if as_json:
        print(result.to_json())
    else:
        from kvcalc.render.prefix import render_prefix
        from kvcalc.render.style import console_for_stdout

        render_prefix(result, console_for_stdout())

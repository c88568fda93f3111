"""What prompts share under one engine: the rules of its cache, and the answer from prompts that are read elsewhere."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from kvcalc.budget import Question, budget
from kvcalc.engines.base import Engine, Plan
from kvcalc.engines.reuse import block_tokens, check_reuse
from kvcalc.errors import ExitCode, KvcalcError
from kvcalc.estimate import model_info
from kvcalc.latency import clock
from kvcalc.layers import Note
from kvcalc.machine import Machine
from kvcalc.prefix.blocks import SYMBOL_BYTES
from kvcalc.prefix.prompt import Prompt
from kvcalc.prefix.sharing import SAMPLE, SAMPLE_CHARS, Encode, Held, Prefill, Rules, Shared, shared
from kvcalc.results.prefix import Prefix, Reading
from kvcalc.results.shared import ModelInfo
from kvcalc.units import format_bytes

MOST_SPACES: Final = 10_000
"""Of models and salts that are counted."""


class Deployed(NamedTuple):
    """An engine with the rules of its prefix cache, and the model where one was named."""

    engine: Engine
    rules: Rules
    model: ModelInfo | None
    notes: tuple[Note, ...]


def without_model(engine: Engine, block_size: int | None) -> Deployed:
    """The rules of an engine whatever the model: blocks of the stated size, else of its default. Raises KvcalcError for one that reuses no prefix."""
    check_reuse(engine.name, prefix_caching=True)
    if block_size is not None:
        return Deployed(engine, Rules(block_size), None, ())
    tokens = _default_block(engine.name)
    text = f"{engine.name} hands out {tokens} token{'s' if tokens > 1 else ''} a block unless the model or --block-size says otherwise: --model knows"
    return Deployed(engine, Rules(tokens), None, (Note(code="block", text=text),))


def _default_block(engine: str) -> int:
    match engine:
        case "vllm":
            from kvcalc.engines.vllm.backends import DEFAULT_BLOCK

            return DEFAULT_BLOCK
        case "trtllm":
            from kvcalc.engines.trtllm import TOKENS_PER_BLOCK

            return TOKENS_PER_BLOCK
        case _:
            return 1  # sglang/srt/server_args.py 0.5.23, page_size


def with_model(question: Question, machine: Machine | None = None) -> Deployed:
    """The rules for a model, with its KV budget where the question states one, and with the time of its prompts on a `machine`.

    Raises KvcalcError where the engine cannot run the model so, reuses no prefix, or has no memory left for a cache.
    """
    engine, spec, options, asked = question.engine, question.spec, question.options, question.asked
    check_reuse(engine.name, prefix_caching=options.prefix_caching)
    plan = engine.plan(spec, options)
    block = block_tokens(plan)
    (pool,) = plan.pools
    units, notes = None, [*spec.notes, *question.notes, *plan.notes]
    if question.kv_bytes is not None or question.gpu.memory_bytes is not None:
        budgeted = budget(question)
        units = budgeted.memory.kv_bytes // pool.unit_bytes - plan.reserved
        if units <= 0:
            raise KvcalcError(
                "nothing is left for the cache", hint="`kvcalc fit` with the same options says by how much, and what would help", code=ExitCode.NO
            )
        notes += budgeted.notes
        span = budgeted.ranges.get("kv_bytes")
        between = "" if span is None else f", between {format_bytes(span.low)} and {format_bytes(span.high)} by estimate"
        notes.append(Note(code="budget", text=f"the cache has {format_bytes(budgeted.memory.kv_bytes)} on one GPU{between}"))
    notes += _reuse_notes(question, plan)
    held = Held(units, pool.unit_bytes, lru_cache(maxsize=1 << 16)(lambda tokens: plan.need(tokens)[0]), asked.context)
    prefill, time_notes = _prefill(question, machine)
    return Deployed(engine, Rules(block, held, prefill), model_info(spec, asked.name, asked.source), (*notes, *time_notes))


def _prefill(question: Question, machine: Machine | None) -> tuple[Prefill | None, list[Note]]:
    """How long a prompt likely takes of which so many tokens are cached, or why that is not told."""
    if machine is None:
        return None, []
    timed = clock(question, machine)
    if timed.prompt(1).compute is None:
        text = f"what {machine.name} computes in a second is not known, and so the time that is saved is not: state it with --tflops"
        return None, [Note(code="time", text=text)]

    @lru_cache(maxsize=1 << 16)
    def seconds(cached: int, tokens: int) -> tuple[float, float]:
        times = timed.prompt(tokens, cached)
        return times.low, times.high

    return seconds, []


def _reuse_notes(question: Question, plan: Plan) -> Iterator[Note]:
    kinds = {use.kind for use in plan.uses(question.asked.context)}
    if "state" in kinds:
        text = "states are kept at fewer places than blocks end, so that a prefix is reused up to the last of these: hit rates are upper bounds"
        yield Note(code="states", text=text)
    if kinds & {"sliding", "chunked"}:
        yield Note(code="windows", text="blocks of windows are counted as if all of a prefix were evicted with its last block, as blocks of full attention are")
    if question.options.dp > 1:
        yield Note(code="replicas", text="figures are those of one replica that takes all prompts: spread over several, each has a cache of its own")


def answer(
    prompts: Callable[[], Iterable[Prompt]], encode: Encode, deployed: Deployed, reading: Callable[[], Reading], *, again: bool, by_tokenizer: bool
) -> Prefix:
    """What the prompts share. `prompts` reads them, a second time where they can be read `again`; `reading` is asked once they were read."""
    kinds: Counter[bool] = Counter()
    spaces: set[bytes] = set()

    def counted() -> Iterator[Prompt]:
        for prompt in prompts():
            kinds[prompt.ids is None] += 1
            if len(spaces) < MOST_SPACES:
                spaces.add(prompt.space)
            yield prompt

    found = shared(counted, encode, deployed.rules, again=again)
    read, engine = reading(), deployed.engine
    tokens_by: Literal["tokenizer", "bytes", "ids"] = "ids" if not kinds[True] else "tokenizer" if by_tokenizer else "bytes"
    return Prefix(
        model=deployed.model,
        engine=engine.name,
        engine_version=engine.version,
        block_tokens=deployed.rules.block_tokens,
        tokens_by=tokens_by,
        reading=read,
        tree=found.tree,
        unlimited=found.unlimited,
        budget=found.budget,
        breaks=found.breaks,
        notes=(*deployed.notes, *_space_notes(len(spaces)), *_notes(found, read, tokens_by)),
    )


def _space_notes(number: int) -> Iterator[Note]:
    if number > 1:
        least = f"{number:,}{' or more' if number == MOST_SPACES else ''}"
        yield Note(code="spaces", text=f"prompts are for {least} models, adapters or cache salts, of which none shares with another; one cache holds them all")


def _notes(found: Shared, read: Reading, tokens_by: str) -> Iterator[Note]:
    if tokens_by == "bytes":
        text = f"a token is counted as {SYMBOL_BYTES} bytes of text, so that figures with ~ are estimates: --tokenizer counts tokens"
        yield Note(code="bytes", text=text)
    if any("chat" in kind for kind in read.kinds):
        text = "messages are joined plainly, tools first, not by the model's chat template, which may add a date or drop earlier reasoning; a picture is a mark"
        yield Note(code="chat", text=text)
    yield Note(code="order", text="each prompt is taken as finished before the next one comes, in the order of the file; what is generated is not counted")
    if found.budget is not None and found.budget.refused:
        text = f"{found.budget.refused:,} prompts are longer than the context or the whole cache: no server takes them, and they are left out under the budget"
        yield Note(code="refused", text=text)
    if not found.tree.whole:
        text = "the tree outgrew the memory that is kept for it: what was used longest ago was dropped, so that sharing is a lower bound"
        yield Note(code="tree", text=text)
    if found.cut:
        yield Note(code="sample", text=f"breaks were looked for in the first {SAMPLE_CHARS:,} characters of prompts")
    if found.breaks is not None and found.breaks.on == "sample":
        text = f"what is piped in cannot be read twice: what breaks cost was measured on a sample of {SAMPLE} prompts; name the file to measure all"
        yield Note(code="piped", text=text)

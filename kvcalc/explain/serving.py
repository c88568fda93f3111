"""What serving does with a cache: prefill and decode, blocks, and sharing what requests begin with."""

from collections.abc import Iterator
from typing import Final

from kvcalc.engines.base import Plan
from kvcalc.engines.work import Costs, Work, decode, prefill
from kvcalc.errors import KvcalcError
from kvcalc.explain.subject import Part, Subject, plain, sized
from kvcalc.results.explain import Column, Formula, Paragraph, Row, Table
from kvcalc.results.speed import Side
from kvcalc.timing import Clock, Times
from kvcalc.units import counted, format_bytes, format_ratio

OTHER_BATCH: Final = 16
"""The batch that is shown beside one request where none is asked for."""
CHANGED_AT: Final = 20
"""Tokens before the date line of a system prompt, say: an example of what breaks a prefix early."""
PREFIX: Final = 1000
"""Tokens that two requests begin with, where the context is longer: an example that fills no whole number of blocks."""
BINDS: Final[dict[Side, str]] = {"compute": "arithmetic", "bandwidth": "memory bandwidth", "link": "the link between GPUs"}


def prefill_decode_topic(subject: Subject) -> Iterator[Part]:
    """The two phases, what each computes and moves, and what binds it."""
    cached = "the rows that attention looks back at" if subject.attention else "the state of each layer"
    if subject.attention and subject.states:
        cached = "the rows that attention looks back at, and the states"
    yield Part(
        Paragraph(
            text="Prefill works on the whole prompt at once, or in large chunks: its tokens are all known, so that a weight that is read once serves many of "
            "them. It fills the cache and ends with the first new token. Decode makes one token a step, because each follows from the one before: a step "
            f"reads the weights again, and {cached}, for a single token of each request."
        ),
        in_story=True,
    )
    of = subject.costs
    if isinstance(of, KvcalcError):
        yield Part(Paragraph(text=f"No figures for this model: {of.message}."), in_story=True)
        return
    other = subject.batch if subject.batch > 1 else OTHER_BATCH
    yield Part(_work_table(subject, of, other), in_story=True)
    if isinstance(subject.clock, Clock):
        yield Part(Paragraph(text=_timed(subject, subject.clock)), in_story=True)
    elif isinstance(subject.clock, KvcalcError):
        yield Part(Paragraph(text=f"No times: {subject.clock.message}."), in_story=True)
    else:
        yield Part(
            Paragraph(
                text="Whichever takes longer binds, arithmetic or moving bytes: a GPU computes many products in the time that it moves one byte, so that few "
                "FLOPs a byte leave its arithmetic idle. --gpu NAME says which it is on a GPU, and how long it takes."
            )
        )
    yield Part(Paragraph(text=_batching(of, subject.context, other)), in_story=True)
    yield Part(Paragraph(text=_doubled(of, subject.context)))


def _work_table(subject: Subject, of: Costs, other: int) -> Paragraph:
    rows = (
        _work_row("prefill", prefill(of, subject.context)),
        _work_row("decode, batch 1", decode(of, subject.context, 1)),
        _work_row(f"decode, batch {other:,}", decode(of, subject.context, other)),
    )
    columns = (
        Column(name="", unit="FLOP"),
        Column(name="weights", unit="B"),
        Column(name="cache", unit="B"),
        Column(name="FLOPs a byte", unit=""),
    )
    where = "" if subject.question.options.gpus == 1 else " by one GPU of each stage"
    return Paragraph(text=f"What is computed and read{where}:", table=Table(label=f"at {counted(subject.context, 'token')}", columns=columns, rows=rows))


def _work_row(label: str, work: Work) -> Row:
    return Row(label=label, values=(work.flops, work.weight_bytes, work.kv_read_bytes + work.state_bytes // 2, work.flops / work.moved_bytes))


def _timed(subject: Subject, timed: Clock) -> str:
    prompt, step = timed.prompt(subject.context), timed.step(subject.context, subject.batch)
    first = "" if prompt.compute is None else f"prefill is bound by {BINDS[prompt.slowest]} ({_at_least(prompt)}), "
    requests = counted(subject.batch, "request")
    return (
        f"On {timed.machine.name} {first}a decode step of {requests} by {BINDS[step.slowest]} ({_at_least(step)}). `kvcalc speed` says what makes "
        "either faster."
    )


def _at_least(times: Times) -> str:
    return f"at least {_ms(times.lower)}, likely ~{_ms(times.likely)}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.0f} ms" if seconds >= 0.1 else f"{seconds * 1e3:.2g} ms" if seconds < 0.01 else f"{seconds * 1e3:.1f} ms"


def _batching(of: Costs, context: int, other: int) -> str:
    one, many = decode(of, context, 1), decode(of, context, other)
    weights = "read once for all requests" if not of.experts else "read once for all requests that use them (more experts with more requests)"
    share = format_ratio(many.moved_bytes, one.moved_bytes)
    kept = "cached rows and states" if one.state_bytes and one.kv_read_bytes else "states" if one.state_bytes else "cached rows"
    return (
        f"A batch shares the weights, not the cache: weights are {weights}, {kept} are read for each. A step of {other:,} requests moves {share} the bytes of "
        f"a step of one, for {other:,} tokens in place of one."
    )


def _doubled(of: Costs, context: int) -> str:
    """What twice the tokens change."""
    one, two = prefill(of, context), prefill(of, 2 * context)
    step, longer = decode(of, context, 1), decode(of, 2 * context, 1)
    said = [f"the matrices' products of a prompt {format_ratio(sum(two.linear_flops.values()), sum(one.linear_flops.values()))}"]
    if one.attention_flops:
        said.append(f"attention's {format_ratio(two.attention_flops, one.attention_flops)}")
    if step.kv_read_bytes:
        said.append(f"the cached rows that a decode step reads {format_ratio(longer.kv_read_bytes, step.kv_read_bytes)}")
    if step.state_bytes:
        said.append("its states 1.00x")
    return f"With twice the tokens these grow: {', '.join(said)}."


# Paging


def paging_topic(subject: Subject) -> Iterator[Part]:
    """Blocks, the last one, and what reserving ahead wastes; or what an engine without blocks does."""
    plan = subject.plan
    if isinstance(plan, KvcalcError):
        yield Part(Paragraph(text=f"What {subject.engine} holds of this model cannot be told: {plan.message}."), in_story=True)
        return
    pool = plan.pools[0]
    if plan.slots is not None:
        yield from _slots(subject, plan, plan.slots)
    elif pool.unit_bytes == 1:
        yield from _unpaged(subject, plan)
    else:
        yield from _blocks(subject, plan)
    surplus = plan.surplus(subject.context)
    if surplus:
        rows = tuple(Row(label=cause, values=(size_bytes,)) for cause, size_bytes in surplus)
        table = Table(label="one request, all GPUs", columns=(Column(name="more than its rows", unit="B"),), rows=rows)
        yield Part(Paragraph(text="Beside the rows themselves, or in their place (less than zero), the engine holds:", table=table))


def _blocks(subject: Subject, plan: Plan) -> Iterator[Part]:
    pool, context, most = plan.pools[0], subject.context, "" if subject.keeps_all else " at most"
    where = "" if subject.question.options.gpus == 1 else " on the GPU that binds"
    if subject.attention:
        text = (
            f"{subject.engine} cuts its memory for the cache into blocks of {counted(pool.unit_rows, 'token')}, {sized(pool.unit_bytes)} each{where}. "
            f"{_of_layers(subject)} A request takes blocks as it grows, from anywhere in the pool, and a table says which are its own, so that no memory is "
            f"lost between requests. With {counted(context, 'token')} it holds{most}:"
        )
    else:
        text = (
            f"{subject.engine} cuts its memory for the cache into blocks of {sized(pool.unit_bytes)}{where}, each for the states of one request, which takes "
            "the same from its first token to its last:"
        )
    yield Part(Paragraph(text=text, formulas=(_held("held", plan, context),)), in_story=True)
    if not subject.attention:
        return
    yield Part(Paragraph(text=_last_block(subject, plan)))
    quarter = max(1, context // 4)
    few, whole = plan.resident_bytes(quarter, 1), plan.resident_bytes(context, 1)
    if few < whole:
        percent = (200 * (whole - few) + whole) // (2 * whole)
        yield Part(
            Paragraph(
                text=f"Setting this length aside for each request ahead would take {format_bytes(whole)} from the first token on. A request that ends at "
                f"{counted(quarter, 'token')} then leaves {format_bytes(whole - few)} of it unused ({percent} %); in blocks it holds{most}:",
                formulas=(_held("held-quarter", plan, quarter),),
            ),
            in_story=True,
        )
    else:
        yield Part(Paragraph(text=f"A request of {counted(quarter, 'token')} holds as much."), in_story=True)


def _of_layers(subject: Subject) -> str:
    """Which layers a block is for."""
    if subject.keeps_all or subject.question.engine.name == "trtllm":
        return "A block holds the rows of that many tokens in every layer."
    if _keeps_some(subject):
        return "A block serves one group of layers that are alike; its tokens are counted for those that keep every token."
    return "A block serves one group of layers that are alike."


def _keeps_some(subject: Subject) -> bool:
    """Whether any layer has a cache that grows for as long as the request lives."""
    return any(use.kind in ("full", "latent", "compressed") for use in subject.uses)


def _held(name: str, plan: Plan, tokens: int) -> Formula:
    (need,), unit = plan.need(tokens), plan.pools[0].unit_bytes
    return plain(name, f"{counted(need, 'block')} x bytes a block, for {counted(tokens, 'token')}", plan.resident_bytes(tokens, 1), "B", need, unit)


def _last_block(subject: Subject, plan: Plan) -> str:
    rows, context = plan.pools[0].unit_rows * subject.question.options.dcp, subject.context
    (need,), (after,) = plan.need(context), plan.need(context + 1)
    if not plan.token_bytes(context):
        return "Nothing grows with one more token here, so that no block is taken for it."
    text = "Blocks are taken whole."
    if _keeps_some(subject) or subject.question.engine.name == "trtllm":
        empty = f"{-context % rows:,} places of the last one are empty; at most {rows - 1:,} are, when a request has just begun one"
        text += f" At {counted(context, 'token')} {empty}."
    more = f"One more token takes {counted(after - need, 'block')} more" if after != need else "One more token takes no further block"
    return f"{text} {more}."


def _slots(subject: Subject, plan: Plan, slots: int) -> Iterator[Part]:
    size_bytes = plan.resident_bytes(subject.context, 1)
    yield Part(
        Paragraph(
            text=f"{subject.engine} has no blocks: it sets the cache of its {counted(slots, 'slot')} aside when it starts, {sized(size_bytes)} at a context "
            f"of {subject.context:,}, and a request takes one slot. The memory is the same however many requests run and however long they are; what they do "
            "not use is held for nothing."
        ),
        in_story=True,
    )


_UNPAGED: Final = {
    "ideal": "The bare formula has no blocks: it counts what must be kept at least. --engine vllm, trtllm, sglang or another says what is handed out.",
    "transformers": "transformers has no blocks: each layer has tensors of its own, as long for every request of a batch as for the longest of them.",
    "sglang": "SGLang has one pool of tokens, handed out in pages (--page-size); a table says which rows a request has. Windows and states have pools "
    "of their own.",
}


def _unpaged(subject: Subject, plan: Plan) -> Iterator[Part]:
    said = _UNPAGED[subject.question.engine.name]
    sizes = f"One request of {counted(subject.context, 'token')} takes {sized(plan.resident_bytes(subject.context, 1))}."
    yield Part(Paragraph(text=f"{said} {sizes}"), in_story=True)


# Prefixes


def prefix_topic(subject: Subject) -> Iterator[Part]:
    """What requests with the same beginning share, and what ends it."""
    name, plan = subject.question.engine.name, subject.plan
    kept = "K and V of a token depend" if subject.attention else "The state after a token depends"
    yield Part(
        Paragraph(
            text=f"{kept} only on that token and on those before it{_beside_tokens(subject)}. Two requests that begin with the same tokens therefore keep the "
            "same for them: it can be computed once and held once (prefix caching)."
        ),
        in_story=True,
    )
    if isinstance(plan, KvcalcError):
        yield Part(Paragraph(text=f"What {subject.engine} shares of this model cannot be told: {plan.message}."))
    elif not subject.question.options.prefix_caching:
        yield Part(Paragraph(text="It is switched off here (--no-prefix-caching): nothing is shared."), in_story=True)
    elif name in ("vllm", "trtllm"):
        yield from _shared_blocks(subject, plan)
    else:
        yield Part(Paragraph(text=_SHARED[name]), in_story=True)
    limits = _limits(subject)
    if limits:
        yield Part(Paragraph(text=limits), in_story=True)
    text = "The last token of a prompt is never taken from the cache: what the model computes for it gives the next token, and the cache does not keep that."
    yield Part(Paragraph(text=text))
    salted = " Another LoRA adapter or cache salt breaks it as well." if name in ("vllm", "sglang", "trtllm") else ""
    yield Part(
        Paragraph(
            text="The first token that differs ends it: everything behind it follows from another beginning, equal text included. What changes from request to "
            f"request (a time, a name, an id, the order of tools) belongs at the end of a prompt.{salted}"
        ),
        in_story=True,
    )


def _beside_tokens(subject: Subject) -> str:
    if any(use.kind == "cross" for use in subject.uses):
        return " (and on what comes from the encoder, which must be the same too)"
    return " (tokens of one image see each other)" if subject.spec.facts.image_prefix else ""


_SHARED: Final = {
    "ideal": "The bare formula counts each request by itself. An engine shares: --engine vllm, trtllm, sglang, llama.cpp or ollama.",
    "transformers": "transformers shares nothing between calls of `generate` by itself: a program may keep the cache of the beginning and pass a copy "
    "of it in.",
    "sglang": "SGLang keeps a tree of the tokens that it has seen (RadixAttention): a request shares its longest beginning there, in whole pages "
    "(--page-size).",
    "llama.cpp": "llama-server keeps what a slot has seen: the next request of that slot computes only what follows the tokens that both begin with.",
    "ollama": "Ollama keeps what a slot has seen: the next request of that slot computes only what follows the tokens that both begin with.",
}


def _shared_blocks(subject: Subject, plan: Plan) -> Iterator[Part]:
    if any(use.kind == "cross" for use in subject.uses):
        if subject.question.engine.name == "vllm" and any(tensor.name.startswith("encoder.") for tensor in subject.spec.tensors):
            yield Part(Paragraph(text="vLLM switches it off for a model with an encoder."), in_story=True)
        return
    if not subject.attention:
        return
    rows, context = plan.pools[0].unit_rows * subject.question.options.dcp, subject.context
    begin = PREFIX if context > PREFIX else max(1, context // 2)
    most = "" if subject.keeps_all else " at most"
    exact = subject.question.engine.name == "vllm"
    shared = begin // rows * rows
    share = Formula(
        name="shared",
        text=f"tokens shared{most} of {begin:,} that both begin with: whole blocks of {rows:,}",
        numbers=f"floor({begin:,} / {rows:,}) x {rows:,}",
        value=shared,
        unit="tokens",
    )
    how = "vLLM" if exact else "TensorRT-LLM"
    partly = "" if exact else " Of a block that is the same in part it can copy that part (enable_partial_reuse)."
    saving = _saving(subject, plan, shared)
    yield Part(Paragraph(text=f"{how} shares whole blocks.{partly}{saving}", formulas=(share,)), in_story=True)
    if exact:
        again = Formula(
            name="reused",
            text=f"tokens reused{most} of a prompt of {context:,} that was seen before, the last token left out",
            numbers=f"floor(({context:,} - 1) / {rows:,}) x {rows:,}",
            value=(context - 1) // rows * rows,
            unit="tokens",
        )
        yield Part(Paragraph(text="A whole prompt that comes again is reused up to its last whole block, its last token aside:", formulas=(again,)))
    early = min(CHANGED_AT, context - 1)
    if not early:
        return
    broken = Formula(
        name="broken",
        text=f"tokens shared{most} of any length where token {early + 1:,} differs",
        numbers=f"floor({early:,} / {rows:,}) x {rows:,}",
        value=early // rows * rows,
        unit="tokens",
    )
    yield Part(
        Paragraph(
            text=f"A block is known by its tokens and by all blocks before it. Where a date follows the first {counted(early, 'token')}, say:",
            formulas=(broken,),
        )
    )


def _saving(subject: Subject, plan: Plan, shared: int) -> str:
    """Memory and arithmetic that each further request saves, where every layer keeps a row for every token."""
    if not shared or not subject.keeps_all:
        return ""
    text = f" Each further request with that beginning takes {format_bytes(plan.resident_bytes(shared, 1))} less"
    if isinstance(subject.costs, KvcalcError):
        return f"{text}."
    whole, rest = prefill(subject.costs, subject.context), prefill(subject.costs, subject.context, cached=shared)
    percent = (200 * (whole.flops - rest.flops) + whole.flops) // (2 * whole.flops)
    return f"{text}, and {percent} % less arithmetic for a prompt of {subject.context:,}."


def _limits(subject: Subject) -> str:
    """What windows and states do to sharing."""
    said = []
    if subject.states:
        said.append("A state is of all tokens before it and cannot be cut: sharing starts only at a point where the engine has saved one.")
    if any(use.kind in ("sliding", "chunked") for use in subject.uses):
        said.append(
            "A layer with a window or chunks needs only the rows that it still looks back at from the point where the requests part; "
            "where these are gone already, less can be shared."
        )
    return " ".join(said)

"""The formula symbol by symbol, the layers that it does not know of, and what the element type changes."""

from collections.abc import Iterator
from typing import Final

from kvcalc.engines.base import LayerKind, LayerUse
from kvcalc.engines.ideal import IDEAL
from kvcalc.errors import KvcalcError
from kvcalc.estimate import product, row_product
from kvcalc.explain.cached import row_words
from kvcalc.explain.subject import Part, Subject, element_size, sized
from kvcalc.packing import PACKINGS, KvDtype
from kvcalc.results.explain import Column, Formula, Paragraph, Row, Symbol, Table
from kvcalc.units import counted, format_bytes, format_ratio

SHOWN_DTYPES: Final = ("fp8", "q8_0", "q4_0")
"""Beside the model's own: 8 bits with no scale in the row, and blocks of 32 with a scale."""


def formula_topic(subject: Subject) -> Iterator[Part]:
    """M = 2 L n H_kv d_h b B, where it holds, and the sum that always does."""
    own = subject.own
    plain = _plain_formula(subject)
    if plain is None:
        why = next(note.text for note in own.notes if note.code == "formula")
        yield Part(Paragraph(text=f"The common formula is M = 2 L n H_kv d_h b B. {_sentence(why)}"), in_story=True)
    else:
        yield Part(Paragraph(text=f"The common formula, with the numbers of {subject.name}:", formulas=(plain,)), in_story=True)
        yield Part(Paragraph(text=_verdict(subject, plain.value)), in_story=True)
    if plain is None or plain.value != own.total_bytes or len(subject.uses) > 1:
        of_rows = Formula(name="batch", text="sum over layers of rows x bytes a row, x B", numbers=own.formula, value=own.bytes_per_gpu, unit="B", symbols=())
        yield Part(
            Paragraph(text="What is kept, each kind of layer with its own rows:", formulas=(of_rows,)), in_story=plain is None or plain.value != own.total_bytes
        )
    yield Part(Paragraph(text=_a_request(subject)), in_story=True)
    saved = own.per_query_head
    if saved is not None and saved.attention_bytes < saved.expanded_bytes:
        factor = format_ratio(saved.expanded_bytes, saved.attention_bytes)
        text = (
            f"With K and V of its own for each of the {saved.query_heads:,} query heads, attention would keep {sized(saved.expanded_bytes)} for the batch in "
            f"place of {sized(saved.attention_bytes)}: {factor} as much. Heads that share K and V (GQA, MQA), or a latent (MLA), save that."
        )
        yield Part(Paragraph(text=text))
    yield Part(
        Paragraph(text="The formula counts rows alone. Blocks, pools and slots are what an engine adds; weights and activations take memory beside it all.")
    )


def _plain_formula(subject: Subject) -> Formula | None:
    own = subject.own
    shape, value = own.plain_formula, own.plain_formula_bytes
    if shape is None or value is None:
        return None
    k, v = subject.rows.kv_dtype.elements()
    in_heads = all(use.cache is None or use.cache.kernel != "mla" for use in subject.uses)
    kv_heads = "heads with a K and a V of their own" if in_heads else "KV heads that the config names"
    width = "numbers in the K of one head, and in its V" if in_heads else "numbers in a head, by the config"
    heads = [
        Symbol(symbol="L", value=shape.layers, unit="layers", meaning="layers"),
        Symbol(symbol="n", value=own.context, unit="tokens", meaning="tokens of one request"),
        Symbol(symbol="H_kv", value=shape.kv_heads, unit="heads", meaning=kv_heads),
        Symbol(symbol="d_h", value=shape.head_dim, unit="numbers", meaning=width),
    ]
    both = Symbol(symbol="2", value=2, unit="", meaning="K and V")
    last = Symbol(symbol="B", value=own.batch, unit="requests", meaning="requests held at the same time (the batch)")
    factors = (shape.layers, own.context, shape.kv_heads)
    if k == v and k.elements == 1:
        size = Symbol(symbol="b", value=k.size_bytes, unit="B/number", meaning=f"bytes of a number in {own.kv_dtype}")
        numbers = product(2, *factors, shape.head_dim, k.size_bytes, own.batch)
        return Formula(name="plain", text="M = 2 L n H_kv d_h b B", numbers=numbers, value=value, unit="B", symbols=(both, *heads, size, last))
    blocks = [product(-(-shape.head_dim // packing.elements), packing.size_bytes) for packing in (k, v)]
    sizes = (
        Symbol(symbol=f"row({role})", value=packing.row_bytes(shape.head_dim), unit="B", meaning=f"bytes of d_h numbers in {packing.name}")
        for role, packing in (("K", k), ("V", v))
    )
    numbers = product(*factors, f"({' + '.join(blocks)})", own.batch)
    return Formula(name="plain", text="M = L n H_kv (row(K) + row(V)) B", numbers=numbers, value=value, unit="B", symbols=(*heads, *sizes, last))


def _verdict(subject: Subject, plain_bytes: int) -> str:
    own = subject.own
    if plain_bytes == own.total_bytes:
        if {use.kind for use in subject.uses} == {"full"}:
            return f"For {subject.name} it is exact: every layer keeps K and V of every token."
        return "At this length it gives the right sum, though not every layer keeps K and V of every token: for longer requests it may not."
    why = next(note.text for note in own.notes if note.code == "formula")
    return f"For {subject.name} it is wrong. {_sentence(why)}"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _a_request(subject: Subject) -> str:
    own = subject.own
    text = f"A request of {counted(own.context, 'token')} keeps {sized(own.request_bytes)}; one more token adds {sized(own.token_bytes)}"
    if own.fixed_bytes:
        text += f"; {sized(own.fixed_bytes)} are the same for any length"
    return f"{text}."


# Layers


NAMES: Final[dict[LayerKind, str]] = {
    "full": "every token",
    "sliding": "a window",
    "chunked": "a chunk",
    "latent": "latents",
    "indexer": "index keys",
    "compressed": "compressed",
    "state": "a state",
    "cross": "the encoder",
    "shared": "another's cache",
}
"""What layers of a kind keep, in a table."""


def _name(use: LayerUse) -> str:
    beside = {"compressor": "compressor inputs", "ring": "a ring of inputs"}
    return NAMES[use.kind] if use.cache is None else beside.get(use.cache.kernel, NAMES[use.kind])


def layers_topic(subject: Subject) -> Iterator[Part]:
    """What each kind of layer keeps, and of how many tokens."""
    unlike = any(use.kind != "full" for use in subject.uses)
    columns = (Column(name="layers", unit=""), Column(name="rows each", unit=""), Column(name="bytes a row", unit=""), Column(name="request", unit="B"))
    rows = tuple(Row(label=_name(use), values=(use.layers, use.rows, sum(plane.row_bytes for plane in use.planes), use.size_bytes)) for use in subject.uses)
    one_kind = "By what they keep:" if len(subject.uses) > 1 or subject.counts.nothing else "Its layers are all alike:"
    if sum(use.layers for use in subject.uses) > sum(subject.counts):
        one_kind = f"A layer may keep more than one thing, and then stands in several rows (there are {sum(subject.counts):,} layers):"
    table = Table(label="layers that keep", columns=columns, rows=rows)
    yield Part(Paragraph(text=one_kind, table=table), in_story=unlike)
    for use in subject.uses:
        formulas = (_use_formula(use),) if use.planes and use.rows else ()
        yield Part(Paragraph(text=_kind_text(subject, use), formulas=formulas))
    if subject.counts.nothing:
        keep = "keeps" if subject.counts.nothing == 1 else "keep"
        yield Part(Paragraph(text=f"{counted(subject.counts.nothing, 'layer')} with neither attention nor a state {keep} nothing."))


def _use_formula(use: LayerUse) -> Formula:
    text = f"{counted(use.layers, 'layer')} x {counted(use.rows, 'row')} x ({row_words(use)})"
    return Formula(name=f"layers-{use.kind}", text=text, numbers=row_product(use.planes, use.layers, use.rows), value=use.size_bytes, unit="B")


def _kind_text(subject: Subject, use: LayerUse) -> str:
    context, layers = subject.context, f"{counted(use.layers, 'layer')} keep{'s' if use.layers == 1 else ''}"
    size, stride, cache = use.window or 0, use.stride or 1, use.cache
    picks = "" if cache is None or cache.picks is None else f" A query attends to {cache.picks:,} of them at most, which an indexer picks."
    match use.kind:
        case "full":
            return f"{layers} K and V of every token, for as long as the request lives.{picks}"
        case "sliding":
            what = "one latent each for" if cache is not None and cache.kernel == "mla" else "K and V of"
            state = (
                f"at {counted(context, 'token')} it still holds all of them"
                if context <= size
                else f"of {counted(context, 'token')} the first {context - size:,} are no longer needed"
            )
            return f"{layers} {what} the last {size:,} tokens (sliding window). What leaves the window is never looked at again and can be dropped: {state}."
        case "chunked":
            state = "the first chunk is not over yet" if context < size else f"a request of {counted(context, 'token')} never holds more"
            return f"{layers} K and V of one chunk of {size:,} tokens: a token sees only those before it in its own chunk, and {state}."
        case "latent":
            rope = "; a rotary key beside it is shared by them too" if any(plane.plane.role == "rope" for plane in use.planes) else ""
            return (
                f"{layers} one latent for every token (MLA). K and V of all its heads are made from that one vector, so that it is kept once, whatever the "
                f"number of heads{rope}.{picks}"
            )
        case "compressed":
            return (
                f"{layers} one latent for every {stride:,} tokens, which stands for all of them; a row is written only when its {stride:,} tokens are "
                f"there.{picks}"
            )
        case "indexer":
            each = "every token" if stride == 1 else f"every {stride:,} tokens"
            return f"{layers} an index key for {each}. An indexer scores these small keys to pick the rows that attention then reads."
        case "cross":
            from_encoder = f"{layers} K and V of what comes from the encoder (cross-attention), {counted(use.rows, 'token')} here (--encoder-tokens)"
            return f"{from_encoder}. They are written once for a request and do not grow with what it generates."
        case "shared":
            return f"{counted(use.layers, 'layer')} use{'s' if use.layers == 1 else ''} the cache of an earlier layer and keep none of their own."
        case "state":
            return _state_text(subject, use, layers, size)


def _state_text(subject: Subject, use: LayerUse, layers: str, rows: int) -> str:
    kernel = None if use.cache is None else use.cache.kernel
    if kernel == "compressor":
        return f"{layers} the last {rows:,} inputs of a compressor, from which the next compressed row is built."
    if kernel == "ring":
        return f"{layers} a ring of fixed length beside compressed rows, for the inputs from which the next one is built."
    if kernel == "shortconv":
        return f"{layers} the last inputs of a short convolution: the same size for any number of tokens, and no K or V."
    if not subject.counts.both:
        place = "in place of a row for every token"
    elif subject.counts.state:
        place = "beside the rows of the same layers, or in their place"
    else:
        place = "beside the rows of the same layers"
    return (
        f"{layers} a state of fixed size ({kernel}) {place}: each token changes it, and a request of a million tokens takes as much as one of ten. "
        f"No single token can be taken out of it again."
    )


# Element types


def dtype_topic(subject: Subject) -> Iterator[Part]:
    """What the KV dtype changes, and what it does not."""
    own = subject.own
    follows = sum(use.rows * use.layers * plane.row_bytes for use in subject.uses for plane in use.planes if plane.plane.dtype == "kv")
    fixed = own.request_bytes - follows
    if not follows:
        yield Part(Paragraph(text="The KV dtype (--kv-dtype) changes nothing: this model keeps states alone, which have a type of their own."))
        return
    yield Part(
        Paragraph(
            text=f"Numbers in the cache are {own.kv_dtype} here. Left to itself (auto) an engine takes as a rule the type that the model computes in, or the "
            "one that the checkpoint names for the cache (llama.cpp and Ollama: fp16); how the weights are quantized does not change it."
        )
    )
    here = subject.rows.kv_dtype.elements()
    sixteen = () if any(packing.name in ("bf16", "fp16") for packing in here) else ("bf16",)
    names = dict.fromkeys((*(packing.name for packing in here), *sixteen, *SHOWN_DTYPES))
    plans = []
    for name in names:
        try:
            plans.append((name, IDEAL.plan(subject.spec, subject.options._replace(kv_dtype=KvDtype(name, name)))))
        except KvcalcError:
            continue
    rows = tuple(Row(label=name, values=(plan.token_bytes(own.context), plan.resident_bytes(own.context, 1))) for name, plan in plans)
    table = Table(label="KV dtype", columns=(Column(name="B/token", unit=""), Column(name="request", unit="B")), rows=rows)
    yield Part(Paragraph(text=f"A request of {counted(own.context, 'token')}, K and V in one type:", table=table))
    scales = [element_size(PACKINGS[name]) for name in ("q8_0", "q4_0")]
    yield Part(
        Paragraph(
            text=f"Plain fp8 has no scale in the row. llama.cpp's q8_0 ({scales[0]} numbers) and q4_0 ({scales[1]}) store one with every 32 numbers, which is "
            "counted. K and V may differ: --kv-dtype k=q8_0,v=q4_0."
        )
    )
    text = "Half the bytes let a budget hold about twice the rows, and a decode step read half as many bytes of cache. The number of products stays the same."
    if fixed:
        text += f" {sized(fixed)} of the {format_bytes(own.request_bytes)} here (states, or what has a type of its own) do not follow the KV dtype."
    yield Part(Paragraph(text=text + " How much the answers suffer is not computed here: measure it."))

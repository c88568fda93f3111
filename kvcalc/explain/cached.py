"""What is cached and why: K and V, the query that is not, and what computing without a cache takes."""

from collections.abc import Iterator

from kvcalc.engines.base import LayerUse, Options, Plan
from kvcalc.engines.transformers import TRANSFORMERS
from kvcalc.engines.work import generated
from kvcalc.errors import KvcalcError
from kvcalc.explain.subject import Part, Subject, element_size, listed, plain, row_formula
from kvcalc.results.explain import Column, Formula, Paragraph, Row, Table
from kvcalc.units import counted, format_ratio

MOST_GENERATED = 4096
"""Tokens for which computing without a cache is shown, where the context is longer."""


def cache_topic(subject: Subject) -> Iterator[Part]:
    """The K and V of a token, why they are kept and Q is not, what `use_cache` and `past_key_values` are."""
    yield Part(Paragraph(text=_why(subject)), in_story=True)
    layers = _mixed_layers(subject)
    if layers:
        yield Part(Paragraph(text=layers), in_story=True)
    yield Part(Paragraph(text=_row_text(subject), formulas=tuple(_rows(subject))), in_story=True)
    query = _query(subject)
    if query is not None:
        yield Part(query, in_story=True)
    yield from _without_cache(subject)
    yield from _in_transformers(subject)


def _why(subject: Subject) -> str:
    if not subject.attention:
        return (
            "This model has no attention, and so no Q, K or V. Each layer folds every token into a state of fixed size, and the next step needs nothing "
            "else of the tokens before it. What is cached for a request is that state."
        )
    caches = [use.cache for use in subject.attention if use.cache is not None]
    latents = all(cache.kernel == "mla" for cache in caches)
    kept = "The KV cache keeps the latents that K and V are made from" if latents else "The KV cache keeps them"
    if all(cache.picks is not None for cache in caches):
        whose = "of the tokens so far that an indexer picks"
    else:
        whose = "of all tokens so far" if subject.sees_all else "of the tokens that a layer can see"
    return (
        f"To predict the next token, attention compares the query (Q) of the newest token with the keys (K) {whose}, and adds up their values (V), weighted by "
        f"how well the keys match. K and V of a token do not change once they are computed, and later steps need them again. {kept}, so that each is computed "
        f"once."
    )


def _mixed_layers(subject: Subject) -> str:
    """How many layers have attention, where not all have it alone."""
    counts = subject.counts
    said = [
        (counts.attention, "with attention"),
        (counts.state, "with a state of fixed size in its place"),
        (counts.both, "with both attention and a state"),
        (counts.shared, "with attention over the cache of an earlier layer"),
        (counts.nothing, "that keep nothing"),
    ]
    kinds = [(number, what) for number, what in said if number]
    if len(kinds) == 1 and kinds[0][1] in (said[0][1], said[1][1]):
        return ""
    return f"Of its {sum(counts):,} layers there are {listed([f'{number:,} {what}' for number, what in kinds])}."


def _row_text(subject: Subject) -> str:
    if not subject.attention:
        return f"What {subject.name} keeps in one layer for a whole request:"
    return f"What {subject.name} keeps of one token in one layer, in {subject.own.kv_dtype}:"


def _rows(subject: Subject) -> Iterator[Formula]:
    """One for each shape that a row has."""
    seen = set()
    indexers = [use for use in subject.uses if use.kind == "indexer"]
    for use in (*subject.attention, *indexers) if subject.attention else subject.states:
        if use.planes not in seen:
            seen.add(use.planes)
            yield row_formula(f"row-{use.kind}", use.planes, row_words(use))


def row_words(use: LayerUse) -> str:
    """What a row of a cache is made of."""
    by_role = {plane.plane.role: plane for plane in use.planes}
    if {"k", "v"} <= set(by_role):
        k, v = by_role["k"], by_role["v"]
        of = " of an encoder token" if use.kind == "cross" else ""
        if (k.width, k.packing) == (v.width, v.packing):
            return f"K and V{of}: {counted(k.heads, 'KV head')} x {k.width:,} numbers, each of {element_size(k.packing)}"
        widths = (f"{plane.width:,} numbers of {element_size(plane.packing)}" for plane in (k, v))
        return f"K and V{of}: {counted(k.heads, 'KV head')} x ({' + '.join(widths)})"
    stride = use.stride or 1
    parts = " + ".join(
        f"{_ROLES[plane.plane.role]} of {_shape(plane.heads, plane.plane.columns, plane.width)} numbers, each of {element_size(plane.packing)}"
        for plane in use.planes
    )
    return parts if stride == 1 else f"{parts}, for every {stride:,} tokens"


_ROLES = {
    "k": "a key",
    "v": "a value",
    "latent": "a latent",
    "rope": "a rotary key",
    "index": "an index key",
    "conv": "convolution inputs",
    "state": "a state",
}


def _shape(heads: int, columns: int, width: int) -> str:
    return " x ".join(f"{size:,}" for size in (heads, columns, width) if size > 1) or "1"


def _query(subject: Subject) -> Paragraph | None:
    """What caching Q would take, for the first kind of attention over the request's own tokens whose query heads are known."""
    if not subject.attention:
        return None
    text = "Q is not cached: the query of a token is used in the step that computes it, and no later step asks for it."
    for use in subject.attention:
        cache = use.cache
        if cache is None or cache.query_heads is None or use.kind == "cross":
            continue
        latent = cache.kernel == "mla" and cache.expanded is None
        width = sum(plane.width for plane in use.planes) if latent else use.planes[0].width if cache.expanded is None else cache.expanded[0]
        packing = use.planes[0].packing
        value = cache.query_heads * packing.row_bytes(width)
        blocks = -(-width // packing.elements)
        formula = plain(
            "query", f"Q: {counted(cache.query_heads, 'query head')} x {width:,} numbers", value, "B", cache.query_heads, blocks, packing.size_bytes
        )
        return Paragraph(text=f"{text} Kept in the same type, it would take this for each token in one such layer, to no use:", formulas=(formula,))
    return Paragraph(text=text)


def _without_cache(subject: Subject) -> Iterator[Part]:
    found, tokens = subject.costs, min(subject.context, MOST_GENERATED)
    worked = Formula(
        name="recomputed",
        text=f"tokens to compute for n = {tokens:,} new ones: n (n + 1) / 2, not n",
        numbers=f"{tokens:,} x ({tokens:,} + 1) / 2",
        value=tokens * (tokens + 1) // 2,
        unit="tokens",
    )
    off = "Without a cache (`use_cache=False` in transformers) nothing is kept between steps: every step computes all tokens so far again."
    if isinstance(found, KvcalcError):
        yield Part(Paragraph(text=off, formulas=(worked,)), in_story=True)
        return
    cached, again = generated(found, tokens)
    where = "" if subject.question.options.gpus == 1 else ", on one GPU of each stage"
    factor = format_ratio(again.flops, cached.flops)
    yield Part(Paragraph(text=f"{off} To generate {counted(tokens, 'token')} that is {factor} the arithmetic{where}.", formulas=(worked,)), in_story=True)
    half = max(1, tokens // 2)
    less_cached, less_again = generated(found, half)
    rows = [
        ("all, with the cache", less_cached.flops, cached.flops),
        ("all, without", less_again.flops, again.flops),
    ]
    text = "To generate so many tokens from nothing takes these FLOPs, two for each product that is added up (softmax, norms and sampling are left out)."
    if cached.attention_flops:
        rows = [
            ("attention, with the cache", less_cached.attention_flops, cached.attention_flops),
            ("attention, without", less_again.attention_flops, again.attention_flops),
            *rows,
        ]
        text += " Attention grows with the tokens squared with a cache, and cubed without." if subject.sees_all else _GROWTH
    columns = (Column(name=f"{counted(half, 'token')}", unit="FLOP"), Column(name=f"{counted(tokens, 'token')}", unit="FLOP"), Column(name="times", unit=""))
    table = Table(label="", columns=columns, rows=tuple(Row(label=label, values=(less, more, more / less)) for label, less, more in rows))
    yield Part(Paragraph(text=text, table=table))


_GROWTH = " Attention that looks at every token grows with the tokens squared with a cache, and cubed without; here not all of it does."


def _in_transformers(subject: Subject) -> Iterator[Part]:
    """The object that holds the cache, and its two main kinds."""
    dynamic, static = (_plan_of(subject, kind) for kind in ("dynamic", "static"))
    kernels = {use.cache.kernel for use in subject.states if use.cache is not None}
    if not subject.attention and not kernels <= {"mamba1", "mamba2"}:
        return
    old = "`past_key_values`" if subject.attention else "`cache_params`"
    text = (
        f"In transformers the cache is an object that a model's `forward` takes and returns: {old}, which release {TRANSFORMERS.version} calls `cache` (it "
        "still takes the old name). With it, the next call is given the new token alone. It holds what each layer keeps"
    )
    shape = None if isinstance(dynamic, KvcalcError) else next(iter(_tensor(dynamic, subject.context)), None)
    text += "." if shape is None else f": K and V are tensors of [batch, heads, tokens, width], in a layer of this model [{subject.batch:,}, {shape}]."
    yield Part(Paragraph(text=text), in_story=True)
    if isinstance(dynamic, KvcalcError):
        yield Part(Paragraph(text=f"What it allocates for this model cannot be told: {dynamic.message}."))
        return
    quarter, whole = max(1, subject.context // 4), subject.context
    rows = [(f"DynamicCache with {counted(length, 'token')}", dynamic.resident_bytes(length, 1)) for length in dict.fromkeys((quarter, whole))]
    grows = rows[0][1] != rows[-1][1]
    said = "`DynamicCache` grows with each step, by copying" if grows else "What it holds does not grow here"
    if not grows:
        said += "."
    elif isinstance(static, KvcalcError):
        said += f". `StaticCache` cannot be told: {static.message}."
    else:
        rows.append((f"StaticCache made for {counted(whole, 'token')}", static.resident_bytes(whole, 1)))
        said += "; `StaticCache` sets its whole length aside at once, so that shapes never change and a step can be compiled."
    table = Table(
        label="one request", columns=(Column(name="bytes", unit="B"),), rows=tuple(Row(label=label, values=(size_bytes,)) for label, size_bytes in rows)
    )
    yield Part(Paragraph(text=said, table=table))


def _plan_of(subject: Subject, kind: str) -> Plan | KvcalcError:
    options = Options(encoder_tokens=subject.options.encoder_tokens, cache=kind)
    try:
        return TRANSFORMERS.plan(subject.spec, options)
    except KvcalcError as error:
        return error


def _tensor(plan: Plan, context: int) -> Iterator[str]:
    """Heads, tokens and width of K where it has the width of V, of layers that keep everything first."""
    for use in sorted(plan.uses(context), key=lambda use: use.kind != "full"):
        roles = {plane.plane.role: plane for plane in use.planes}
        if use.rows and {"k", "v"} <= set(roles) and roles["k"].width == roles["v"].width:
            yield f"{roles['k'].heads:,}, {use.rows:,}, {roles['k'].width:,}"

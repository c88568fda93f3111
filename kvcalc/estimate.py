"""KV-cache bytes of requests of one length: a pure function of a model, an engine and its options."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from kvcalc.engines.base import Engine, LayerKind, LayerUse, Options, Plan, PlaneUse
from kvcalc.engines.ideal import IDEAL
from kvcalc.layers import ModelSpec, Note, PlainFormula
from kvcalc.packing import PACKINGS, KvDtype
from kvcalc.results.estimate import Estimate, LayerRow, PerQueryHead
from kvcalc.results.shared import ModelInfo, Parallel
from kvcalc.units import format_bytes, format_ratio


def estimate(spec: ModelSpec, engine: Engine, options: Options, *, name: str, source: str, context: int, batch: int) -> Estimate:
    """The cache of `batch` requests (in each replica) of `context` tokens. Raises KvcalcError where the engine cannot run the model so."""
    plan = engine.plan(spec, options)
    uses = plan.uses(context)
    rows = rows_of_one_copy(spec, options, plan.kv_dtype, context)
    plain = spec.plain_formula
    plain_bytes = None if plain is None else formula_bytes(plain, plan.kv_dtype, context, batch)
    beside = _formula_notes(rows, plain_bytes, context, batch) if engine.version is None else _engine_notes(rows, plan, context, options.dp)
    notes = [*spec.notes, *plan.notes, *length_notes(spec, plan, context), *plan.length_notes(context, batch), *beside]
    in_blocks = plan.pools[0].unit_bytes > 1
    return Estimate(
        model=model_info(spec, name, source),
        engine=engine.name,
        engine_version=engine.version,
        context=context,
        batch=batch,
        kv_dtype=str(plan.kv_dtype),
        parallel=Parallel(tp=options.tp, pp=options.pp, dp=options.dp, dcp=options.dcp),
        total_bytes=plan.total_bytes(context, batch),
        bytes_per_gpu=plan.resident_bytes(context, batch),
        request_bytes=plan.resident_bytes(context, 1),
        token_bytes=plan.token_bytes(context),
        fixed_bytes=plan.fixed_bytes(),
        formula=product(plan.need(context)[0], plan.pools[0].unit_bytes, batch)
        if in_blocks
        else _formula(uses, batch if plan.slots is None else 1, plan.resident_bytes(context, batch)),
        in_blocks=in_blocks,
        slots=plan.slots,
        plain_formula=plain,
        plain_formula_bytes=plain_bytes,
        per_query_head=_per_query_head(rows, batch),
        layers=tuple(_row(use) for use in uses),
        notes=tuple(notes),
    )


def rows_of_one_copy(spec: ModelSpec, options: Options, kv_dtype: KvDtype, context: int) -> tuple[LayerUse, ...]:
    """What one request of a model keeps in one copy on one GPU, whatever the engine adds: the rows alone. Empty for elements that only an engine has."""
    elements = KvDtype(*(packing.name for packing in kv_dtype.elements()))
    if any(name not in PACKINGS for name in elements):
        return ()
    return IDEAL.plan(spec, options._replace(kv_dtype=elements, tp=1, pp=1, dp=1, dcp=1)).uses(context)


def model_info(spec: ModelSpec, name: str, source: str) -> ModelInfo:
    """What an answer says about the model it is for."""
    facts = spec.facts
    return ModelInfo(
        name=name,
        source=source,
        model_type=facts.model_type,
        parameters=facts.parameters,
        parameters_text=facts.parameters_text,
        max_context=facts.max_context,
    )


def formula_bytes(plain: PlainFormula, kv_dtype: KvDtype, context: int, batch: int) -> int:
    """M = 2 L n H_kv d_h b B, with K and V of their own types."""
    row = sum(elements.row_bytes(plain.head_dim) for elements in kv_dtype.elements())
    return plain.layers * context * plain.kv_heads * row * batch


def _formula(uses: Sequence[LayerUse], batch: int, size_bytes: int) -> str:
    """The sum that gives the bytes of the batch on one GPU, in numbers, what all requests share last."""
    terms = [row_product(use.planes, use.layers, use.rows) for use in uses if use.rows and use.planes]
    whole = " + ".join(terms) if terms else "0"
    shared = size_bytes - batch * sum(use.layers * use.rows * sum(plane.row_bytes for plane in use.planes) for use in uses)
    sign = "+" if shared > 0 else "-"
    return product(f"({whole})" if len(terms) > 1 else whole, batch) + (f" {sign} {abs(shared):,}" if shared else "")


def row_product(planes: Sequence[PlaneUse], *before: int) -> str:
    """The bytes of a row behind other factors; K and V, which are mostly alike, as two of the same."""
    factors = [_plane_factors(plane) for plane in planes]
    if len(factors) > 1 and any(each != factors[0] for each in factors):
        return product(*before, f"({' + '.join(product(*each) for each in factors)})")
    return product(*([len(factors)] if len(factors) > 1 else []), *before, *factors[0])


def _plane_factors(use: PlaneUse) -> list[int]:
    vectors = use.heads * use.plane.columns
    blocks = -(-use.width // use.packing.elements)
    return ([] if vectors == 1 else [vectors]) + [blocks, use.packing.size_bytes]


def product(*factors: str | int) -> str:
    """Factors as an answer writes them."""
    return " x ".join(factor if isinstance(factor, str) else f"{factor:,}" for factor in factors)


def length_notes(spec: ModelSpec, plan: Plan, context: int) -> list[Note]:
    """Whether the context is more than the model is made for; not of what several slots have together."""
    own = spec.facts.max_context
    if own is None or context <= own or (plan.slots or 1) > 1:
        return []
    return [Note(code="context", text=f"{context:,} tokens are more than the {own:,} that the model is made for")]


def _formula_notes(one_copy: Sequence[LayerUse], plain_bytes: int | None, context: int, batch: int) -> list[Note]:
    """Where and by how much the plain formula is wrong for this model, and why."""
    if not one_copy:
        return []
    true_bytes = batch * sum(use.size_bytes for use in one_copy)
    if plain_bytes is None:
        return [Note(code="formula", text="2 L n H_kv d_h b cannot be written for this model: " + _reasons(one_copy, context))]
    if plain_bytes == true_bytes:
        return []
    if true_bytes == 0:
        return [Note(code="formula", text=f"2 L n H_kv d_h b alone gives {format_bytes(plain_bytes)}, and nothing is kept: {_reasons(one_copy, context)}")]
    factor = f"{format_ratio(plain_bytes, true_bytes)} too high" if plain_bytes > true_bytes else f"{format_ratio(true_bytes, plain_bytes)} too low"
    text = f"2 L n H_kv d_h b alone gives {format_bytes(plain_bytes)}, {factor}: {_reasons(one_copy, context)}"
    return [Note(code="formula", text=text)]


def _engine_notes(one_copy: Sequence[LayerUse], plan: Plan, context: int, replicas: int) -> list[Note]:
    """What an engine holds for a request beside the rows that the model keeps, or in their place."""
    kept, held = sum(use.size_bytes for use in one_copy), plan.total_bytes(context, 1) // replicas
    if not one_copy or kept == held:
        return []
    if kept > held:
        return [
            Note(code="engine", text=f"the rows of one request would be {format_bytes(kept)} in {plan.kv_dtype}; the engine holds {format_bytes(held)} for it")
        ]
    text = f"the rows of one request are {format_bytes(kept)}, of {format_bytes(held)} that the engine holds for it; `kvcalc fit` names the rest"
    return [Note(code="engine", text=text)]


_REASONS: dict[LayerKind, str] = {
    "sliding": "keep only the last {rows:,} tokens",
    "chunked": "keep only the last {rows:,} tokens",
    "latent": "keep one latent in place of K and V heads",
    "indexer": "keep index keys",
    "compressed": "keep one row for several tokens",
    "state": "keep a state of fixed size",
    "cross": "keep the encoder's tokens",
    "shared": "use the cache of another layer",
}
"""What layers do that the plain formula does not know of."""


LAYER_CAUSES: Final[dict[LayerKind, str]] = {
    "sliding": "windows",
    "chunked": "chunks",
    "latent": "latents in place of heads",
    "indexer": "index keys",
    "compressed": "rows for several tokens",
    "state": "states",
    "cross": "encoder tokens",
    "shared": "layers that use another's cache",
}
"""The same as a name."""


def _reasons(one_copy: Sequence[LayerUse], context: int) -> str:
    """What the layers keep other than K and V of every token."""
    counts: Counter[str] = Counter()
    for use in one_copy:
        if use.kind in _REASONS and not (use.kind in ("sliding", "chunked") and use.rows == context):
            counts[_REASONS[use.kind].format(rows=use.rows)] += use.layers
    return ", ".join(f"{count} layers {said}" for said, count in counts.items()) or "its layers differ in heads or widths"


def _per_query_head(one_copy: Sequence[LayerUse], batch: int) -> PerQueryHead | None:
    """What GQA, MQA or MLA saves; None for a model without query heads, or whose layers differ in them."""
    attention = [(use, use.cache.query_heads) for use in one_copy if use.cache is not None and use.cache.query_heads is not None]
    heads = {query_heads for _, query_heads in attention}
    if len(heads) != 1:
        return None
    expanded = sum(use.layers * use.rows * query_heads * _expanded_row_bytes(use) for use, query_heads in attention)
    return PerQueryHead(query_heads=heads.pop(), attention_bytes=batch * sum(use.size_bytes for use, _ in attention), expanded_bytes=batch * expanded)


def _expanded_row_bytes(use: LayerUse) -> int:
    """K and V of one query head for one token."""
    if use.cache is not None and use.cache.expanded is not None:
        return sum(use.planes[0].packing.row_bytes(width) for width in use.cache.expanded)
    return sum(plane.packing.row_bytes(plane.width) for plane in use.planes)


def _row(use: LayerUse) -> LayerRow:
    sizes = {plane.plane.role: plane for plane in use.planes}
    k, v = sizes.get("k"), sizes.get("v")
    is_vector = use.kind in ("latent", "indexer", "compressed") or (use.kind == "sliding" and k is None)
    return LayerRow(
        kind=use.kind,
        kernel=use.cache.kernel if use.cache is not None else None,
        count=use.layers,
        kv_heads=k.heads if k is not None else 1 if is_vector else None,
        k_dim=k.width if k is not None else sum(plane.width for plane in use.planes) if is_vector else None,
        v_dim=v.width if v is not None else 0 if is_vector else None,
        window=use.window,
        stride=use.stride,
        rows=use.rows,
        bytes=use.size_bytes,
    )

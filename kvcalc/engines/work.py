"""What a server computes and moves for a prompt (prefill) and for one more token of each request (decode): FLOPs and bytes of one GPU, in integers.

FLOPs are those of products alone, two for each multiplication that is added up: matrices, scores and values of attention, outer products and reads of
recurrent states. Softmax, norms, activations, rotations, mixing of residual streams and sampling are not counted, nor is an encoder, or K and V of what
it puts out. A prompt's scores are counted once for each pair of tokens that
is not masked, a query's scores over a latent as they are computed without expanding it (decode), or over the heads that it expands to (prefill).
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, assert_never

from kvcalc.engines.base import Options, model_packing
from kvcalc.engines.ideal import IDEAL
from kvcalc.errors import KvcalcError
from kvcalc.layers import Cache, Chunk, Encoder, Grows, ModelSpec, Once, Window
from kvcalc.packing import PACKINGS, KvDtype, Packing
from kvcalc.tensors import Tensor, WeighedModel
from kvcalc.weights import HeldTensor, Share, held_tensors, row_bytes

MULTIPLIED: Final = ("head", "attention", "recurrent", "mlp", "shared", "expert", "linear", "router", "unquantized")
"""Roles of tensors that every token is multiplied by, or with experts those that use them."""
REDUCED: Final = (("attention", "recurrent"), ("mlp", "shared", "expert", "linear"))
"""Roles whose last matrix tensor parallelism divides by its columns: after the mixer and after the MLP of a layer the GPUs sum what each has of it."""
STATE_PRODUCTS: Final = {"gdn": 3, "kda": 3, "mamba1": 2, "mamba2": 2, "lightning": 2, "rwkv": 2, "rglru": 1}
"""Products with each element of a recurrent state that one token takes: an outer product that is added and a query that reads it; the delta rule reads
it by the key too (transformers 5.24.0: torch_recurrent_gated_delta_rule in modeling_qwen3_next.py, torch_forward in modeling_mamba2.py)."""
ACTIVATION_BYTES: Final = 2
"""Of an element that GPUs exchange: 16 bits, whatever the weights are stored in."""
ALL_EXPERTS: Final = 50
"""From so many tokens an expert on, one that none of them uses is left out: it happens less than once in e^50."""


class CacheCosts(NamedTuple):
    """A cache that `readers` layers attend to, of which `writers` keep one of their own, with `row_bytes` a row in each.

    FLOPs for each pair of a query and a row, and for each token.
    """

    cache: Cache
    readers: int
    writers: int
    row_bytes: int
    prefill_pair_flops: int
    decode_pair_flops: int
    token_flops: int


class Experts(NamedTuple):
    """Matrices of which each token uses `used` of `copies`, some of which may hold nothing; `size_bytes` of all of them on a GPU."""

    copies: int
    used: int
    size_bytes: int


class Costs(NamedTuple):
    """What one GPU of each pipeline stage does, all stages together.

    `token_flops` and `sample_flops`: in matrices, by how these are stored, for each token, and for each token that is sampled (the head). `weight_bytes`
    are read in every step, `embedding_row_bytes` for each token. `reduced_token_bytes`: what GPUs sum among them for each token, in `reductions`.
    """

    token_flops: dict[str, int]
    sample_flops: dict[str, int]
    weight_bytes: int
    embedding_row_bytes: int
    experts: tuple[Experts, ...]
    caches: tuple[CacheCosts, ...]
    encoder_tokens: int
    dcp: int
    reduced_token_bytes: int
    reductions: int


class Work(NamedTuple):
    """Of one step, or of one prompt. `linear_flops`: in matrices, by how these are stored."""

    linear_flops: dict[str, int]
    attention_flops: int
    recurrence_flops: int
    weight_bytes: int
    kv_read_bytes: int
    kv_write_bytes: int
    state_bytes: int
    reduced_bytes: int
    reductions: int

    @property
    def flops(self) -> int:
        return sum(self.linear_flops.values()) + self.attention_flops + self.recurrence_flops

    @property
    def moved_bytes(self) -> int:
        return self.weight_bytes + self.kv_read_bytes + self.kv_write_bytes + self.state_bytes


def costs(spec: WeighedModel, kv_dtype: KvDtype, options: Options) -> Costs:
    """Raises KvcalcError where the tensors are not all known, an encoder's work is not, or the KV dtype is one engine's own."""
    _check(spec, kv_dtype, options)
    model, _ = model_packing(spec.facts)
    share = Share(tp=options.tp, ep=options.tp * options.dp if options.expert_parallel else 1, towers=False)
    held = [each for each in held_tensors(spec, model, share) if each.tensor.part == "text"]
    tied = not any(each.tensor.role == "head" for each in held)
    token_flops: Counter[str] = Counter()
    sample_flops: Counter[str] = Counter()
    experts: dict[tuple[int, int], int] = {}
    weight_bytes = embedding_row_bytes = 0
    for each in held:
        tensor, stored = each.tensor, _stored(each, model)
        if tensor.role == "embedding":
            embedding_row_bytes += row_bytes(each, model)
            if not tied or not _is_head(tensor, held):
                continue
        among = tensor.copies + tensor.empty
        if tensor.role == "expert":
            key = among, tensor.used
            experts[key] = experts.get(key, 0) + each.size_bytes
        elif tensor.used:
            weight_bytes += each.size_bytes
        if tensor.role in ("head", "embedding"):
            sample_flops[stored] += 2 * each.elements
        elif tensor.role in MULTIPLIED and len(tensor.shape) > 1:
            token_flops[stored] += 2 * each.elements * tensor.used // among
    reduced = [_reduced(spec, roles) for roles in REDUCED] if options.tp > 1 else []
    return Costs(
        token_flops=dict(token_flops),
        sample_flops=dict(sample_flops),
        weight_bytes=weight_bytes,
        embedding_row_bytes=embedding_row_bytes,
        experts=tuple(Experts(copies, used, size_bytes) for (copies, used), size_bytes in experts.items()),
        caches=tuple(_caches(spec, kv_dtype, options)),
        encoder_tokens=options.encoder_tokens or 0,
        dcp=options.dcp,
        reduced_token_bytes=sum(width * layers for width, layers in reduced) * ACTIVATION_BYTES,
        reductions=sum(layers for _, layers in reduced),
    )


def prefill(of: Costs, tokens: int, *, cached: int = 0, passes: int = 1) -> Work:
    """The prompt of one request, of which `cached` tokens are kept already, in so many passes of equal length, and its first token."""
    new = tokens - cached
    each = -(-new // passes)
    starts = range(cached, tokens, each) if new else range(0)
    linear = Counter({stored: flops * new for stored, flops in of.token_flops.items()})
    linear.update(of.sample_flops)
    attention = sum(cost.readers * cost.prefill_pair_flops * _attended(cost.cache, of, cached, tokens) for cost in of.caches)
    return Work(
        linear_flops=dict(linear),
        attention_flops=attention,
        recurrence_flops=new * sum(cost.writers * cost.token_flops for cost in of.caches),
        weight_bytes=sum(_weight_bytes(of, min(each, tokens - start)) for start in starts),
        kv_read_bytes=sum(cost.readers * cost.row_bytes * _rows(cost.cache, of, start) for cost in of.caches for start in starts if start),
        kv_write_bytes=sum(cost.writers * cost.row_bytes * (_kept(cost.cache, of, tokens) - _kept(cost.cache, of, cached)) for cost in of.caches),
        state_bytes=2 * len(starts) * _state_bytes(of),
        reduced_bytes=new * of.reduced_token_bytes,
        reductions=len(starts) * of.reductions,
    )


def decode(of: Costs, context: int, batch: int) -> Work:
    """One more token for each of `batch` requests that have `context` tokens then, on the GPU that keeps their rows."""
    linear = Counter({stored: flops * batch for stored, flops in of.token_flops.items()})
    linear.update({stored: flops * batch for stored, flops in of.sample_flops.items()})
    rows = [(cost, _rows(cost.cache, of, context)) for cost in of.caches]
    return Work(
        linear_flops=dict(linear),
        attention_flops=batch * sum(cost.readers * cost.decode_pair_flops * each for cost, each in rows),
        recurrence_flops=batch * sum(cost.writers * cost.token_flops for cost in of.caches),
        weight_bytes=_weight_bytes(of, batch),
        kv_read_bytes=batch * sum(cost.readers * cost.row_bytes * each for cost, each in rows),
        kv_write_bytes=batch * sum(cost.writers * cost.row_bytes // _stride(cost.cache) for cost in of.caches),
        state_bytes=2 * batch * _state_bytes(of),
        reduced_bytes=batch * of.reduced_token_bytes,
        reductions=of.reductions,
    )


class Generated(NamedTuple):
    """FLOPs of generating tokens one after the other, and those of attention among them."""

    flops: int
    attention_flops: int


def generated(of: Costs, tokens: int) -> tuple[Generated, Generated]:
    """Of so many tokens from nothing: with a cache, and with the whole sequence computed again at each step."""
    each = sum(of.token_flops.values()) + sum(cost.writers * cost.token_flops for cost in of.caches)
    samples = tokens * sum(of.sample_flops.values())
    cached = sum(cost.readers * cost.decode_pair_flops * _attended_by(cost.cache, of, tokens) for cost in of.caches)
    again = sum(
        cost.readers * cost.prefill_pair_flops * sum(_attended_by(cost.cache, of, length) for length in range(1, tokens + 1))
        for cost in of.caches
        if cost.prefill_pair_flops
    )
    return Generated(tokens * each + samples + cached, cached), Generated(tokens * (tokens + 1) // 2 * each + samples + again, again)


def without_windows(of: Costs) -> Costs:
    """The same if every layer with attention kept and attended to all tokens."""
    every = Grows()
    plain = [cost for cost in of.caches if cost.cache.kernel in ("gqa", "mla") and not isinstance(cost.cache.retention, Encoder)]
    return of._replace(
        caches=tuple(cost._replace(cache=cost.cache.model_copy(update={"retention": every, "picks": None})) if cost in plain else cost for cost in of.caches)
    )


def added(one: Work, other: Work) -> Work:
    """Both together."""
    linear = Counter(one.linear_flops)
    linear.update(other.linear_flops)
    return Work(dict(linear), *(a + b for a, b in zip(one[1:], other[1:], strict=True)))


def repeated(work: Work, times: int) -> Work:
    """The same so many times."""
    return Work({stored: times * flops for stored, flops in work.linear_flops.items()}, *(times * each for each in work[1:]))


def distinct_bytes(experts: Experts, tokens: int) -> int:
    """Bytes of the experts that so many tokens are expected to use, each choosing evenly and by itself: copies x (1 - (1 - used / copies)^tokens)."""
    if tokens * experts.used >= ALL_EXPERTS * experts.copies:
        return experts.size_bytes
    every, unused = pow(experts.copies, tokens), pow(experts.copies - experts.used, tokens)
    used_bytes: int = experts.size_bytes * (every - unused) // every
    return used_bytes


def _weight_bytes(of: Costs, tokens: int) -> int:
    return of.weight_bytes + tokens * of.embedding_row_bytes + sum(distinct_bytes(experts, tokens) for experts in of.experts)


def _check(spec: WeighedModel, kv_dtype: KvDtype, options: Options) -> None:
    if spec.untold is not None and not spec.tensors:
        raise KvcalcError(f"how much work it is cannot be told: {spec.untold}", hint="`kvcalc fit` answers what fits")
    if not spec.tensors:
        raise KvcalcError(
            "how much work it is cannot be told: the weights of this model are not known tensor by tensor", hint="name a model, or its config.json"
        )
    if any(tensor.part == "text" and tensor.name.startswith("encoder.") for tensor in spec.tensors):
        raise KvcalcError("the work of an encoder is not counted: its layers keep no cache that tells its heads", hint="name a model that only decodes")
    if any(packing.name not in PACKINGS for packing in kv_dtype.elements()):
        raise KvcalcError(f"how {kv_dtype} is computed with is not known", hint="name another --kv-dtype")
    for cache in {cache for layer in spec.layers for cache in layer.caches}:
        if cache.kernel == "indexer" and (cache.scorers is None or not _picks(spec)):
            raise KvcalcError("how many tokens its indexer picks, or by how many heads, is not in its config", hint="add index_topk and index_n_heads to it")
    if options.dp_attention:
        raise KvcalcError("attention that is split by requests is not timed", hint="leave out --enable-dp-attention")
    if options.expert_parallel and options.dp > 1:  # tokens travel to the replica that holds their experts, which takes a time of its own
        raise KvcalcError("experts that replicas share are not timed", hint="leave out --ep, or --dp")
    if options.gpu_layers is not None:
        raise KvcalcError("layers on the CPU are not timed", hint="leave out --n-gpu-layers")


def _picks(spec: ModelSpec) -> bool:
    return any(cache.picks is not None for layer in spec.layers for cache in layer.caches)


def _stored(held: HeldTensor, model: Packing) -> str:
    """How a matrix is stored: the name of its scheme, or of its packing."""
    if held.scheme is not None:
        return held.scheme.name
    return model.name if held.tensor.dtype == "model" else held.tensor.dtype


def _is_head(tensor: Tensor, held: Iterable[HeldTensor]) -> bool:
    """Whether an embedding is the tied head: that with the widest vocabulary (others are looked up alone)."""
    return tensor == max((each.tensor for each in held if each.tensor.role == "embedding"), key=lambda each: each.shape[0])


def _reduced(spec: WeighedModel, roles: tuple[str, ...]) -> tuple[int, int]:
    """Features that GPUs sum behind matrices of these roles, and the layers that have one."""
    ends = [tensor for tensor in spec.tensors if tensor.part == "text" and tensor.role in roles and tensor.split == "cols" and len(tensor.shape) > 1]
    layers = {layer for tensor in ends for layer in tensor.layers}
    return max((tensor.shape[0] for tensor in ends), default=0), len(layers)


def _caches(spec: ModelSpec, kv_dtype: KvDtype, options: Options) -> Iterator[CacheCosts]:
    elements = KvDtype(*(packing.name for packing in kv_dtype.elements()))
    plan = IDEAL.plan(spec, options._replace(kv_dtype=elements, pp=1, dp=1, draft=None, draft_layers=False))
    rows = {use.cache: sum(plane.row_bytes for plane in use.planes) for use in plan.uses(1)}
    readers = Counter(cache for layer in spec.layers for cache in (*layer.caches, *(() if layer.reads is None else spec.layers[layer.reads].caches)))
    writers = Counter(cache for layer in spec.layers for cache in layer.caches)
    for cache in writers:
        flops = _pair_flops(cache, options.tp)
        yield CacheCosts(cache, readers[cache], writers[cache], rows[cache], *flops, _token_flops(cache, options.tp))


def _pair_flops(cache: Cache, tp: int) -> tuple[int, int]:
    """For a query and a row in one layer on one GPU: scores, and the sum of values, in prefill and in decode."""
    if cache.kernel == "indexer":
        score = 2 * (cache.scorers or 0) * cache.planes[0].width
        return score, score
    if cache.kernel not in ("gqa", "mla") or cache.query_heads is None:
        return 0, 0
    heads = -(-cache.query_heads // tp)
    if cache.kernel == "gqa":
        both = 2 * heads * sum(plane.width for plane in cache.planes)
        return both, both
    row = sum(plane.width for plane in cache.planes)
    if cache.expanded is None:  # the row is K and V at once (DeepSeek-V4)
        return 4 * heads * row, 4 * heads * row
    return 2 * heads * sum(cache.expanded), 2 * heads * (row + cache.planes[0].width)


def _token_flops(cache: Cache, tp: int) -> int:
    products = STATE_PRODUCTS.get(cache.kernel, 0)
    states = sum(plane.heads * plane.width for plane in cache.planes if plane.role == "state")
    return 2 * products * -(-states // tp)


def _state_bytes(of: Costs) -> int:
    """What a request's states take, which every step reads and writes."""
    return sum(cost.writers * cost.row_bytes * _records(cost.cache) for cost in of.caches)


def _records(cache: Cache) -> int:
    match cache.retention:
        case Once():
            return 1
        case Window(size=size) if cache.kernel == "compressor":
            return size
        case Grows() | Window() | Chunk() | Encoder():
            return 0
        case unreachable:
            assert_never(unreachable)


def _stride(cache: Cache) -> int:
    """Tokens for which a step writes one row; so many that it writes none where nothing grows."""
    match cache.retention:
        case Grows(stride=stride):
            return stride
        case Window() | Chunk() if cache.kernel != "compressor":
            return 1
        case Window() | Chunk() | Once() | Encoder():
            return 1 << 62
        case unreachable:
            assert_never(unreachable)


def _kept(cache: Cache, of: Costs, tokens: int) -> int:
    """Rows that a prompt of so many tokens has written."""
    match cache.retention:
        case Grows(stride=stride):
            return -(-(tokens // stride) // of.dcp)
        case Window() | Chunk() if cache.kernel != "compressor":
            return tokens
        case Window() | Chunk() | Once():
            return 0
        case Encoder():
            return of.encoder_tokens if tokens else 0
        case unreachable:
            assert_never(unreachable)


def _rows(cache: Cache, of: Costs, tokens: int) -> int:
    """Rows that the last of so many tokens attends to, on one GPU."""
    match cache.retention:
        case Grows(stride=stride):
            rows = -(-(tokens // stride) // of.dcp)
        case Window(size=size):
            rows = 0 if cache.kernel == "compressor" else min(tokens, size)
        case Chunk(size=size):
            rows = (tokens - 1) % size + 1 if tokens else 0
        case Once():
            rows = 0
        case Encoder():
            rows = of.encoder_tokens
        case unreachable:
            assert_never(unreachable)
    return rows if cache.picks is None else min(rows, cache.picks)


def _attended(cache: Cache, of: Costs, start: int, stop: int) -> int:
    """The sum of the rows that each token behind `start`, up to the one at `stop`, attends to."""
    return _attended_by(cache, of, stop) - _attended_by(cache, of, start)


def _attended_by(cache: Cache, of: Costs, tokens: int) -> int:
    """The same for the first so many tokens."""
    match cache.retention:
        case Grows(stride=stride):
            return -(-_steps(tokens, stride, cache.picks) // of.dcp)
        case Window(size=size):
            return 0 if cache.kernel == "compressor" else _steps(tokens, 1, size if cache.picks is None else min(size, cache.picks))
        case Chunk(size=size):
            whole, rest = divmod(tokens, size)
            return whole * size * (size + 1) // 2 + rest * (rest + 1) // 2
        case Once():
            return 0
        case Encoder():
            return tokens * of.encoder_tokens
        case unreachable:
            assert_never(unreachable)


def _steps(tokens: int, stride: int, most: int | None) -> int:
    """The sum of min(t // stride, most) for t from 1 to `tokens`."""
    rising = tokens if most is None else min(tokens, most * stride - 1)
    whole = rising // stride
    below = stride * whole * (whole - 1) // 2 + whole * (rising - stride * whole + 1)
    return below if most is None else below + (tokens - rising) * most

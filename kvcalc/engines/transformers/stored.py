"""What transformers keeps of each cache of a model: mostly the rows that the architecture says, and some models' in another way.

The difference tables name the file of transformers 5.24.0 that a rule is from. Bytes were measured on CPU with real caches of shrunken models.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple, assert_never

from kvcalc.engines.base import PlaneUse
from kvcalc.engines.transformers.kinds import GROUP, CacheKind
from kvcalc.engines.transformers.releases import Release
from kvcalc.errors import KvcalcError
from kvcalc.layers import Cache, Chunk, Encoder, Grows, Once, Plane, Retention, Window
from kvcalc.packing import PACKINGS, Packing

EVERY_QUERY_HEAD: Final = frozenset({"falcon"})
"""Models with several KV heads whose K and V are copied to every query head before they are cached (models/falcon/modeling_falcon.py)."""

GATED_INDEX_KEYS: Final = frozenset({"glm5_next", "glm5_next_text"})
"""Models whose indexer caches the key, a gate as wide and one flag of every token, where others keep pooled keys and a ring
(models/glm5_next/modeling_glm5_next.py)."""

CROSS_IN_ONE_CACHE: Final = frozenset({"mllama", "mllama_text_model"})
"""Types whose cross-attention stands in the decoder's own cache, where a static one gives it as many rows (measured: 64 for 50 vision tokens)."""
LONGER_WINDOWS: Final = {"mimo_v2_flash": {128: 129}}
"""Windows that the published config counts without the token that looks back (models/mimo_v2_flash/configuration_mimo_v2_flash.py)."""

_COMPRESSORS: Final = {8: (4, True), 128: (128, False)}
"""For the rows that a compressor looks back on: tokens an entry, and whether entries overlap (models/deepseek_v4/modeling_deepseek_v4.py)."""


class Unfinished(NamedTuple):
    """The tokens since the last whole entry of `stride`. The last of an entry stay allocated until the next token comes."""

    stride: int


class Overlap(NamedTuple):
    """The last whole entry's `stride` tokens, which the next one needs."""

    stride: int


class Held(NamedTuple):
    """What `layers` caches like `source` keep of one request: rows by `kept`, each of `planes`."""

    source: Cache
    layers: int
    kept: Retention | Unfinished | Overlap
    planes: tuple[PlaneUse, ...]

    @property
    def layer_row_bytes(self) -> int:
        """One row in one layer."""
        return sum(plane.row_bytes for plane in self.planes)

    @property
    def row_bytes(self) -> int:
        """One row in all of the layers."""
        return self.layers * self.layer_row_bytes

    def rows(self, tokens: int, encoder_tokens: int) -> int:
        """Rows of a request of `tokens` after a decode step. A window's last step leaves one token more allocated than it keeps."""
        match self.kept:
            case Grows(stride=stride):
                return tokens // stride
            case Window(size=size) | Chunk(size=size):
                return min(tokens, size)
            case Once():
                return 1
            case Encoder():
                return encoder_tokens
            case Unfinished(stride=stride):
                return (tokens - 1) % stride + 1 if tokens else 0
            case Overlap(stride=stride):
                return stride if tokens >= stride else 0
            case unreachable:
                assert_never(unreachable)

    def prefill_rows(self, tokens: int, encoder_tokens: int) -> int:
        """The same right after a prefill of `tokens`: a slice keeps the whole tensor alive that it is a slice of."""
        match self.kept:
            case Window() | Chunk() | Unfinished():
                return tokens
            case Grows() | Once() | Encoder() | Overlap():
                return self.rows(tokens, encoder_tokens)
            case unreachable:
                assert_never(unreachable)

    def replaced_bytes(self, tokens: int) -> int:
        """Bytes of the old tensors of one layer that still live while a decode step to `tokens` writes the new ones, which are copies with a row more."""
        match self.kept:
            case Grows(stride=stride):
                return max(plane.row_bytes for plane in self.planes) * (max(tokens - 1, 0) // stride)
            case Window(size=size) | Chunk(size=size):
                return self.layer_row_bytes * min(max(tokens - 1, 0), size)
            case Once() | Encoder() | Unfinished() | Overlap():
                return 0
            case unreachable:
                assert_never(unreachable)


class Storing(NamedTuple):
    """How a model is stored: by which release, in which kind of cache; its type, and the element type that it computes in."""

    release: Release
    kind: CacheKind
    model_type: str | None
    model: Packing

    def held(self, cache: Cache, layers: int) -> Iterator[Held]:
        """What one of the model's caches becomes. Raises KvcalcError for one that transformers keeps in a way that is not modelled."""
        kept = self._kept(cache.retention)
        match cache.kernel:
            case "gqa" | "mla":
                yield Held(cache, layers, kept, self._keys_and_values(self._attended(cache)))
            case "indexer" | "ring":
                yield from self._index_keys(cache, layers)
            case "compressor":
                yield from self._compressor(cache, layers)
            case "mamba1" | "mamba2" | "gdn" | "kda" | "shortconv":
                yield Held(cache, layers, kept, tuple(self._state(plane) for plane in cache.planes))
            case "lightning" | "cca":  # MiniMaxCache and Zaya keep states in the model's dtype, and Zaya no column more (models/zaya/modeling_zaya.py)
                yield Held(cache, layers, kept, self._as(self.model, *cache.planes))
            case "rglru":  # on the modules, not in the cache
                return
            case "rwkv":
                raise _unknown(cache)
            case unreachable:
                assert_never(unreachable)

    def _kept(self, retention: Retention) -> Retention:
        if isinstance(retention, Encoder) and self.kind.stores == "static" and self.model_type in CROSS_IN_ONE_CACHE:
            return Grows()
        longer = LONGER_WINDOWS.get(self.model_type or "", {})
        if isinstance(retention, Window) and retention.size in longer:
            return Window(size=longer[retention.size])
        return retention

    def _attended(self, cache: Cache) -> tuple[Plane, ...]:
        """K and V, or the latent, as they are handed to the cache."""
        if cache.kernel == "mla":
            return cache.planes if self.release.line == 5 else _expanded(cache)
        return _copied(cache) if self.model_type in EVERY_QUERY_HEAD else cache.planes

    def _index_keys(self, cache: Cache, layers: int) -> Iterator[Held]:
        if self.model_type not in GATED_INDEX_KEYS:
            if cache.kernel == "ring":
                raise _unknown(cache)
            yield Held(cache, layers, cache.retention, self._as(self.model, *cache.planes))
        elif cache.kernel == "indexer":
            (keys,) = cache.planes
            yield Held(cache, layers, Grows(), self._as(self.model, keys.model_copy(update={"width": 2 * keys.width + 1})))

    def _as(self, packing: Packing, *planes: Plane) -> tuple[PlaneUse, ...]:
        return tuple(PlaneUse(plane, plane.heads, plane.width, packing) for plane in planes)

    def _keys_and_values(self, planes: tuple[Plane, ...]) -> tuple[PlaneUse, ...]:
        packing = self.kind.packing(self.model)
        uses = self._as(packing, *planes)
        if self.kind.stores != "groups":
            return uses
        for use in uses:
            if use.heads * use.width % GROUP:
                raise KvcalcError(
                    f"a row of {use.heads} x {use.width} elements does not fill the groups of {GROUP} in which transformers quantizes",
                    hint="use --cache fp8 or dynamic",
                )
        # groups run over heads: where they do not end with one, the row is counted as one head
        return tuple(use if packing.fills(use.width) else use._replace(heads=1, width=use.heads * use.width) for use in uses)

    def _state(self, plane: Plane) -> PlaneUse:
        """Convolutions keep as many columns as their kernel is wide, in their own dtype, and recurrent states are fp32 (LinearAttentionLayer)."""
        if plane.role == "conv":
            packing = self.model if plane.dtype == "model" else PACKINGS[plane.dtype]
            return PlaneUse(plane.model_copy(update={"columns": plane.columns + 1}), plane.heads, plane.width, packing)
        return PlaneUse(plane, plane.heads, plane.width, PACKINGS["fp32"])

    def _compressor(self, cache: Cache, layers: int) -> Iterator[Held]:
        """DeepSeek-V4: projections and gates of the tokens since the last entry; where entries overlap, half of each of the last one's too, its gates
        in fp32 since the bias that is added to them is.
        """
        (plane,) = cache.planes
        rows = cache.retention.size if isinstance(cache.retention, Window) else 0
        if rows not in _COMPRESSORS:
            raise _unknown(cache)
        stride, overlaps = _COMPRESSORS[rows]
        yield Held(cache, layers, Unfinished(stride), self._as(self.model, plane))
        if overlaps:
            half = plane.model_copy(update={"width": plane.width // 4})
            yield Held(cache, layers, Overlap(stride), (*self._as(self.model, half), *self._as(PACKINGS["fp32"], half)))


def _unknown(cache: Cache) -> KvcalcError:
    return KvcalcError(f"how transformers stores the {cache.kernel} cache of this model is not known", hint="use --engine vllm or ideal")


def _copied(cache: Cache) -> tuple[Plane, ...]:
    """K and V of every query head, unless there is one KV head alone."""
    heads = cache.planes[0].heads
    if heads == 1 or cache.query_heads is None:
        return cache.planes
    return tuple(plane.model_copy(update={"heads": cache.query_heads}) for plane in cache.planes)


def _expanded(cache: Cache) -> tuple[Plane, ...]:
    """K and V of every query head in place of the latent (transformers 4.57.6, models/deepseek_v3/modeling_deepseek_v3.py)."""
    if cache.expanded is None or cache.query_heads is None:
        raise KvcalcError(
            "transformers 4 caches K and V of every head, and the model does not say how wide they are without compression", hint="use --engine transformers"
        )
    k, v = cache.expanded
    return (
        Plane(role="k", heads=cache.query_heads, width=k, split="heads"),
        Plane(role="v", heads=cache.query_heads, width=v, split="heads"),
    )

"""What a model keeps for each request: an ordered list of layers, each with zero or more caches.

A cache answers two questions: how long it retains rows (`Retention`), and which planes a row is made of (`Plane`).
Nothing here knows an engine, a file or a byte.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

MAX_SIZE = 10**40
"""Larger than any width, length or number of parameters, and than products of those that a config.json may state: a larger number is a damaged file."""
Size = Annotated[int, Field(gt=0, le=MAX_SIZE)]
MAX_LAYERS = 10_000
"""More layers than any model has: a larger number is a damaged file."""


class Frozen(BaseModel):
    """An immutable value: unknown fields and values of another type are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True, json_schema_serialization_defaults_required=True)


class Note(Frozen):
    """Something that a reader of the answer should know. `code` is stable, `text` is one sentence."""

    code: str
    text: str


class Grows(Frozen):
    """One row for every `stride` tokens, for as long as the request lives."""

    kind: Literal["grows"] = "grows"
    stride: Size = 1


class Window(Frozen):
    """The rows of the last `size` tokens."""

    kind: Literal["window"] = "window"
    size: Size


class Chunk(Frozen):
    """The rows of the current chunk of `size` tokens."""

    kind: Literal["chunk"] = "chunk"
    size: Size


class Once(Frozen):
    """One record a request, whatever its length."""

    kind: Literal["once"] = "once"


class Encoder(Frozen):
    """The rows of the encoder's output (or of the image tokens), written once."""

    kind: Literal["encoder"] = "encoder"


Retention = Annotated[Grows | Window | Chunk | Once | Encoder, Field(discriminator="kind")]

Kernel = Literal["gqa", "mla", "indexer", "compressor", "ring", "mamba1", "mamba2", "gdn", "kda", "lightning", "shortconv", "rwkv", "rglru", "cca"]
"""How a cache is computed: engines store some kernels in their own way."""


class Plane(Frozen):
    """A part of a row: `heads` x `columns` vectors of `width` elements.

    `split` is what tensor parallelism divides: the heads, the width, or nothing (a whole copy on each GPU). `dtype` is "kv" (the
    dtype of the KV cache), "model" (the dtype that the model computes in) or the name of a packing. `columns` are the columns
    of a convolution state (kernel - 1), else 1.
    """

    role: Literal["k", "v", "latent", "rope", "index", "conv", "state"]
    heads: Size
    width: Size
    split: Literal["heads", "width", "replicated"]
    dtype: str = "kv"
    columns: Size = 1


class Cache(Frozen):
    """Rows that one layer keeps. `query_heads` attend to it (None where nothing like a query head does); `expanded` are the K and V
    widths that each query head would have without compression to a latent (None where nothing is compressed). `picks`: the most rows that a query
    attends to, picked by an indexer, its own or that of an earlier layer (None: all). `scorers`: the query heads that score the keys of an indexer.
    """

    retention: Retention
    planes: Annotated[tuple[Plane, ...], Field(min_length=1)]
    kernel: Kernel
    query_heads: Size | None = None
    expanded: tuple[Size, Size] | None = None
    picks: Size | None = None
    scorers: Size | None = None


class Layer(Frozen):
    """One decoder layer. `reads` is the index of an earlier layer whose cache this one uses instead of one of its own."""

    caches: tuple[Cache, ...] = ()
    reads: Annotated[int, Field(ge=0)] | None = None


class PlainFormula(Frozen):
    """The L, H_kv and d_h that a reader of the config would put into M = 2 L n H_kv d_h b B, whatever the layers really are."""

    layers: Size
    kv_heads: Size
    head_dim: Size


class Facts(Frozen):
    """What is known of a model beside its layers. None means that the source does not say.

    `dtype`: packing that the checkpoint names for its activations. `kv_dtype`: packing that its quantization names for the KV cache.
    `max_context`: tokens. `encoder_tokens`: rows of a cross-attention cache unless the user says otherwise; None where there is no
    fixed number. `parameters` counts everything in the checkpoint but draft layers, `parameters_text` the language model; `checkpoint_bytes` is the size of
    all its tensors as published. `image_prefix`: image tokens are read both ways. `pooling`: the checkpoint is for embedding, reward or
    classification. `quantized_kv_scales`: its quantization brings scales for the KV cache. `sharded_tower`: heads and widths of a vision tower that
    tensor parallelism must divide.
    """

    model_type: str | None = None
    dtype: str | None = None
    kv_dtype: str | None = None
    max_context: Size | None = None
    encoder_tokens: Annotated[int, Field(ge=0, le=MAX_SIZE)] | None = None
    parameters: Size | None = None
    parameters_text: Size | None = None
    checkpoint_bytes: Size | None = None
    formula: PlainFormula | None = None
    image_prefix: bool = False
    pooling: bool = False
    quantized_kv_scales: bool = False
    sharded_tower: tuple[Size, ...] = ()


class ModelSpec(Frozen):
    """A model as its caches: `layers` in order, `draft_layers` that exist only under speculative decoding (MTP), and what was noted
    while the model was read.
    """

    layers: Annotated[tuple[Layer, ...], Field(min_length=1, max_length=MAX_LAYERS)]
    draft_layers: Annotated[tuple[Layer, ...], Field(max_length=MAX_LAYERS)] = ()
    facts: Facts = Field(default_factory=Facts)
    notes: tuple[Note, ...] = ()

    @property
    def plain_formula(self) -> PlainFormula | None:
        """The numbers of the plain formula: those stated, else those of the attention that every layer has alike, else None."""
        if self.facts.formula is not None:
            return self.facts.formula
        shapes = {tuple((plane.role, plane.heads, plane.width) for cache in layer.caches for plane in cache.planes) for layer in self.layers}
        match list(shapes):
            case [(("k", heads, width), ("v", v_heads, v_width))] if (heads, width) == (v_heads, v_width):
                return PlainFormula(layers=len(self.layers), kv_heads=heads, head_dim=width)
        return None

    @model_validator(mode="after")
    def _reads_point_back(self) -> "ModelSpec":
        for index, layer in enumerate(self.layers):
            if layer.reads is not None and (layer.reads >= index or not self.layers[layer.reads].caches):
                raise ValueError(f"layer {index} reads the cache of layer {layer.reads}, which is not an earlier layer with a cache")
        return self

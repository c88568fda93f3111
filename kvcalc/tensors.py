"""What a model's weights are: tensors, and how a checkpoint stores them. Apart from its layers, since a question about the cache does without."""

from math import prod
from typing import Annotated, Literal

from pydantic import Field

from kvcalc.layers import Frozen, ModelSpec, Size


class Tensor(Frozen):
    """Weights of one name. `layers` are the decoder layers that have it, each with `copies` (experts; the layers of a tower), of which one token
    passes `used` (0: it is loaded and no token passes it; more than there are: some twice); no layers: it stands outside of them. A token chooses evenly
    among the copies and `empty` ones, which hold and compute nothing. A `*` in the name stands for a layer, then for a copy.

    `split` is what tensor parallelism divides: the rows or the columns (in `parts` equal pieces, single ones where None), the rows of a vocabulary, or
    nothing (a whole copy on each GPU). `dtype` is "model" (the dtype that the model is stored in) or the name of a packing. A matrix or convolution that
    no quantization stores in its own form is unquantized; "other" is nothing that a token is multiplied by. A buffer is stored with the
    weights and is no parameter; a draft is loaded for speculative decoding alone.
    """

    name: str
    shape: Annotated[tuple[Size, ...], Field(min_length=1)]
    layers: tuple[int, ...] = ()
    copies: Size = 1
    used: Annotated[int, Field(ge=0)] = 1
    empty: Annotated[int, Field(ge=0)] = 0
    split: Literal["rows", "cols", "vocab", "replicated"] = "replicated"
    parts: Size | None = None
    role: Literal["embedding", "head", "attention", "recurrent", "mlp", "shared", "expert", "linear", "router", "unquantized", "norm", "buffer", "other"] = (
        "other"
    )
    part: Literal["text", "tower", "draft"] = "text"
    dtype: str = "model"

    @property
    def elements(self) -> int:
        """Of one copy."""
        return prod(self.shape)

    @property
    def number(self) -> int:
        """How many there are."""
        return max(1, len(self.layers)) * self.copies


class Scheme(Frozen):
    """How quantization stores a matrix: elements of `bits`, one scale of `scale_bytes` for a tensor, a row, or a block of `block_rows` x `block_columns`
    (1 x the group size for groups along a row), beside it a zero point of `zero_bits`, and `tensor_bytes` once for the matrix.
    """

    name: str
    bits: Size
    per: Literal["tensor", "row", "block"] = "tensor"
    block_rows: Size = 1
    block_columns: Size = 1
    scale_bytes: Annotated[int, Field(ge=0)] = 0
    zero_bits: Annotated[int, Field(ge=0)] = 0
    tensor_bytes: Annotated[int, Field(ge=0)] = 0

    def matrix_bytes(self, rows: int, columns: int) -> int:
        """Of one matrix, or of a GPU's part of it."""
        elements = -(-rows * columns * self.bits // 8)
        match self.per:
            case "tensor":
                scales = 1
            case "row":
                scales = rows
            case "block":
                scales = -(-rows // self.block_rows) * -(-columns // self.block_columns)
        return elements + scales * self.scale_bytes + -(-scales * self.zero_bits // 8) + self.tensor_bytes


class Quantization(Frozen):
    """Which matrices of a checkpoint are stored by which scheme. `method` is what the checkpoint calls it. A matrix takes the scheme of the first entry of
    `named` that its module is part of (a dotted name, in which * stands for anything; re: marks a regular expression), where None leaves it as it
    is; else `experts` if it is one, `mixers` if it belongs to attention or a recurrent layer, else `scheme`, which stands for these too where they are
    None. With `keeps_mixers` those stay as they are, without `drafts` draft layers do. Embeddings, heads and routers are stored so only where
    they are named, or with `whole`.
    """

    method: str
    scheme: Scheme | None = None
    experts: Scheme | None = None
    mixers: Scheme | None = None
    keeps_mixers: bool = False
    drafts: bool = True
    named: tuple[tuple[str, Scheme | None], ...] = ()
    whole: bool = False


class WeighedModel(ModelSpec):
    """A model with its `tensors`, what is `untold` of them (None where nothing is), and how `quantization` stores them."""

    tensors: tuple[Tensor, ...] = ()
    untold: str | None = None
    quantization: Quantization | None = None


def weighed(spec: ModelSpec) -> WeighedModel:
    """The same model, of which no tensors are known unless it brings them."""
    if isinstance(spec, WeighedModel):
        return spec
    return WeighedModel(layers=spec.layers, draft_layers=spec.draft_layers, facts=spec.facts, notes=spec.notes)

"""What the tensors of a family are collected in."""

from typing import Literal

from kvcalc.errors import KvcalcError
from kvcalc.tensors import Tensor

Split = Literal["rows", "cols", "vocab", "replicated"]
Role = Literal["embedding", "head", "attention", "recurrent", "mlp", "shared", "expert", "linear", "router", "unquantized", "norm", "buffer", "other"]
At = tuple[int, ...]
"""Decoder layers, by index; empty for what stands outside of them."""


class Shapes:
    """Tensors as they are named: of the language model, its drafts or a tower (`part`)."""

    def __init__(self, part: Literal["text", "tower", "draft"] = "text") -> None:
        self.part = part
        self.found: list[Tensor] = []

    def add(
        self,
        name: str,
        *shape: int,
        at: At = (),
        split: Split = "replicated",
        parts: int | None = None,
        role: Role = "other",
        copies: int = 1,
        used: int | None = None,
        empty: int = 0,
        dtype: str = "model",
    ) -> None:
        """One tensor; every copy is used unless `used` says how many. Raises KvcalcError for a width below 1, which follows from contradictory numbers."""
        if shape and min(shape) < 1:
            raise KvcalcError(f"config.json: contradictory numbers: {name} would have a width of {min(shape)}")
        self.found.append(
            Tensor(
                name=name,
                shape=shape,
                layers=at,
                copies=copies,
                used=copies if used is None else used,
                empty=empty,
                split=split,
                parts=parts,
                role=role,
                part=self.part,
                dtype=dtype,
            )
        )

    def linear(
        self,
        name: str,
        out: int,
        into: int,
        *,
        at: At = (),
        split: Split = "replicated",
        parts: int | None = None,
        bias: bool = False,
        role: Role = "linear",
        copies: int = 1,
        used: int | None = None,
        empty: int = 0,
        dtype: str = "model",
    ) -> None:
        """A matrix from `into` features to `out`, and its bias, which is divided as its rows are."""
        self.add(name, out, into, at=at, split=split, parts=parts, role=role, copies=copies, used=used, empty=empty, dtype=dtype)
        if bias:
            along = split == "rows"
            self.add(f"{name}.bias", out, at=at, split="rows" if along else "replicated", parts=parts if along else None, role="norm", copies=copies, used=used)

    def norm(self, name: str, width: int, *, at: At = (), bias: bool = False, copies: int = 1, split: Split = "replicated", parts: int | None = None) -> None:
        """The weight of a normalisation, and its bias."""
        for suffix in ("", ".bias") if bias else ("",):
            self.add(name + suffix, width, at=at, role="norm", copies=copies, split=split, parts=parts)

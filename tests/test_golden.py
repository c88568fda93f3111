"""Bytes against hand arithmetic."""

import ast
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvcalc.catalog import Model, load_model, model_from_shape
from kvcalc.engines.base import Options
from kvcalc.engines.ideal import IDEAL
from kvcalc.estimate import estimate
from kvcalc.families import read_config
from kvcalc.packing import parse_kv_dtype

OPERATORS: dict[type, Callable[[int, int], int]] = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv}


def by_hand(text: str | int) -> int:
    """The value of an expression of whole numbers and + - * // ( )."""

    def value(node: ast.expr) -> int:
        match node:
            case ast.Constant(value=int(number)):
                return number
            case ast.BinOp(left=left, op=op, right=right):
                return OPERATORS[type(op)](value(left), value(right))
            case _:
                raise ValueError(f"not an expression of whole numbers: {text}")

    return value(ast.parse(str(text), mode="eval").body)


def rows() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "golden.yaml").read_text())
    assert found, "golden.yaml is empty"
    return found


def described(row: dict[str, Any]) -> Model:
    if "model" in row:
        return load_model(row["model"])
    if "shape" in row:
        return model_from_shape(*row["shape"])
    return Model("config", "the table", read_config(row["config"]), "config")


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row.get('model', row.get('shape', 'config'))}-{row.get('dtype', 'bf16')}-{row['context']}")
def test_bytes_equal_hand_arithmetic(row: dict[str, Any]) -> None:
    model = described(row)
    options = Options(kv_dtype=parse_kv_dtype(row.get("dtype", "bf16")), encoder_tokens=row.get("encoder_tokens"), draft_layers=row.get("mtp", False))
    result = estimate(model.spec, IDEAL, options, name=model.name, source=model.source, context=row["context"], batch=row.get("batch", 1))
    grown_from = 0
    if "grown_from" in row:
        grown_from = estimate(model.spec, IDEAL, options, name=model.name, source=model.source, context=row["grown_from"], batch=1).total_bytes
    assert result.total_bytes - grown_from == by_hand(row["bytes"])


@pytest.mark.parametrize("text", ["1.5", "2 ** 3", "4 / 2", "f(1)", "x"])
def test_golden_expressions_take_whole_numbers_only(text: str) -> None:
    with pytest.raises((ValueError, KeyError)):
        by_hand(text)

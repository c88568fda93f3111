"""The answer of `kvcalc explain`."""

from typing import Literal

from kvcalc.layers import Frozen, Note
from kvcalc.results.shared import Answer, ModelInfo, Parallel

TopicName = Literal["cache", "formula", "layers", "prefill-decode", "paging", "prefix", "dtype", "parallel"]
Unit = Literal["B", "FLOP", "tokens", "blocks", "layers", "heads", "requests", "numbers", "B/number", ""]


class Symbol(Frozen):
    """A letter of a formula, its value for the model, and what it stands for."""

    symbol: str
    value: int
    unit: Unit
    meaning: str


class Formula(Frozen):
    """`text` in words or letters, `numbers` with those of the model put in, and the `value` that they give. x multiplies, floor rounds down.

    `name` is stable.
    """

    name: str
    text: str
    numbers: str
    value: int
    unit: Unit
    symbols: tuple[Symbol, ...] = ()


class Column(Frozen):
    name: str
    unit: Unit


class Row(Frozen):
    """Values under the columns of a table, None where there is none."""

    label: str
    values: tuple[int | float | None, ...]


class Table(Frozen):
    """Figures side by side; `label` is what its rows are."""

    label: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]


class Paragraph(Frozen):
    """A thought, and the formulas and the table that show it in numbers."""

    text: str
    formulas: tuple[Formula, ...] = ()
    table: Table | None = None


class Topic(Frozen):
    """`whole`: all that there is to say of it; else what the short story takes."""

    name: TopicName
    title: str
    whole: bool
    paragraphs: tuple[Paragraph, ...]


class Explanation(Answer):
    """What a KV cache is, in the numbers of one model. `assumed_model`: it was not asked about, but stands for any.

    `layer_count` are those of the model. `token_bytes`, `fixed_bytes`, `request_bytes` and `batch_bytes` are those of an estimate with the bare formula, in one
    copy; `topics` in the order asked for, `others` those that say more.
    """

    model: ModelInfo
    assumed_model: bool
    engine: str
    engine_version: str | None
    gpu: str | None
    context: int
    batch: int
    kv_dtype: str
    parallel: Parallel
    layer_count: int
    token_bytes: int
    fixed_bytes: int
    request_bytes: int
    batch_bytes: int
    topics: tuple[Topic, ...]
    others: tuple[TopicName, ...]
    notes: tuple[Note, ...]

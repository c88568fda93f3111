"""The collection of configs, tables, logs and traces that may lie beside the checkout."""

from pathlib import Path
from typing import Final

COLLECTION: Final = Path(__file__).resolve().parents[2] / "shared"

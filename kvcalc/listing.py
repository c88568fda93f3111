"""The catalogue of models as an answer of its own."""

from collections.abc import Iterable

from kvcalc.engines.base import Options
from kvcalc.engines.ideal import IDEAL
from kvcalc.errors import KvcalcError
from kvcalc.packing import KvDtype
from kvcalc.presets import SpecFile
from kvcalc.results.models import ModelRow, Models


def list_models(presets: Iterable[SpecFile], text: str | None, family: str | None) -> Models:
    """The presets that match. Raises KvcalcError for a family that no preset has, with those that there are."""
    found = list(presets)
    families = sorted({preset.family for preset in found if preset.family is not None})
    if family is not None:
        named = [name for name in families if name.lower() == family.strip().lower()]
        if not named:
            raise KvcalcError(f"no preset is of the family {family[:40]!r}", hint=f"families: {', '.join(families)}")
        found = [preset for preset in found if preset.family in named]
    if text is not None:
        found = [preset for preset in found if any(text.strip().lower() in name.lower() for name in (preset.name, *preset.aliases, *preset.hub))]
    return Models(models=tuple(_model_row(preset) for preset in found))


def _model_row(preset: SpecFile) -> ModelRow:
    spec = preset.spec()
    plan = IDEAL.plan(spec, Options(kv_dtype=KvDtype("bf16", "bf16")))
    return ModelRow(
        name=preset.name,
        aliases=preset.aliases,
        family=preset.family,
        hub=preset.hub,
        model_type=preset.model_type,
        layers=len(spec.layers),
        kinds=tuple(dict.fromkeys(use.kind for use in plan.uses(1))),
        max_context=preset.max_context,
        parameters=preset.parameters,
        token_bytes=plan.token_bytes(0),
        source=preset.source,
        checked=None if preset.checked is None else preset.checked.isoformat(),
    )

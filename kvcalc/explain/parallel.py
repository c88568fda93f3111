"""What several GPUs do to the cache."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from kvcalc.engines.ideal import IDEAL
from kvcalc.errors import KvcalcError
from kvcalc.explain.subject import Part, Subject, listed, sized
from kvcalc.results.explain import Column, Paragraph, Row, Table
from kvcalc.units import counted


class _Layout(NamedTuple):
    """GPUs that share heads, layers, requests, and tokens of what is copied, and the options that ask for it."""

    label: str
    tp: int = 1
    pp: int = 1
    dp: int = 1
    dcp: int = 1


LAYOUTS: Final = (
    _Layout("1 GPU"),
    _Layout("--tp 2", tp=2),
    _Layout("--tp 4", tp=4),
    _Layout("--tp 8", tp=8),
    _Layout("--tp 8 --dcp 8", tp=8, dcp=8),
    _Layout("--tp 8 --dcp 2", tp=8, dcp=2),
    _Layout("--pp 2", pp=2),
    _Layout("--dp 2", dp=2),
)


def parallel_topic(subject: Subject) -> Iterator[Part]:
    """Tensor, pipeline, data and decode context parallelism, by what they divide."""
    yield Part(Paragraph(text=_divided(subject)))
    rows: list[Row] = []
    refused: list[str] = []
    for layout in LAYOUTS:
        if layout.dcp > 1 and (not subject.keeps_all or any("--dcp" in row.label for row in rows)):
            continue
        try:
            plan = IDEAL.plan(subject.spec, subject.options._replace(tp=layout.tp, pp=layout.pp, dp=layout.dp, dcp=layout.dcp))
        except KvcalcError as error:
            if layout.dcp == 1:
                refused.append(error.message)
            continue
        every = plan.total_bytes(subject.context, 1)
        if layout.dcp == 1 or every != rows[-1].values[1]:  # else there is nothing that --tp copies
            rows.append(Row(label=layout.label, values=(plan.resident_bytes(subject.context, 1), every)))
    table = Table(label="one request", columns=(Column(name="fullest GPU", unit="B"), Column(name="all GPUs", unit="B")), rows=tuple(rows))
    yield Part(
        Paragraph(
            text=f"Of {counted(subject.context, 'token')}, with the bare formula (--dp 2: one request in each of the two replicas). Where all GPUs together "
            "hold more than one GPU would, they hold copies:",
            table=table,
        )
    )
    if refused:
        yield Part(Paragraph(text=f"Not possible for this model: {'; '.join(refused)}."))
    yield Part(
        Paragraph(
            text="Tensor parallelism (--tp) shares every layer among GPUs, pipeline parallelism (--pp) deals out whole layers, data parallelism (--dp) starts "
            "replicas, each with requests and a cache of its own. Decode context parallelism (--dcp) divides the tokens of what --tp would copy."
        )
    )
    options = subject.question.options
    if options.gpus > 1 and not isinstance(subject.plan, KvcalcError):
        fullest, every = subject.plan.resident_bytes(subject.context, 1), subject.plan.total_bytes(subject.context, 1)
        text = f"As asked, {subject.engine} holds {sized(fullest)} of one request on the fullest of {counted(options.gpus, 'GPU')}"
        each = " with one request in each replica" if options.dp > 1 else ""
        yield Part(Paragraph(text=f"{text}, and {sized(every)} on all of them{each}."))


def _divided(subject: Subject) -> str:
    """What tensor parallelism divides in this model, and what it copies."""
    planes = [plane.plane for use in subject.uses for plane in use.planes]
    heads = sorted({plane.heads for plane in planes if plane.role == "k"})
    said = []
    if heads:
        of = f"{' or '.join(f'{number:,}' for number in heads)} KV head{'' if heads == [1] else 's'}"
        said.append(f"Tensor parallelism divides the {of} of a layer; on more GPUs than heads each head is copied")
    copied = [what for role, what in (("latent", "latents"), ("index", "index keys")) if any(plane.role == role for plane in planes)]
    if copied:
        said.append(f"{listed(copied).capitalize()} have no heads to divide: every GPU keeps a whole copy")
    if subject.states:
        said.append("States are divided by their heads or channels")
    return f"{'. '.join(said)}."

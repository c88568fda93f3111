"""What a KV cache is, topic by topic, in the numbers of one model: a pure function of a question."""

from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from typing import Final, NamedTuple

from kvcalc.budget import Question
from kvcalc.errors import ExitCode, KvcalcError
from kvcalc.estimate import model_info
from kvcalc.explain.cached import cache_topic
from kvcalc.explain.formula import dtype_topic, formula_topic, layers_topic
from kvcalc.explain.parallel import parallel_topic
from kvcalc.explain.serving import paging_topic, prefill_decode_topic, prefix_topic
from kvcalc.explain.subject import Part, Subject
from kvcalc.layers import Note
from kvcalc.machine import Machine
from kvcalc.results.explain import Explanation, Topic, TopicName
from kvcalc.results.shared import Parallel
from kvcalc.units import counted

ALL: Final = "all"
"""What stands for every topic."""


class _Topic(NamedTuple):
    title: str
    tell: Callable[[Subject], Iterator[Part]]


TOPICS: Final[dict[TopicName, _Topic]] = {
    "cache": _Topic("What is cached, and why", cache_topic),
    "formula": _Topic("How much it is", formula_topic),
    "layers": _Topic("What its layers keep", layers_topic),
    "prefill-decode": _Topic("Prefill and decode", prefill_decode_topic),
    "paging": _Topic("How memory is handed out", paging_topic),
    "prefix": _Topic("What requests share", prefix_topic),
    "dtype": _Topic("What the KV dtype changes", dtype_topic),
    "parallel": _Topic("What several GPUs do to it", parallel_topic),
}
"""In the order of the story."""
OF_ENGINE: Final[frozenset[TopicName]] = frozenset({"paging", "prefix", "parallel"})
"""Topics that draw on what the engine holds."""


def find_topics(words: Sequence[str]) -> tuple[TopicName, ...]:
    """Those of these names, each once; all for "all". Raises KvcalcError (usage) for another word, with a name that is near it."""
    found: dict[TopicName, None] = {}
    for word in words:
        name = word.strip().lower().replace("_", "-")
        if name == ALL:
            found.update(dict.fromkeys(TOPICS))
            continue
        topic = next((known for known in TOPICS if known == name), None)
        if topic is None:
            close = get_close_matches(name, [*TOPICS, ALL], cutoff=0.5)
            known = f"topics are {', '.join(TOPICS)}, or all; a model goes behind --model"
            raise KvcalcError(f"no topic {word[:40]!r}", hint=f"did you mean {close[0]}?" if close else known, code=ExitCode.USAGE)
        found[topic] = None
    return tuple(found)


def explain(question: Question, topics: Sequence[TopicName] = (), machine: Machine | None = None, *, assumed_model: bool = False) -> Explanation:
    """Each of `topics` in full; without any, the story of them in short. With a `machine`, how long its phases take.

    Raises KvcalcError where the model cannot be estimated so, and for a topic about the engine where this holds it in general but not as it is asked to.
    """
    subject, options = Subject(question, machine), question.options
    of_engine = not topics or bool(set(topics) & OF_ENGINE)
    if of_engine and isinstance(subject.plan, KvcalcError) and subject.is_held_otherwise:
        raise subject.plan
    told = tuple(_told(name, subject, whole=bool(topics)) for name in topics or TOPICS)
    shown = tuple(topic for topic in told if topic.paragraphs)
    engine_notes: tuple[Note, ...] = subject.plan.notes if of_engine and not isinstance(subject.plan, KvcalcError) else ()
    drafts = len(question.spec.draft_layers) if options.draft_layers else 0
    drafting = (Note(code="drafts", text=f"counted beside the other layers: {counted(drafts, 'draft layer')} of the model's own (--mtp)"),) if drafts else ()
    notes = dict.fromkeys((*(note for note in subject.own.notes if note.code != "formula"), *question.notes, *drafting, *engine_notes))
    return Explanation(
        model=model_info(question.spec, subject.name, question.asked.source),
        assumed_model=assumed_model,
        engine=question.engine.name,
        engine_version=question.engine.version,
        gpu=None if machine is None else machine.name,
        context=subject.context,
        batch=subject.batch,
        kv_dtype=subject.own.kv_dtype,
        parallel=Parallel(tp=options.tp, pp=options.pp, dp=options.dp, dcp=options.dcp),
        layer_count=len(question.spec.layers),
        token_bytes=subject.own.token_bytes,
        fixed_bytes=subject.own.fixed_bytes,
        request_bytes=subject.own.request_bytes,
        batch_bytes=subject.own.total_bytes,
        topics=shown,
        others=tuple(name for name in TOPICS if name not in topics),
        notes=tuple(notes),
    )


def _told(name: TopicName, subject: Subject, *, whole: bool) -> Topic:
    topic = TOPICS[name]
    parts = [part for part in topic.tell(subject) if whole or part.in_story]
    return Topic(name=name, title=topic.title, whole=whole, paragraphs=tuple(part.paragraph for part in parts))

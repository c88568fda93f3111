"""Ollama: a llama-server for each model, with slots of num_ctx tokens each.

Files named here are those of ollama at fb307609 (2026-08-21), which pins llama.cpp b10488 and starts its server as a child (llm/llama_server.go).
"""

from decimal import Decimal
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from kvcalc.engines.base import Capacity, LayerUse, Loaded, Options, Overheads, Pool, unused_options
from kvcalc.engines.llamacpp import DEFAULT_TYPE, TYPES, LlamaCppPlan, plan_of
from kvcalc.engines.llamacpp.memory import loaded_on, overheads_of
from kvcalc.engines.llamacpp.models import architecture
from kvcalc.errors import KvcalcError
from kvcalc.layers import ModelSpec, Note
from kvcalc.packing import PACKINGS, KvDtype
from kvcalc.units import BINARY_UNITS

if TYPE_CHECKING:
    from kvcalc.tensors import WeighedModel

GIB: Final = BINARY_UNITS["GiB"]

CONTEXTS: Final = ((47 * GIB, 262_144), (23 * GIB, 32_768))
SMALLEST_CONTEXT: Final = 4096
"""num_ctx where neither model, request nor OLLAMA_CONTEXT_LENGTH states it, by the memory of all GPUs from which on it holds (server/routes.go)."""

BATCHES: Final = ((32_768, 2048), (4096, 1024))
SMALLEST_BATCH: Final = 512
"""num_batch by the tokens of all slots above which it holds (generationBatchForContext, server/sched.go)."""
CONSTRAINED_BATCH: Final = 256
CONSTRAINED_MEMORY: Final = 8 * GIB
CONSTRAINED_CONTEXT: Final = 4096
"""num_batch on CUDA without flash attention, on GPUs of up to so much memory, above so many tokens (constrainedCUDAWithoutFlashAttention, server/sched.go)."""

ONE_SLOT: Final = frozenset({"lfm2", "lfm2moe", "nemotron_h", "qwen35", "qwen35moe", "qwen3next", "qwen3vl", "qwen3vlmoe"})
"""Architectures that take one request at a time, whatever OLLAMA_NUM_PARALLEL says (Scheduler.load, server/sched.go)."""

USES: Final = frozenset({"device", "max_seqs", "flash_attention", "ubatch", "gpu_layers"})


def default_context(total_bytes: int, train_context: int | None) -> int:
    """Tokens of a slot where nobody states them, on GPUs that report `total_bytes` together: by that, and no more than the model is made for
    (server/routes.go, llm/server.go).
    """
    tokens = next((context for least, context in CONTEXTS if total_bytes >= least), SMALLEST_CONTEXT)
    return tokens if train_context is None else min(tokens, train_context)


class OllamaPlan(NamedTuple):
    """What the child allocates for slots of so many tokens each. Token counts are num_ctx, which Ollama lowers to the model's own maximum."""

    server: LlamaCppPlan
    max_context: int | None
    notes: tuple[Note, ...]

    @property
    def kv_dtype(self) -> KvDtype:
        return self.server.kv_dtype

    @property
    def pools(self) -> tuple[Pool, ...]:
        return self.server.pools

    def need(self, tokens: int) -> tuple[int, ...]:
        return self.child(tokens).need(self.cells(tokens))

    def resident_bytes(self, tokens: int, batch: int) -> int:
        """The same for any batch. Raises KvcalcError for more requests at once than slots."""
        return self.child(tokens).resident_bytes(self.cells(tokens), batch)

    def total_bytes(self, tokens: int, batch: int) -> int:
        return self.child(tokens).total_bytes(self.cells(tokens), batch)

    def token_bytes(self, tokens: int) -> int:
        """A token more for each slot."""
        if self.max_context is not None and tokens >= self.max_context:
            return 0
        return self.server.slots * self.child(tokens).token_bytes(self.cells(tokens))

    def fixed_bytes(self) -> int:
        return self.server.fixed_bytes()

    def uses(self, tokens: int) -> tuple[LayerUse, ...]:
        return self.child(tokens).uses(self.cells(tokens))

    @property
    def reserved(self) -> int:
        return self.server.reserved

    @property
    def slots(self) -> int | None:
        return self.server.slots

    @property
    def max_requests(self) -> int | None:
        return self.server.max_requests

    def capacity(self, units: int, tokens: int) -> Capacity:
        return self.child(tokens).capacity(units, self.cells(tokens))

    def surplus(self, tokens: int) -> tuple[tuple[str, int], ...]:
        return self.child(tokens).beside(self.cells(tokens), tokens)

    def length_notes(self, tokens: int, batch: int) -> tuple[Note, ...]:
        return self.child(tokens).length_notes(self.cells(tokens), batch)

    def command(self, model: str, context: int, kv_bytes: int | None, utilization: str | None) -> str:  # noqa: ARG002 (nothing states a budget)
        """A Modelfile, below what the server needs in its environment. Empty for an encoder-decoder, which llama-server does not run."""
        if not self.server.served:
            return ""
        options, lines = self.server.options, []
        kind = self.kv_dtype.k
        variables = {} if self.server.slots == 1 else {"OLLAMA_NUM_PARALLEL": str(self.server.slots)}
        if kind != DEFAULT_TYPE:
            variables["OLLAMA_KV_CACHE_TYPE"] = TYPES[kind]
        if not options.flash_attention or PACKINGS[kind].elements > 1:
            variables["OLLAMA_FLASH_ATTENTION"] = "1" if options.flash_attention else "0"
        if variables:
            lines.append("export " + " ".join(f"{name}={value}" for name, value in variables.items()))
        lines += [f"FROM {_from(model)}", f"PARAMETER num_ctx {context}"]
        lines += [] if options.ubatch is None else [f"PARAMETER num_batch {options.ubatch}"]
        lines += [] if options.gpu_layers is None else [f"PARAMETER num_gpu {options.gpu_layers}"]
        return "\n".join(lines)

    def cells(self, tokens: int) -> int:
        """`-c` of the child."""
        return self.server.slots * (tokens if self.max_context is None else min(tokens, self.max_context))

    def child(self, tokens: int) -> LlamaCppPlan:
        """The child for slots of that length, whose micro-batch follows from it."""
        return self.server._replace(ubatch=_batch(self.cells(tokens), self.server.options))


def _batch(cells: int, options: Options) -> int:
    """Tokens of a batch and of a micro-batch, which Ollama sets alike."""
    if options.ubatch is not None:
        return options.ubatch
    device = options.device
    if not options.flash_attention and (device is None or device.nvidia):
        small = device is not None and bool(device.memory_sizes) and max(device.memory_sizes) <= CONSTRAINED_MEMORY
        return CONSTRAINED_BATCH if small and cells > CONSTRAINED_CONTEXT else SMALLEST_BATCH
    return next((batch for above, batch in BATCHES if cells > above), SMALLEST_BATCH)


def _from(model: str) -> str:
    """A GGUF file, of a repository where one is named before it, or a repository of the Hub that names itself one; of any other model some file that was
    converted from it.
    """
    if model.endswith(".gguf") and ":" in model:
        return f"hf.co/{model}"
    if model.lower().endswith(".gguf"):
        return model
    return f"hf.co/{model}" if model.lower().endswith("-gguf") else "MODEL.gguf"


class OllamaEngine:
    """Ollama with GGUF models, whose runner is llama-server."""

    name = "ollama"
    version = "fb307609 (llama.cpp b10488)"
    part_of: Literal["all"] = "all"

    def utilization(self, _spec: ModelSpec, _options: Options, _total_bytes: int) -> Decimal:
        return Decimal(1)

    def plan(self, spec: ModelSpec, options: Options) -> OllamaPlan:
        if options.kv_dtype.k != options.kv_dtype.v:
            raise KvcalcError("Ollama stores K and V alike (OLLAMA_KV_CACHE_TYPE)", hint="name one type, or use --engine llama.cpp")
        wanted = 1 if options.max_seqs is None else options.max_seqs
        single = architecture(spec) in ONE_SLOT or spec.facts.pooling
        slots = 1 if single else wanted
        server = plan_of(spec, options._replace(max_seqs=slots, unified=None, swa_full=False), self.name)
        notes = [*unused_options(options, self.name, USES), *_slot_notes(spec, slots, wanted), *server.notes]
        if options.ubatch is None and options.flash_attention and server.windowed:
            text = "batches are counted as Ollama sizes them by the context alone; where memory is short it takes smaller ones, down to 512, and windows follow"
            notes.append(Note(code="batch", text=text))
        return OllamaPlan(server, spec.facts.max_context, tuple(notes))

    def loaded(self, spec: "WeighedModel", options: Options) -> Loaded:
        return loaded_on(spec, options)

    def overheads(self, spec: "WeighedModel", options: Options, context: int) -> Overheads:
        plan = self.plan(spec, options)
        return overheads_of(spec, options, plan.child(context), plan.cells(context))


OLLAMA: Final = OllamaEngine()


def _slot_notes(spec: ModelSpec, slots: int, wanted: int) -> list[Note]:
    if slots < wanted:
        what = "an embedding model" if spec.facts.pooling else f"a {spec.facts.model_type} model"
        return [Note(code="slots", text=f"Ollama takes one request at a time of {what}: OLLAMA_NUM_PARALLEL={wanted} changes nothing")]
    if slots > 1:
        return [Note(code="slots", text=f"{slots} slots (OLLAMA_NUM_PARALLEL) have a cache of num_ctx tokens each")]
    return []

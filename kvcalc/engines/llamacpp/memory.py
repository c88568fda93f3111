"""What llama.cpp's weights take on a GPU, and what it keeps there beside weights and cache.

Files named here are those of commit 0c1e57098.
"""

from math import isqrt
from typing import TYPE_CHECKING, Final

from kvcalc.engines.base import Loaded, Options, Overheads, Span, model_packing
from kvcalc.engines.llamacpp.models import placed
from kvcalc.errors import KvcalcError
from kvcalc.units import BINARY_UNITS

if TYPE_CHECKING:
    from kvcalc.engines.llamacpp import LlamaCppPlan
    from kvcalc.tensors import WeighedModel

MIB: Final = BINARY_UNITS["MiB"]
ACTIVATION: Final = 4
"""Bytes of an activation: ggml computes in fp32."""
HIDDEN_ROWS: Final = 4
"""Rows of hidden size alive beside the widest tensor. Qwen2.5-32B on MI50s without flash attention at 32,768 tokens logs a compute buffer of 2,664 MiB:
512 rows x 32,768 cells x 40 heads x 4 bytes of scores are 2,560, the fp32 mask 64, and four rows of 5,120 for each of 512 tokens 40."""
GATED_ROWS: Final = 2
"""Rows of the MLP's width alive: the gate and the product with the other half (build_ffn, src/llama-graph.cpp)."""
PIPELINE_COPIES: Final = 4
"""Copies of a graph's inputs, the mask among them, when GPUs work on several micro-batches at once (GGML_SCHED_MAX_COPIES)."""
FIT_MARGIN: Final = 1024 * MIB
"""What `--fit`, on by default, leaves free on each GPU (fit_params_target, common/common.h)."""
DEVICE: Final = Span(250 * MIB, 400 * MIB, 600 * MIB)
"""CUDA's context and loaded kernels on a GPU, by public reports of several GPUs and drivers."""
UNKNOWN_BUFFER: Final = Span(64 * MIB, 512 * MIB, 2664 * MIB)
"""The compute buffer of a model of unknown widths: up to the largest in a public log."""


def loaded_on(spec: "WeighedModel", options: Options) -> Loaded:
    """The weights on the GPU that holds most: those of its layers, the output on the last GPU (the embedding where both are one), towers on the first. The
    embedding itself stays on the CPU (load_tensors, src/llama-model.cpp). Raises KvcalcError where the tensors are not all known.
    """
    from kvcalc.weights import Share, share_bytes  # a question about the cache does without

    untold = spec.untold or (None if spec.tensors else "the weights of this model are not known tensor by tensor")
    if untold is not None and not (spec.tensors and not options.towers):
        raise KvcalcError(untold, hint="state the size of the GGUF file with --weights, or the KV budget with --kv-mem")
    model, _ = model_packing(spec.facts)
    tied = not any(tensor.role == "head" for tensor in spec.tensors)
    without_embedding = spec.model_copy(update={"tensors": tuple(tensor for tensor in spec.tensors if tensor.role != "embedding")})
    place = placed(spec, options)
    sizes = []
    for number, layers in enumerate(place.gpus):
        last = number == place.output
        share = Share(stage=range(layers[0], layers[-1] + 1) if layers else range(0), first=number == 0, last=last, towers=options.towers)
        sizes.append(share_bytes(spec if tied and last else without_embedding, model, share))
    return Loaded(max(sizes), 0, 0)


def overheads_of(spec: "WeighedModel", options: Options, plan: "LlamaCppPlan", context: int) -> Overheads:
    """The compute buffer, which llama.cpp sizes by building its largest graph and for which there is no formula: the tensors that are alive together in the
    widest of attention and MLP, for one micro-batch. Its high end has logits of every row of a micro-batch, as releases before n_outputs_max kept
    them, and half of the rest again. The runtime is the margin that --fit leaves, and what CUDA takes.
    """
    buffer = _compute_buffer(spec, options, plan, context)
    runtime = Span(*(FIT_MARGIN + size for size in DEVICE))
    below = isqrt((buffer.likely - buffer.low) ** 2 + (runtime.likely - runtime.low) ** 2)
    above = isqrt((buffer.high - buffer.likely) ** 2 + (runtime.high - runtime.likely) ** 2)
    likely = buffer.likely + runtime.likely
    return Overheads(buffer, Span(0, 0, 0), runtime, Span(likely - below, likely, likely + above))


def _compute_buffer(spec: "WeighedModel", options: Options, plan: "LlamaCppPlan", context: int) -> Span:
    text = [tensor for tensor in spec.tensors if tensor.part == "text"]
    embeddings = [tensor for tensor in text if tensor.role == "embedding"]
    if not embeddings:
        return UNKNOWN_BUFFER
    vocabulary, hidden = max(tensor.shape[0] for tensor in embeddings), min(tensor.shape[-1] for tensor in embeddings)
    tokens, cells = min(context, plan.ubatch), plan.slot_cells(context)
    heads = max((cache.query_heads for layer in spec.layers for cache in layer.caches if cache.query_heads is not None), default=0)
    wide = max((tensor.shape[0] * (tensor.used if tensor.role == "expert" else 1) for tensor in text if tensor.role in ("mlp", "shared", "expert")), default=0)
    scores, mask = (0, 2 * tokens * cells) if options.flash_attention else (ACTIVATION * tokens * cells * heads, ACTIVATION * tokens * cells)
    rows = ACTIVATION * tokens * HIDDEN_ROWS * hidden
    likely = max(scores, ACTIVATION * tokens * GATED_ROWS * wide, ACTIVATION * plan.slots * vocabulary) + rows + mask
    copies = (PIPELINE_COPIES - 1) * mask if options.pp > 1 else 0
    return Span(likely * 4 // 5, likely, likely * 3 // 2 + ACTIVATION * tokens * vocabulary + copies)

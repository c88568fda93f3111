"""What vLLM keeps back from the KV cache on one GPU: the profiled forward pass, the CUDA graphs and the runtime.

A server gives the KV cache `utilisation x total - weights - overheads` (`determine_available_memory`, vllm/v1/worker/gpu_worker.py). The three
overheads are modelled by what that function measures; every number is bytes on one GPU. `minor` is the second number of the release: 25 for 0.25.1.
"""

from math import ceil, sqrt
from typing import Final, NamedTuple

from kvcalc.engines.base import Overheads, Span
from kvcalc.tensors import Tensor, WeighedModel
from kvcalc.units import BINARY_UNITS

GIB: Final = BINARY_UNITS["GiB"]
ELEMENT: Final = 2
"""Bytes of an activation: bf16 or fp16, whatever the weights are stored in."""

LIVE_HIDDEN: Final = 3
"""Rows of `hidden` alive at the widest moment of a layer: residual, input and output. Llama-3.1-8B in one prefill of 20,000 and of 29,000 tokens peaks
at 2.07 and 2.99 GiB (vllm issue 10517); tokens x (3 x intermediate + 3 x hidden) x 2 bytes is 2.06 and 2.99."""
GATED_MLP: Final = 3
"""Rows of `intermediate` alive in a gated MLP: gate and up side by side, and their product (SiluAndMul, vllm/model_executor/layers/activation.py)."""
RECURRENT_COPIES: Final = 3
"""Rows of a gated delta net's q, k, v, z alive: the projection, the convolved copy, and the core's output with z
(vllm/model_executor/layers/mamba/gdn; issue 52872 measures 108 KB a token for a 27B model, this gives 126)."""
ATTENTION_COPIES: Final = 2
"""Rows of q, k, v alive in an attention layer: the projection, and what RoPE and the output write beside it."""

SORTED_LOGIT: Final = 38
"""Bytes a logit of a sampler that sorts: bf16 2, fp32 4, sorted values 4, their int64 places 8, the radix sort's places in 8 and its scratch 12
(apply_top_k_top_p, vllm/v1/sample/ops/topk_topp_sampler.py, up to 0.16). Eight public logs of the peak lie 1 to 5 % above it."""
NATIVE_LOGIT: Final = 14
"""Bytes a logit once the mask is a Triton kernel that needs no copy: bf16 2, fp32 4, probabilities 4, exponential noise 4 (0.17 on)."""
PLAIN_LOGIT: Final = 2
"""Bytes a logit of the second model runner, which profiles one draw straight from the bf16 logits
(_dummy_sampler_run, vllm/v1/worker/gpu/model_runner.py, 0.25 to 0.30)."""
FUSED_LOGIT: Final = 10
"""Bytes a logit of the second model runner once it also profiles the fp32 pipeline: bf16 2, fp32 4, working copy 4
(the same function in 0.33; Llama-3.1-8B on an H100 logs 1.44 GiB with its graphs, of which this is 1.22)."""
TRITON_SAMPLER_MINOR: Final = 17
"""First release whose sampler masks by a Triton kernel (0.16.0 sorts, 0.17.0 does not)."""
SECOND_RUNNER_MINOR: Final = 25
"""First release read in which the second model runner serves dense models by default (use_v2_model_runner, vllm/config/vllm.py; 0.20.0: by request)."""
SECOND_RUNNER_ALL_MINOR: Final = 30
"""First release read in which it serves every model; in 0.28.0 hybrids and most mixtures of experts still run on the first one."""
SECOND_RUNNER_FP32_MINOR: Final = 33
"""First release read in which its profiling also runs the fp32 pipeline (0.30.0 does not)."""
SECOND_RUNNER_TOWER_MINOR: Final = 28
"""First release read in which it profiles the vision tower (profile_run, vllm/v1/worker/gpu/model_runner.py: 0.26.0 does not)."""

KEPT_WORKSPACE_MINOR: Final = 14
"""First release read in which the experts' workspace stays allocated after the forward pass (vllm/v1/worker/workspace.py), so the sampler adds to it."""
WHOLE_PROMPT_MINOR: Final = 7
"""Last release whose default engine (V0) profiled a whole prompt at once, for contexts up to `WHOLE_PROMPT_TOKENS`."""
WHOLE_PROMPT_TOKENS: Final = 32768
"""Longest context without chunked prefill in V0 (EngineArgs.create_engine_config, vllm/engine/arg_utils.py, 0.5.4 to 0.7)."""
CHUNKED_PROMPT_MINOR: Final = 5
"""First release read that chunks longer ones by itself (0.4.3 does not)."""

TOWER_HIDDEN_ROWS: Final = 2
"""Rows of the tower's `hidden` alive in its MLP: the residual and its norm (Qwen3_VisionBlock, vllm/model_executor/models/qwen3_vl.py)."""
TOWER_MLP_ROWS: Final = 2
"""Rows of the tower's `intermediate` alive: the first projection and its activation, which is not in place (Qwen3_VisionMLP)."""
PATCH_VALUES: Final = 1536
"""Values of one patch in the tower's input: 3 colours x 2 frames x 16 x 16 pixels."""

FORWARD_MISS: Final = 1.25
"""Factor either way that holds the forward pass's peak in four logs of five (kernels' own copies, quantised inputs)."""
SAMPLER_MISS: Final = 1.2
"""The same where the sampler is the peak: a shape that the code fixes (eight logs within 5 %, one V0 log 18 % above)."""

GRAPH_BASE: Final = GIB // 10
"""Bytes of the first captures, which fill the graphs' shared pool. Fitted with `GRAPH_STEP` on 22 logged estimates: median miss 0.21 GiB."""
GRAPH_STEP: Final = 8 * 2**20
"""Bytes of each captured graph (logs: 5 to 14 MiB)."""
GRAPH_PROFILE_MINOR: Final = 18
"""First release that captures graphs while it profiles, so what they load into the driver counts as non-torch memory
(profile_cudagraph_memory, vllm/v1/worker/gpu_model_runner.py)."""
GRAPH_CHARGE_MINOR: Final = 20
"""First release that subtracts the graphs (VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS, vllm/envs.py: off in 0.19.0, on in 0.20.0)."""
SECOND_RUNNER_GRAPHS_MINOR: Final = 30
"""First release read in which the second model runner estimates them (its profile_cudagraph_memory returns 0 in 0.28.0)."""
GRAPH_TOKENS: Final = 512
"""Largest batch captured by default (_set_cudagraph_sizes, vllm/config/vllm.py)."""

GRAPH_LOW: Final = 0.3
GRAPH_HIGH: Final = 2.5
"""Parts of the likely estimate that hold 16 of those 22."""

RUNTIME_EARLY: Final = 0.1
"""GiB that libraries take on a card before `GRAPH_PROFILE_MINOR`: 0.01 to 0.26 in thirteen logs."""
RUNTIME: Final = 0.4
"""GiB that libraries and loaded kernels take since: 0.07 to 0.94 in thirteen logs, a third of them derived."""
RUNTIME_TP: Final = 0.6
"""What each doubling of the tensor parallel size adds, as a part of those: all-reduce buffers first used in the profiled pass (NCCL itself starts
before the first measurement since 0.11). TP4 logs: 0.20 and 0.21 before, 0.7 and 0.95 since; DeepSeek-V4 2.4."""
RUNTIME_DRAFTER: Final = 0.2
"""GiB of a drafter's own kernels and buffers (few logs)."""
RUNTIME_LOW: Final = 0.3
RUNTIME_HIGH: Final = 2.5
"""Parts of the likely size that hold four cards of five."""
UNIFIED: Final = 1.8
"""GiB more where CPU and GPU share memory: what the server's processes take of the host counts as consumed (MemorySnapshot.measure,
vllm/utils/mem_utils.py, reads the host's available memory). Qwen3-0.6B on a DGX Spark logs 2.2 GiB in all."""
UNIFIED_DRAFTER: Final = 0.8
"""GiB more for a drafter's second compilation and loader on shared memory (four logs: 0.3 to 1.3)."""
UNIFIED_LOW: Final = 0.5
UNIFIED_HIGH: Final = 1.8
"""As `RUNTIME_LOW` and `RUNTIME_HIGH`, on shared memory: two equal starts differ by gigabytes."""


UNKNOWN_WIDTHS: Final = Overheads(Span(GIB // 2, 3 * GIB, 11 * GIB // 2), Span(0, 0, 0), Span(0, 0, 0), Span(GIB // 2, 3 * GIB, 11 * GIB // 2), same_from=0)
"""All overheads together for a model of unknown widths: the median of 23 public start-up logs, and what holds nine in ten of them."""


class Experts(NamedTuple):
    """A mixture-of-experts layer: experts `per_token`, the `width` of one and the width of the `shared` ones (0: none), whole model."""

    per_token: int
    width: int
    shared: int


class Tower(NamedTuple):
    """A vision tower that start-up profiles: its widths, and the `patches` and language `tokens` of its largest item."""

    hidden: int
    intermediate: int
    patches: int
    tokens: int


class Widths(NamedTuple):
    """A model's widths, whole model.

    `attention` is the sum of q, k and v; `recurrent` the sum of q, k, v, z of linear attention or of a state-space layer's projection (0: none);
    `streams` the residual streams beside each other (hc_mult of DeepSeek-V4 and GLM-5.3-Flash); `intermediate` counts where there are no experts.
    """

    hidden: int
    vocabulary: int
    intermediate: int
    attention: int
    recurrent: int = 0
    streams: int = 1
    experts: Experts | None = None
    tower: Tower | None = None
    pooling: bool = False


class Deployment(NamedTuple):
    """How the model is served. `drafted` is the number of speculative tokens, 0 without a drafter."""

    minor: int
    batched_tokens: int
    sequences: int
    context: int
    tp: int = 1
    drafted: int = 0
    eager: bool = False
    unified: bool = False


ITEMS: Final = {
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "qwen2_5_omni", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"), (65536, 16384)),
    "gemma3": (4096, 256),
    "gemma4": (20160, 2496),
    "glm5_next": (24336, 6084),
    "llava": (577, 576),
}
"""Patches, and tokens of the language model, of the largest image or video that start-up profiles, by model_type (the processors' own limits,
vllm/model_executor/models 0.33.0; that of Gemma 3 is its fixed image, that of GLM its largest)."""


def widths_of(spec: WeighedModel, *, towers: bool) -> Widths:
    """The widths that decide about activations, read off the tensors of a model. Raises ValueError where it has none."""
    text = [tensor for tensor in spec.tensors if tensor.part == "text"]
    embedding = max((tensor for tensor in text if tensor.role == "embedding"), key=lambda tensor: tensor.shape[0])
    narrowest = min((tensor for tensor in text if tensor.role == "embedding"), key=lambda tensor: tensor.shape[-1])
    routed = [tensor for tensor in text if tensor.role == "expert" and tensor.split == "rows" and len(tensor.shape) > 1]
    mlp, shared = _widest(text, "mlp"), _widest(text, "shared")
    experts = Experts(per_token=routed[0].used, width=routed[0].shape[0], shared=max(shared, _beside_experts(text, routed))) if routed else None
    hidden = embedding.shape[-1] if embedding.shape[0] != narrowest.shape[0] else narrowest.shape[-1]
    return Widths(
        hidden=hidden,
        vocabulary=embedding.shape[0],
        intermediate=mlp,
        attention=_projected(text, "attention"),
        recurrent=_projected(text, "recurrent"),
        streams=next((tensor.shape[-1] // hidden for tensor in text if tensor.name.endswith("attn_hc.fn")), 1),
        experts=experts,
        tower=_tower_of(spec) if towers else None,
        pooling=spec.facts.pooling,
    )


def _widest(tensors: list[Tensor], role: str) -> int:
    """The width of the widest MLP of a kind."""
    return max((tensor.shape[0] for tensor in tensors if tensor.role == role and tensor.split == "rows" and len(tensor.shape) > 1), default=0)


def _beside_experts(tensors: list[Tensor], routed: list[Tensor]) -> int:
    """The width of an MLP that stands in the same layers as the experts (Gemma 4)."""
    at = set(routed[0].layers)
    return max(
        (tensor.shape[0] for tensor in tensors if tensor.role == "mlp" and tensor.split == "rows" and len(tensor.shape) > 1 and at & set(tensor.layers)),
        default=0,
    )


def _projected(tensors: list[Tensor], role: str) -> int:
    """Features that one layer projects to: the sum of the matrices that tensor parallelism divides by rows, of the layer where it is largest."""
    by_layer: dict[int, int] = {}
    for tensor in tensors:
        if tensor.role == role and tensor.split == "rows" and len(tensor.shape) > 1:
            for layer in tensor.layers or (0,):
                by_layer[layer] = by_layer.get(layer, 0) + tensor.shape[0] * (tensor.copies if tensor.layers else 1)
    return max(by_layer.values(), default=0)


def _tower_of(spec: WeighedModel) -> Tower | None:
    """The tower that is profiled, where the size of its largest item is known."""
    item = ITEMS.get(spec.facts.model_type or "")
    inner = [tensor for tensor in spec.tensors if tensor.part == "tower" and tensor.role == "mlp" and len(tensor.shape) > 1 and tensor.name.endswith("up_proj")]
    if item is None or not inner:
        return None
    widest = max(inner, key=lambda tensor: tensor.shape[0])
    return Tower(hidden=widest.shape[1], intermediate=widest.shape[0], patches=item[0], tokens=item[1])


def overheads(widths: Widths, deployment: Deployment) -> Overheads:
    """What one GPU keeps back from the KV cache."""
    parts = (_activation(widths, deployment), _graphs(widths, deployment), _runtime(deployment))
    likely = sum(part.likely for part in parts)
    below = sqrt(sum((part.likely - part.low) ** 2 for part in parts))
    above = sqrt(sum((part.high - part.likely) ** 2 for part in parts))
    return Overheads(*parts, Span(max(0, round(likely - below)), likely, round(likely + above)), same_from=_same_from(widths, deployment))


def _same_from(widths: Widths, deployment: Deployment) -> int | None:
    """The length of request from which on none of this depends on it: `_tower` and the whole prompt of `_activation` do below."""
    if deployment.minor <= WHOLE_PROMPT_MINOR:
        return WHOLE_PROMPT_TOKENS + 1 if deployment.minor >= CHUNKED_PROMPT_MINOR else None
    return 0 if widths.tower is None else widths.tower.tokens


def _activation(widths: Widths, deployment: Deployment) -> Span:
    """The peak of torch's allocator in profile_run: the vision tower first, then the layers, then the sampler on what they keep."""
    tokens = deployment.batched_tokens
    chunked = deployment.minor >= CHUNKED_PROMPT_MINOR and deployment.context > WHOLE_PROMPT_TOKENS
    if deployment.minor <= WHOLE_PROMPT_MINOR and not chunked:
        tokens = max(tokens, deployment.context)
    workspace = _workspace(widths, deployment, tokens)
    layers = workspace + _layer(widths, deployment.tp, tokens)
    sampler = 0 if widths.pooling else _sampler(widths, deployment)
    if deployment.minor >= KEPT_WORKSPACE_MINOR:
        sampler += workspace
    text = max(layers, sampler)
    likely = max(text, _tower(widths, deployment))
    miss = SAMPLER_MISS if likely == sampler else FORWARD_MISS
    return Span(round(text / miss), likely, round(likely * miss))


def _second_runner(widths: Widths, minor: int) -> bool:
    """Whether the second model runner (vllm/v1/worker/gpu) is the default for the model."""
    dense = widths.experts is None and not widths.recurrent and not widths.pooling
    return minor >= SECOND_RUNNER_ALL_MINOR or (minor >= SECOND_RUNNER_MINOR and dense)


def _layer(widths: Widths, tp: int, tokens: int) -> int:
    """The widest moment of one layer, the routed experts' workspace apart."""
    mlp = widths.intermediate if widths.experts is None else widths.experts.shared
    wide = max(GATED_MLP * mlp, RECURRENT_COPIES * widths.recurrent, ATTENTION_COPIES * widths.attention) / tp
    return ceil(tokens * (wide + LIVE_HIDDEN * widths.streams * widths.hidden) * ELEMENT)


def _workspace(widths: Widths, deployment: Deployment, tokens: int) -> int:
    """The two buffers of the fused experts (TritonExperts.workspace_shapes, vllm/model_executor/layers/fused_moe)."""
    if widths.experts is None:
        return 0
    width = ceil(widths.experts.width / deployment.tp)
    rows = max(2 * width, widths.hidden) + (max(width, widths.hidden) if deployment.minor >= KEPT_WORKSPACE_MINOR else width)
    return tokens * widths.experts.per_token * rows * ELEMENT


def _sampler(widths: Widths, deployment: Deployment) -> int:
    """The dummy sampler run: one row of logits for each sequence, with top-k and top-p on."""
    if deployment.minor < TRITON_SAMPLER_MINOR:
        logit = SORTED_LOGIT
    elif not _second_runner(widths, deployment.minor):
        logit = NATIVE_LOGIT
    else:
        logit = PLAIN_LOGIT if deployment.minor < SECOND_RUNNER_FP32_MINOR else FUSED_LOGIT
    return deployment.sequences * widths.vocabulary * logit


def _tower(widths: Widths, deployment: Deployment) -> int:
    """The tower's pass over as many of its largest items as a batch holds, at least one (MultiModalBudget, vllm/multimodal/encoder_budget.py)."""
    tower = widths.tower
    if tower is None or (deployment.minor < SECOND_RUNNER_TOWER_MINOR and _second_runner(widths, deployment.minor)):
        return 0
    patches = tower.patches * max(1, deployment.batched_tokens // tower.tokens)
    if deployment.context < tower.tokens:  # no item is longer than a request: three public logs with short contexts hold no larger pass
        patches = tower.patches * deployment.context // tower.tokens
    rows = TOWER_HIDDEN_ROWS * tower.hidden + TOWER_MLP_ROWS * tower.intermediate / deployment.tp
    return ceil(patches * (rows + PATCH_VALUES) * ELEMENT)


def _graphs(widths: Widths, deployment: Deployment) -> Span:
    """The estimate of CUDA-graph memory that start-up subtracts."""
    unmeasured = deployment.minor < SECOND_RUNNER_GRAPHS_MINOR and _second_runner(widths, deployment.minor)
    if deployment.eager or unmeasured or deployment.minor < GRAPH_CHARGE_MINOR - 1:
        return Span(0, 0, 0)
    decode = deployment.sequences * (1 + deployment.drafted)
    count = _captures(min(2 * decode, GRAPH_TOKENS)) + _captures(min(decode, GRAPH_TOKENS))
    size = GRAPH_BASE + count * GRAPH_STEP
    if deployment.minor < GRAPH_CHARGE_MINOR:  # development builds towards 0.20 call themselves 0.19
        return Span(0, 0, 2 * size)
    return Span(round(GRAPH_LOW * size), size, round(GRAPH_HIGH * size))


def _captures(largest: int) -> int:
    """How many batch sizes up to `largest` are captured: 1, 2, 4, then steps of 8 below 256 and of 16 above."""
    sizes = (1, 2, 4, *range(8, 256, 8), *range(256, GRAPH_TOKENS + 1, 16))
    return sum(size <= largest for size in sizes)


def _runtime(deployment: Deployment) -> Span:
    """What the driver and libraries take outside torch's allocator between the start and the end of profiling."""
    base = RUNTIME_EARLY if deployment.minor < GRAPH_PROFILE_MINOR else RUNTIME
    doublings = (deployment.tp - 1).bit_length()
    card = base * (1 + RUNTIME_TP * doublings) + (RUNTIME_DRAFTER if deployment.drafted else 0)
    if not deployment.unified:
        return _span(RUNTIME_LOW * card, card, RUNTIME_HIGH * card)
    shared = card + UNIFIED + (UNIFIED_DRAFTER if deployment.drafted else 0)
    return _span(UNIFIED_LOW * shared, shared, UNIFIED_HIGH * shared)


def _span(low: float, likely: float, high: float) -> Span:
    """A span given in GiB."""
    return Span(round(low * GIB), round(likely * GIB), round(high * GIB))

"""FLOPs of prefill and decode beside torch's own counter on small models of transformers, and beside their definition counted token by token."""

import inspect
import json
import warnings
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from itertools import combinations, product
from math import isqrt
from typing import Any, Final, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcalc import caches
from kvcalc.catalog import load_model
from kvcalc.engines import work
from kvcalc.engines.base import Options
from kvcalc.engines.work import CacheCosts, Costs, Experts, costs, decode, distinct_bytes, generated, prefill
from kvcalc.families import read_config
from kvcalc.layers import Cache, Chunk, Encoder, Grows, Once, Window
from kvcalc.packing import KvDtype
from kvcalc.tensors import Tensor, WeighedModel

needs_torch = pytest.mark.skipif(
    find_spec("torch") is None or find_spec("transformers") is None, reason="torch and transformers are not installed: pip install 'kvcalc[verify]'"
)
BF16 = KvDtype("bf16", "bf16")
PROMPT = 64
"""Tokens of a prompt, which the counted decode step stands behind: a whole number of every model's chunks."""
DELTA_CHUNK = 64
"""Tokens of a chunk of the delta rule (transformers 5.24.0, torch_chunk_gated_delta_rule in modeling_qwen3_next.py)."""
SCAN_CHUNK = 16
"""Tokens of a chunk of Mamba-2 and of lightning attention, which the configs below state."""
IMAGE_ROWS = 40
TOLERANCE = 0.01
"""For what is not counted: rotations, and the sum over the heads of an indexer."""
MATRICES = 0.001
"""Less than a router among matrices takes, of which none is left out."""


class Flops(NamedTuple):
    """In matrices and convolutions, and in products of activations with each other: scores, values, states."""

    matrices: int
    products: int


class Row(NamedTuple):
    """A small model: what its config has beside SMALL, and what transformers computes beyond the work, or leaves out, for so many
    new tokens. `mixed`: its torch code multiplies some matrices as batches, which the counter cannot tell from activations.
    """

    model_type: str
    fields: dict[str, Any]
    beyond: Callable[[WeighedModel, Costs, int], Flops] = lambda _spec, _of, _new: Flops(0, 0)
    mixed: bool = False
    variant: str = ""

    @property
    def name(self) -> str:
        return f"{self.model_type} {self.variant}".strip()


ABSENT: Final = object()
"""A key of SMALL that a config does not have."""
SMALL: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 512,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
EVERY_HEAD: dict[str, Any] = {"num_key_value_heads": ABSENT, "head_dim": ABSENT}
FIRST: dict[str, Any] = {**EVERY_HEAD, "n_embd": 256, "n_layer": 2, "n_head": 8, "n_inner": 512, "n_positions": 128}
"""Names of the first decoders."""
MOE: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 128}
DEEPSEEK_MOE: dict[str, Any] = {**MOE, "n_routed_experts": 8, "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
MLA: dict[str, Any] = {
    "num_key_value_heads": 8,
    "head_dim": ABSENT,
    "kv_lora_rank": 64,
    "q_lora_rank": 96,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 48,
}
INDEXER: dict[str, Any] = {"index_topk": 24, "index_n_heads": 4, "index_head_dim": 32}
DELTA: dict[str, Any] = {
    "num_hidden_layers": 4,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}
MAMBA: dict[str, Any] = {"state_size": 16, "expand": 2, "conv_kernel": 4, "intermediate_size": 512}
MAMBA2: dict[str, Any] = {
    "mamba_n_heads": 8,
    "mamba_d_head": 64,
    "mamba_d_state": 32,
    "mamba_n_groups": 1,
    "mamba_d_conv": 4,
    "mamba_chunk_size": SCAN_CHUNK,
}
NEMOTRON: dict[str, Any] = {
    **DEEPSEEK_MOE,
    "num_hidden_layers": ABSENT,
    "layers_block_type": ["mamba", "moe", "attention", "mlp"],
    "moe_shared_expert_intermediate_size": 128,
    "mamba_num_heads": 8,
    "mamba_head_dim": 64,
    "ssm_state_size": 32,
    "n_groups": 1,
    "conv_kernel": 4,
    "chunk_size": SCAN_CHUNK,
}
JAMBA: dict[str, Any] = {
    "num_hidden_layers": 4,
    "attn_layer_period": 2,
    "attn_layer_offset": 1,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "expert_layer_period": 2,
    "expert_layer_offset": 1,
    "mamba_d_state": 16,
    "use_mamba_kernels": False,
}
LOCAL: dict[str, Any] = {"num_local_experts": 8, "num_experts_per_tok": 2}
SLIDES: dict[str, Any] = {"sliding_window": 24, "num_hidden_layers": 4}


def in_text(spec: WeighedModel) -> list[Tensor]:
    """Without draft layers, which transformers leaves out."""
    return [each for each in spec.tensors if each.part == "text"]


def idle_experts(spec: WeighedModel, _of: Costs, new: int) -> Flops:
    """Llama 4 computes every expert for every token, and multiplies by zero (modeling_llama4.py)."""
    idle = sum(2 * each.elements * len(each.layers) * (each.copies - each.used) for each in in_text(spec) if each.role == "expert")
    return Flops(idle * new, 0)


def mixed_streams(streams: int, times: int) -> Callable[[WeighedModel, Costs, int], Flops]:
    """Residual streams are mixed by a small matrix that is computed for each token, so often in a layer: AltUp of Gemma 3n, mHC of DeepSeek-V4."""
    return lambda spec, _of, new: Flops(0, 2 * times * streams * streams * 256 * len(spec.layers) * new)


def last_token_alone(spec: WeighedModel, of: Costs, new: int) -> Flops:
    """Gemma 4 computes nothing but the last token of a prompt in its last layers, which read the caches of others (modeling_gemma4.py)."""
    reading = {index for index, layer in enumerate(spec.layers) if layer.reads is not None}
    matrices = sum(2 * each.elements * len(reading.intersection(each.layers)) for each in in_text(spec) if each.role in work.MULTIPLIED)
    scores = sum((cost.readers - cost.writers) * cost.prefill_pair_flops * PROMPT for cost in of.caches)
    return Flops(-matrices * (new - 1), -scores * (new - 1))


def image_rows(spec: WeighedModel, _of: Costs, new: int) -> Flops:
    """K and V of an image's rows, which are made with the prompt and are no work of the text."""
    crossed = [each for each in in_text(spec) if each.name.endswith(("cross_attn.k_proj", "cross_attn.v_proj"))]
    return Flops(sum(2 * each.elements * each.number for each in crossed) * IMAGE_ROWS if new > 1 else 0, 0)


ROWS = [
    Row("llama", {}),
    Row("mistral", SLIDES),
    Row("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}, variant="tied, with biases"),
    Row("qwen2", {}),
    Row("qwen2", {"use_sliding_window": True, "max_window_layers": 1, **SLIDES}, variant="windowed"),
    Row("qwen3", {}),
    Row("phi3", {}),
    Row("phi", {}),
    Row("stablelm", {}),
    Row("starcoder2", {}),
    Row("falcon", {**EVERY_HEAD, "multi_query": True, "parallel_attn": True, "new_decoder_architecture": False}),
    Row("falcon", {**EVERY_HEAD, "new_decoder_architecture": True, "num_kv_heads": 2}, variant="of the new architecture"),
    Row(
        "falcon",
        {**EVERY_HEAD, "multi_query": False, "parallel_attn": False, "new_decoder_architecture": False, "alibi": True, "bias": True},
        variant="of many heads, one block after the other",
    ),
    Row("bloom", {**EVERY_HEAD, "n_layer": 2, "n_head": 8, "intermediate_size": ABSENT}),
    Row("opt", {**EVERY_HEAD, "ffn_dim": 512, "word_embed_proj_dim": 256}),
    Row("opt", {**EVERY_HEAD, "ffn_dim": 512, "word_embed_proj_dim": 64}, variant="with a narrow embedding"),
    Row("gpt2", FIRST),
    Row("gptj", {**FIRST, "rotary_dim": 16}),
    Row("codegen", {**FIRST, "rotary_dim": 16}),
    Row("gpt_bigcode", FIRST),
    Row("gpt_bigcode", {**FIRST, "multi_query": False}, variant="with every head"),
    Row("gpt_neox", EVERY_HEAD),
    Row("mpt", {**EVERY_HEAD, "d_model": 256, "n_heads": 8, "n_layers": 2, "max_seq_len": 128, "intermediate_size": ABSENT}),
    Row("biogpt", EVERY_HEAD),
    Row("persimmon", EVERY_HEAD),
    Row("nemotron", {}),
    Row("arcee", {}),
    Row("apertus", {}),
    Row("gemma", {"tie_word_embeddings": True}),
    Row("gemma2", SLIDES),
    Row("gemma3_text", {"sliding_window": 24, "num_hidden_layers": 6, "tie_word_embeddings": True}),
    Row(
        "gemma3n_text",
        {
            "sliding_window": 24,
            "num_hidden_layers": 5,
            "num_kv_shared_layers": 2,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "full_attention"],
            "vocab_size_per_layer_input": 512,
            "hidden_size_per_layer_input": 32,
            "laurel_rank": 32,
            "activation_sparsity_pattern": [0.0] * 5,
            "intermediate_size": [512] * 5,
            "tie_word_embeddings": True,
        },
        mixed_streams(4, times=1),
    ),
    Row(
        "gemma4_text",
        {
            "sliding_window": 24,
            "num_hidden_layers": 6,
            "layer_types": ["sliding_attention", "full_attention"] * 3,
            "num_kv_shared_layers": 2,
            "vocab_size_per_layer_input": 512,
            "hidden_size_per_layer_input": 32,
            "global_head_dim": 64,
        },
        last_token_alone,
    ),
    Row(
        "gemma4_text",
        {
            "sliding_window": 24,
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "num_kv_shared_layers": 0,
            "vocab_size_per_layer_input": 512,
            "hidden_size_per_layer_input": 0,
            "global_head_dim": 64,
            "num_global_key_value_heads": 1,
            "attention_k_eq_v": True,
            "enable_moe_block": True,
            "num_experts": 8,
            "top_k_experts": 2,
            "moe_intermediate_size": 128,
        },
        variant="with experts",
    ),
    Row(
        "gemma4_text",
        {
            "sliding_window": 24,
            "num_hidden_layers": 6,
            "layer_types": ["sliding_attention", "full_attention"] * 3,
            "num_kv_shared_layers": 2,
            "vocab_size_per_layer_input": 512,
            "hidden_size_per_layer_input": 32,
            "use_double_wide_mlp": True,
        },
        last_token_alone,
        variant="with wide MLPs",
    ),
    Row("cohere", {}),
    Row("cohere2", SLIDES),
    Row("olmo", {}),
    Row("olmo2", {}),
    Row("olmo3", SLIDES),
    Row("exaone4", {}),
    Row("glm", {}),
    Row("glm4", {}),
    Row("internlm3", {}),
    Row("hunyuan_v1_dense", {}),
    Row("ernie4_5", {}),
    Row("granitemoeshared", {**LOCAL, "shared_intermediate_size": 256}),
    Row("granite", {}),
    Row("granitemoe", LOCAL),
    Row("seed_oss", {}),
    Row("smollm3", {}),
    Row("helium", {}),
    Row("ministral", SLIDES),
    Row("mixtral", LOCAL),
    Row(
        "dbrx",
        {
            **EVERY_HEAD,
            "d_model": 256,
            "n_heads": 8,
            "n_layers": 2,
            "max_seq_len": 128,
            "ffn_config": {"moe_num_experts": 4, "moe_top_k": 2, "ffn_hidden_size": 256, "hidden_size": 256},
            "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
        },
    ),
    Row("laguna", {**MOE, **SLIDES, "num_experts": 8, "shared_expert_intermediate_size": 128}),
    Row("mimo_v2_flash", {**MOE, **SLIDES, "n_routed_experts": 8, "v_head_dim": 24, "n_group": 1, "topk_group": 1}),
    Row("solar_open", {**DEEPSEEK_MOE, "first_k_dense_replace": ABSENT}),
    Row("olmoe", {"num_experts": 8, "num_experts_per_tok": 2}),
    Row("phimoe", LOCAL),
    Row("minimax_m2", LOCAL),
    Row("gpt_oss", {**LOCAL, "sliding_window": 24}),
    Row("qwen2_moe", {**MOE, "num_experts": 8, "shared_expert_intermediate_size": 128}),
    Row("qwen3_moe", {**MOE, "num_experts": 8}),
    Row("qwen3_moe", {**MOE, "num_experts": 8, "num_hidden_layers": 4, "decoder_sparse_step": 2, "mlp_only_layers": [3]}, variant="with dense layers"),
    Row("glm4_moe", DEEPSEEK_MOE),
    Row("ernie4_5_moe", {"moe_num_experts": 8, "moe_k": 2, "moe_num_shared_experts": 1, "moe_intermediate_size": 128, "moe_layer_start_index": 1}),
    Row("afmoe", {**MOE, **SLIDES, "num_experts": 8, "num_shared_experts": 1, "num_dense_layers": 1}),
    Row(
        "llama4_text",
        {
            "num_hidden_layers": 4,
            "attention_chunk_size": 24,
            "num_local_experts": 4,
            "num_experts_per_tok": 1,
            "intermediate_size_mlp": 512,
            "interleave_moe_layer_step": 2,
        },
        idle_experts,
        mixed=True,
    ),
    Row("deepseek_v2", {**MLA, **DEEPSEEK_MOE}),
    Row("deepseek_v3", {**MLA, **DEEPSEEK_MOE}),
    Row("deepseek_v2", {**MLA, **DEEPSEEK_MOE, "q_lora_rank": None}, variant="without a latent for Q"),
    Row("glm4_moe_lite", {**MLA, **DEEPSEEK_MOE}),
    Row("minicpm3", MLA),
    Row(
        "longcat_flash",
        {
            **MLA,
            "num_hidden_layers": ABSENT,
            "head_dim": 16,
            "num_layers": 2,
            "ffn_hidden_size": 512,
            "expert_ffn_hidden_size": 128,
            "n_routed_experts": 8,
            "zero_expert_num": 0,
            "moe_topk": 3,
        },
    ),
    Row("deepseek_v32", {**MLA, **DEEPSEEK_MOE, **INDEXER}),
    Row("glm_moe_dsa", {**MLA, **DEEPSEEK_MOE, **INDEXER, "num_hidden_layers": 4, "index_topk_freq": 2}),
    Row(
        "minimax_m3_vl_text",
        {
            **LOCAL,
            "layer_types": ["full_attention", "minimax_m3_sparse"],
            "mlp_layer_types": ["dense", "sparse"],
            "dense_intermediate_size": 512,
            "shared_intermediate_size": 128,
            "rotary_dim": 16,
            "index_n_heads": 2,
            "index_head_dim": 32,
            "index_block_size": 8,
            "index_topk_blocks": 3,
        },
    ),
    Row(
        "deepseek_v4",
        {
            **MOE,
            **SLIDES,
            "num_hidden_layers": 3,
            "layer_types": ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"],
            "num_key_value_heads": 1,
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "q_lora_rank": 96,
            "qk_rope_head_dim": 16,
            "o_groups": 2,
            "o_lora_rank": 64,
            "index_topk": 8,
            "index_n_heads": 4,
            "index_head_dim": 32,
            "hc_mult": 4,
        },
        mixed_streams(4, times=2),
        mixed=True,
    ),
    Row("mllama_text_model", {"cross_attention_layers": [1], "num_hidden_layers": 3, "head_dim": ABSENT}, image_rows),
    Row("qwen3_next", {**DELTA, **MOE, "num_experts": 8, "shared_expert_intermediate_size": 128}),
    Row("qwen3_next", {**DELTA, **MOE, "num_experts": 8, "shared_expert_intermediate_size": 128, "decoder_sparse_step": 2}, variant="with dense layers"),
    Row("qwen3_5_text", DELTA),
    Row("qwen3_5_moe_text", {**DELTA, **MOE, "num_experts": 8, "shared_expert_intermediate_size": 128}),
    Row("olmo_hybrid", DELTA),
    Row(
        "kimi_linear",
        {
            **MLA,
            **MOE,
            "num_hidden_layers": 4,
            "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"],
            "num_experts": 8,
            "num_shared_experts": 1,
            "first_k_dense_replace": 1,
            "linear_num_heads": 8,
            "linear_head_dim": 32,
            "linear_conv_kernel_dim": 4,
        },
    ),
    Row("mamba", MAMBA, mixed=True),
    Row("falcon_mamba", MAMBA, mixed=True),
    Row("mamba2", {"num_heads": 8, "head_dim": 64, "state_size": 32, "expand": 2, "n_groups": 1, "conv_kernel": 4, "chunk_size": SCAN_CHUNK}),
    Row(
        "mamba2",
        {"num_heads": 8, "head_dim": 64, "state_size": 32, "expand": 2, "n_groups": 4, "conv_kernel": 4, "chunk_size": SCAN_CHUNK, "use_bias": True},
        variant="in groups",
    ),
    Row("falcon_h1", {**MAMBA2, "mamba_d_ssm": 512}),
    Row("bamba", {**MAMBA2, "attn_layer_indices": [1]}),
    Row(
        "granitemoehybrid",
        {**MAMBA2, **LOCAL, "num_hidden_layers": 4, "layer_types": ["mamba", "attention", "mamba", "mamba"], "shared_intermediate_size": 256},
    ),
    Row("nemotron_h", NEMOTRON),
    Row("nemotron_h", {**NEMOTRON, "moe_latent_size": 64}, variant="with experts of a latent"),
    Row("jamba", JAMBA, mixed=True),
    Row("jamba", {**JAMBA, "num_experts": 1}, mixed=True, variant="without experts"),
    Row("lfm2", {"layer_types": ["conv", "full_attention"], "block_multiple_of": 64, "conv_L_cache": 3}),
    Row(
        "lfm2",
        {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False, "conv_L_cache": 3, "conv_bias": True},
        variant="as wide as it says",
    ),
    Row("minimax", {**LOCAL, "layer_types": ["linear_attention", "full_attention"], "block_size": SCAN_CHUNK}),
    Row(
        "recurrent_gemma",
        {"num_hidden_layers": 3, "attention_window_size": 24, "lru_width": 256, "num_key_value_heads": 1, "head_dim": ABSENT},
        mixed=True,
    ),
]


def rows_computed(each: Cache, tokens: int, *, prompt: bool) -> int:
    """Rows that transformers multiplies each query by: in a prompt those of all its tokens, behind it those that are kept; what is not to be seen, beyond
    a chunk or not picked, is masked when that is done.
    """
    match each.retention:
        case Grows(stride=stride):
            return tokens // stride
        case Window(size=size) | Chunk(size=size):
            return 0 if each.kernel == "compressor" else tokens if prompt else min(tokens, size)
        case Encoder():
            return IMAGE_ROWS
        case Once():
            return 0


def states_computed(cost: CacheCosts, new: int) -> int:
    """Products of activations in the recurrences of one layer as torch code has them. The outer product of Mamba, and all of one step of the delta rule,
    are written element by element, which the counter does not see; in a prompt chunks of tokens are multiplied among themselves too.
    """
    planes, whole = cost.cache.planes, new * cost.token_flops
    match cost.cache.kernel:
        case "mamba1":
            return whole // 2
        case "mamba2":
            if new == 1:
                return whole // 2
            heads, width = planes[-1].heads, planes[1].width // 2
            inner = planes[-1].width // width
            among, chunks = 2 * new * SCAN_CHUNK * heads * (width + inner), new // SCAN_CHUNK + 1
            return whole + among + 2 * chunks * chunks * heads * width * inner  # the last: from each chunk's state to that of each other
        case "gdn" | "kda":
            if new == 1:
                return 0
            heads, k, v = planes[1].heads, planes[0].width // 2, planes[1].width
            return whole + 2 * new * DELTA_CHUNK * heads * (2 * k + v if cost.cache.kernel == "gdn" else k + 2 * v)
        case "lightning":
            heads = planes[0].heads
            return whole if new == 1 else whole + 4 * new * SCAN_CHUNK * heads * isqrt(planes[0].width)
        case _:
            return 0


def padding(spec: WeighedModel, new: int) -> int:
    """FLOPs of convolutions over what stands before the tokens: in a prompt each gives kernel - 1 columns more, in a step one more."""
    convolutions = [each for each in in_text(spec) if len(each.shape) == 3 and each.shape[1] == 1]
    return sum(2 * each.elements * each.number * (each.shape[2] - 1 if new > 1 else 1) for each in convolutions)


def expected(row: Row, spec: WeighedModel, *, prompt: bool) -> Flops:
    """What torch should count: the work, with scores that are masked, latents that are expanded at every step, and what the row says."""
    of = costs(spec, BF16, Options(encoder_tokens=IMAGE_ROWS))
    new, tokens = (PROMPT, PROMPT) if prompt else (1, PROMPT + 1)
    done = prefill(of, PROMPT) if prompt else decode(of, tokens, 1)
    expanded = 0 if prompt else (tokens - 1) * sum(2 * each.elements * each.number for each in in_text(spec) if each.name.endswith("kv_b_proj"))
    scores = sum(cost.readers * cost.prefill_pair_flops * new * rows_computed(cost.cache, tokens, prompt=prompt) for cost in of.caches)
    states = sum(cost.writers * states_computed(cost, new) for cost in of.caches)
    beyond = row.beyond(spec, of, new)
    return Flops(sum(done.linear_flops.values()) + expanded + padding(spec, new) + beyond.matrices, scores + states + beyond.products)


class Counted(NamedTuple):
    """What torch counted, and the config.json of the model."""

    prompt: Flops
    step: Flops
    config: dict[str, Any]


@cache
def counted(name: str) -> Counted:
    """Of a prompt, and of one step behind it, by a model with random weights."""
    torch: Any = import_module("torch")  # it is optional, and has no types where it is not installed
    transformers: Any = import_module("transformers")
    row = next(row for row in ROWS if row.name == name)
    model_type = row.model_type
    fields = {key: value for key, value in (SMALL | row.fields).items() if value is not ABSENT}
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")  # they are those of transformers
        torch.manual_seed(0)
        torch.set_num_threads(1)  # products so small take longer in several
        config = transformers.AutoConfig.for_model(model_type, **fields)
        crossed = model_type == "mllama_text_model"
        build = transformers.MllamaForCausalLM._from_config if crossed else transformers.AutoModelForCausalLM.from_config  # noqa: SLF001 (no Auto class knows it)
        model = build(config, attn_implementation="eager", experts_implementation="eager").float().eval()
        takes = inspect.signature(model.forward).parameters
        cache_name = next(each for each in ("cache", "past_key_values", "cache_params") if each in takes)
        own = getattr(inspect.getmodule(type(model)), "MiniMaxCache", None)  # it takes no other
        kept = transformers.DynamicCache(config=model.config) if own is None else own()
        always: dict[str, Any] = {"use_cache": True, cache_name: kept}
        always |= {"logits_to_keep": 1} if "logits_to_keep" in takes else {}
        if model_type == "recurrent_gemma":  # which keeps its states in its modules
            model.model._setup_cache(model.config, 1, torch.device("cpu"), torch.float32)  # noqa: SLF001 (it does so itself only where it makes the cache)
        tokens = torch.randint(3, 500, (1, PROMPT + 1))
        image = {"cross_attention_states": torch.randn(1, IMAGE_ROWS, model.config.hidden_size)} if crossed else {}
        prompt = _count(model, tokens[:, :PROMPT], always | image)
        step = _count(model, tokens[:, PROMPT:], always)
    return Counted(prompt, step, json.loads(model.config.to_json_string(use_diff=False), parse_float=Decimal))


def _count(model: Any, tokens: Any, always: dict[str, Any]) -> Flops:
    counter = import_module("torch.utils.flop_counter").FlopCounterMode(display=False)
    with counter:
        model(tokens, **always)
    by_kind = {str(kind).removeprefix("aten."): flops for kind, flops in counter.get_flop_counts()["Global"].items()}
    products = by_kind.pop("bmm", 0) + by_kind.pop("baddbmm", 0)
    return Flops(sum(by_kind.values()), products)


@needs_torch
@pytest.mark.parametrize("moment", ["prompt", "step"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_flops_are_those_that_torch_counts(row: Row, moment: str) -> None:
    found = counted(row.name)
    right, answer = found.prompt if moment == "prompt" else found.step, expected(row, read_config(found.config), prompt=moment == "prompt")
    assert sum(answer) == pytest.approx(sum(right), rel=TOLERANCE)
    if not row.mixed:
        assert answer.matrices == pytest.approx(right.matrices, rel=MATRICES)
        assert answer.products == pytest.approx(right.products, rel=TOLERANCE)


def some(retention: Grows | Window | Chunk | Encoder | Once, *, picks: int | None = None, readers: int = 1) -> Costs:
    """Work with caches of one kind, in two layers that keep and as many that read more as `readers` says; numbers that share no factor."""
    plain = caches.attention(kv_heads=1, query_heads=1, head_dim=8)
    kept = plain.model_copy(update={"retention": retention, "picks": picks})
    attended = not isinstance(retention, Once)
    cost = CacheCosts(kept, 2 * readers, 2, 32, 7 if attended else 0, 11 if attended else 0, 0 if attended else 13)
    return Costs({"bf16": 17}, {"bf16": 19}, 23, 29, (Experts(4, 2, 1000),), (cost,), encoder_tokens=5, dcp=1, reduced_token_bytes=31, reductions=37)


def visible(of: Costs, token: int) -> int:
    """Rows that the token at this place (the first is 1) attends to, looked for one by one."""
    kept = of.caches[0].cache
    match kept.retention:
        case Grows(stride=stride):
            rows = sum(place % stride == 0 for place in range(1, token + 1))
        case Window(size=size):
            rows = sum(place > token - size for place in range(1, token + 1))
        case Chunk(size=size):
            rows = sum((place - 1) // size == (token - 1) // size for place in range(1, token + 1))
        case Encoder():
            rows = of.encoder_tokens
        case Once():
            rows = 0
    return rows if kept.picks is None else min(rows, kept.picks)


SIZES = st.integers(1, 9)
KEPT = st.one_of(
    st.builds(some, st.builds(Grows, stride=SIZES), picks=st.none() | SIZES, readers=st.integers(1, 3)),
    st.builds(some, st.builds(Window, size=SIZES), picks=st.none() | SIZES),
    st.builds(some, st.builds(Chunk, size=SIZES)),
    st.just(some(Encoder())),
    st.just(some(Once())),
)
LENGTHS = st.integers(0, 60)


@given(KEPT, LENGTHS)
def test_a_prompt_attends_to_what_each_of_its_tokens_sees(of: Costs, tokens: int) -> None:
    (cost,) = of.caches
    pairs = sum(visible(of, token) for token in range(1, tokens + 1))
    assert prefill(of, tokens).attention_flops == cost.readers * cost.prefill_pair_flops * pairs


@given(KEPT, st.integers(1, 60), st.integers(1, 5))
def test_a_step_attends_to_what_its_token_sees(of: Costs, context: int, batch: int) -> None:
    (cost,) = of.caches
    step = decode(of, context, batch)
    assert step.attention_flops == batch * cost.readers * cost.decode_pair_flops * visible(of, context)
    assert step.kv_read_bytes == batch * cost.readers * cost.row_bytes * visible(of, context)
    assert step.recurrence_flops == batch * cost.writers * cost.token_flops


@given(KEPT, LENGTHS, LENGTHS, st.integers(1, 4))
def test_a_prompt_in_two_parts_is_the_whole(of: Costs, first: int, second: int, passes: int) -> None:
    """But for the token that is sampled behind each part."""
    begun, rest, whole = prefill(of, first), prefill(of, first + second, cached=first, passes=passes), prefill(of, first + second)
    assert begun.attention_flops + rest.attention_flops == whole.attention_flops
    assert begun.recurrence_flops + rest.recurrence_flops == whole.recurrence_flops
    assert begun.linear_flops["bf16"] + rest.linear_flops["bf16"] == whole.linear_flops["bf16"] + of.sample_flops["bf16"]
    assert begun.kv_write_bytes + rest.kv_write_bytes == whole.kv_write_bytes
    assert begun.reduced_bytes + rest.reduced_bytes == whole.reduced_bytes


@given(KEPT, st.integers(1, 60), st.integers(1, 300))
def test_requests_of_a_batch_share_the_weights_alone(of: Costs, context: int, batch: int) -> None:
    one, every = decode(of, context, 1), decode(of, context, batch)
    assert every.flops == batch * one.flops
    assert (every.kv_read_bytes, every.kv_write_bytes, every.state_bytes, every.reduced_bytes) == tuple(
        batch * each for each in (one.kv_read_bytes, one.kv_write_bytes, one.state_bytes, one.reduced_bytes)
    )
    assert every.weight_bytes == of.weight_bytes + batch * of.embedding_row_bytes + distinct_bytes(of.experts[0], batch)
    assert every.reductions == one.reductions


@given(KEPT, st.integers(0, 30))
def test_generating_is_one_step_after_the_other(of: Costs, tokens: int) -> None:
    """With a cache a step for each token, without one the prompt so far."""
    steps = [decode(of, length, 1) for length in range(1, tokens + 1)]
    prompts = [prefill(of, length) for length in range(1, tokens + 1)]
    for found, each in zip(generated(of, tokens), (steps, prompts), strict=True):
        assert found.flops == sum(work.flops for work in each)
        assert found.attention_flops == sum(work.attention_flops for work in each)


@pytest.mark.parametrize("tokens", [1, 2, 3])
@pytest.mark.parametrize(("copies", "used"), [(4, 1), (4, 2), (4, 4), (5, 2)])
def test_distinct_experts_are_the_mean_over_all_choices(copies: int, used: int, tokens: int) -> None:
    """Each of the tokens takes any `used` of the copies, all ways alike."""
    choices = list(product(combinations(range(copies), used), repeat=tokens))
    mean = Fraction(sum(len(set().union(*each)) for each in choices), len(choices))
    size_bytes = copies * 1000
    assert distinct_bytes(Experts(copies, used, size_bytes), tokens) == int(mean * 1000)


@given(st.integers(1, 300), st.integers(0, 400), st.data())
def test_distinct_experts_have_limits(copies: int, tokens: int, data: st.DataObject) -> None:
    used = data.draw(st.integers(1, copies))
    experts = Experts(copies, used, copies * 10**9)
    found = distinct_bytes(experts, tokens)
    assert found <= distinct_bytes(experts, tokens + 1) <= experts.size_bytes
    assert found <= tokens * used * 10**9
    assert distinct_bytes(experts, 0) == 0
    assert distinct_bytes(experts, 1) == used * 10**9
    assert distinct_bytes(experts, 50 * copies) == experts.size_bytes


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_tensor_parallelism_divides_the_work(tp: int) -> None:
    """Llama-3-8B, whose 8 KV heads and every width it divides; the GPUs sum 4,096 features of 2 bytes behind attention and MLP of 32 layers."""
    spec = load_model("llama-3-8b").weighed()
    whole, part = costs(spec, BF16, Options()), costs(spec, BF16, Options(tp=tp))
    one, share = prefill(whole, 1000), prefill(part, 1000)
    assert share.flops * tp == one.flops
    assert share.attention_flops * tp == one.attention_flops
    assert share.kv_write_bytes * tp == one.kv_write_bytes
    assert (part.reductions, part.reduced_token_bytes) == ((0, 0) if tp == 1 else (64, 64 * 4096 * 2))
    assert (part == whole) == (tp == 1)


def test_experts_that_hold_nothing_compute_nothing() -> None:
    """LongCat-Flash: a token takes 12 of 512 experts and 256 empty ones, 8 that compute in the mean; the router scores all 768."""
    fields = {**SMALL, **next(row.fields for row in ROWS if row.model_type == "longcat_flash"), "model_type": "longcat_flash", "num_layers": 1}
    stated = {name: value for name, value in fields.items() if value is not ABSENT} | {"n_routed_experts": 512}
    eight = costs(read_config(stated | {"zero_expert_num": 0, "moe_topk": 8}), BF16, Options())
    twelve = costs(read_config(stated | {"zero_expert_num": 256, "moe_topk": 12}), BF16, Options())
    assert sum(twelve.token_flops.values()) - sum(eight.token_flops.values()) == 2 * 256 * 256
    assert distinct_bytes(twelve.experts[0], 1) == distinct_bytes(eight.experts[0], 1)


def test_matrices_that_no_token_passes_are_neither_multiplied_nor_read() -> None:
    """Gemma 3n loads K and V of its two layers that read another's cache, 64 x 256 each of 2 bytes, and a token passes them in no layer that does so."""
    fields = {
        **SMALL,
        **next(row.fields for row in ROWS if row.model_type == "gemma3n_text"),
        "model_type": "gemma3n_text",
        "dtype": "bfloat16",
        "altup_num_inputs": 4,
    }
    shared, own = (costs(read_config({**fields, "num_kv_shared_layers": number}), BF16, Options()) for number in (2, 0))
    assert own.weight_bytes - shared.weight_bytes == 2 * 2 * 64 * 256 * 2
    assert sum(own.token_flops.values()) - sum(shared.token_flops.values()) == 2 * 2 * 64 * 256 * 2

"""Tensors and what they take: published counts, the layouts of vLLM's own code, and arithmetic by hand."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from kvcalc.catalog import load_model
from kvcalc.engines import find_engine
from kvcalc.engines.base import Options
from kvcalc.engines.loading import loaded_shares
from kvcalc.errors import KvcalcError
from kvcalc.families import FAMILIES, Family, read_config
from kvcalc.families.weights import CARRIES_MORE, RECIPES
from kvcalc.families.weights.towers import TOWERS
from kvcalc.packing import PACKINGS
from kvcalc.quantizations import BY_NAME, FP8_ROW, FP8_STATIC, FP8_TENSOR, MXFP4, NVFP4, fp8_block, grouped_int
from kvcalc.tensors import Quantization, Scheme, Tensor, WeighedModel
from kvcalc.weights import Share, checkpoint_bytes, lora_bytes, share_bytes

TABLE: dict[str, list[dict[str, Any]]] = yaml.safe_load((Path(__file__).parent / "weights.yaml").read_text())
BF16 = PACKINGS["bf16"]
VLLM = find_engine("vllm")


def weighed(model: str) -> WeighedModel:
    return load_model(model).weighed()


def test_the_tables_are_not_empty() -> None:
    assert len(TABLE["layouts"]) >= 30
    assert len(TABLE["checkpoints"]) >= 10


@pytest.mark.parametrize("row", TABLE["layouts"], ids=lambda row: row["model"])
def test_layout_is_that_of_vllm(row: dict[str, Any]) -> None:
    spec = weighed(row["model"])
    for tp, size_bytes in row["tp"].items():
        have = VLLM.loaded(spec, Options(tp=tp)).weights
        assert have == (size_bytes if row["exact"] else pytest.approx(size_bytes, rel=0.005)), tp


@pytest.mark.parametrize("row", TABLE["checkpoints"], ids=lambda row: row["model"])
def test_checkpoint_is_as_large_as_its_index_says(row: dict[str, Any]) -> None:
    assert checkpoint_bytes(weighed(row["model"]), PACKINGS[row["stored"]]) == row["bytes"]


# Parameters that one token passes, from the experts that are used: published with the models.
ACTIVE = {
    "mixtral-8x7b": (46_702_792_704, 12_879_925_248),
    "deepseek-v3": (671_026_404_352, 37_552_282_624),
    "qwen3-235b-a22b": (235_093_634_560, 22_190_763_520),
    "qwen3-30b-a3b": (30_532_122_624, 3_353_032_704),
    "llama-3-8b": (8_030_261_248, 8_030_261_248),
}


@pytest.mark.parametrize(("model", "counts"), ACTIVE.items())
def test_parameters_in_all_and_of_one_token(model: str, counts: tuple[int, int]) -> None:
    tensors = [tensor for tensor in weighed(model).tensors if tensor.role != "buffer" and tensor.part != "draft"]
    active = sum(tensor.elements * max(1, len(tensor.layers)) * tensor.used for tensor in tensors)
    assert (sum(tensor.elements * tensor.number for tensor in tensors), active) == counts


def test_parameters_of_a_narrow_embedding() -> None:
    """OPT-350m embeds 512 features and computes with 1024, its norms stand behind attention and MLP: 331,196,416 in its checkpoint."""
    layers = {"num_hidden_layers": 24, "num_attention_heads": 16, "hidden_size": 1024, "ffn_dim": 4096, "do_layer_norm_before": False}
    fields = {"model_type": "opt", "vocab_size": 50272, "word_embed_proj_dim": 512, "max_position_embeddings": 2048, **layers}
    assert read_config(fields).facts.parameters == 331_196_416


# One GPU's part, by hand: Llama-3-8B has 32 layers, 4096 features, 32 heads and 8 KV heads of 128, an MLP of 14336, 128256 words.
NORMS = 65 * 4096


def llama(tp: int) -> int:
    kv = max(1, 8 // tp) * 128
    layer = 2 * 4096 * (4096 // tp) + 2 * kv * 4096 + 3 * 4096 * 14336 // tp
    return 2 * (32 * layer + 2 * 128256 * 4096 // tp + NORMS)


@pytest.mark.parametrize("tp", [1, 2, 4, 8, 16])
def test_tensor_parallelism_divides_matrices_and_copies_norms_and_kv_heads(tp: int) -> None:
    assert share_bytes(weighed("llama-3-8b"), BF16, Share(tp=tp)) == llama(tp)


@pytest.mark.parametrize("pp", [1, 2, 4])
def test_pipeline_stages_hold_the_model_once(pp: int) -> None:
    spec = weighed("llama-3-8b")
    sizes = [
        share_bytes(spec, BF16, Share(stage=range(stage * 32 // pp, (stage + 1) * 32 // pp), first=stage == 0, last=stage == pp - 1)) for stage in range(pp)
    ]
    assert sum(sizes) == llama(1)
    assert loaded_shares(spec, Options(pp=pp)).weights == max(sizes)


def test_a_shared_embedding_stands_on_the_first_and_the_last_stage() -> None:
    spec, embedding = weighed("qwen3-0.6b"), 151_936 * 1024 * 2
    halves = [share_bytes(spec, BF16, Share(stage=stage, first=first, last=not first)) for first, stage in ((True, range(14)), (False, range(14, 28)))]
    assert sum(halves) == share_bytes(spec, BF16, Share()) + embedding


def test_experts_are_divided_or_dealt_out() -> None:
    """Mixtral: 32 layers of 8 experts with 3 x 4096 x 14336; eight GPUs hold an eighth of each, or one each."""
    spec, experts = weighed("mixtral-8x7b"), 32 * 8 * 3 * 4096 * 14336 * 2
    divided, dealt = share_bytes(spec, BF16, Share(tp=8)), share_bytes(spec, BF16, Share(tp=8, ep=8))
    assert divided == dealt
    assert share_bytes(spec, BF16, Share(ep=8)) == share_bytes(spec, BF16, Share()) - experts * 7 // 8
    assert loaded_shares(spec, Options(tp=2, dp=4, expert_parallel=True)).weights == share_bytes(spec, BF16, Share(tp=2)) - experts // 2 + experts // 8


def test_a_vocabulary_is_padded_before_it_is_divided() -> None:
    """OPT-125M: 50,272 words become 50,304 rows of 768."""
    spec = weighed("opt-125m")
    assert share_bytes(spec, BF16, Share()) - checkpoint_bytes(spec, BF16) == 32 * 768 * 2


def test_a_tower_whose_heads_do_not_divide_is_copied() -> None:
    """Qwen3-VL-8B's tower has 16 heads: eight GPUs divide it, 32 copy it."""
    spec = weighed("qwen3-vl-8b")
    tower = [tensor for tensor in spec.tensors if tensor.part == "tower"]
    size = 2 * sum(tensor.elements * tensor.number for tensor in tower)
    with_tower, without = (share_bytes(spec, BF16, Share(tp=32, towers=towers)) for towers in (True, False))
    assert with_tower - without == size
    assert share_bytes(spec, BF16, Share(tp=8)) - share_bytes(spec, BF16, Share(tp=8, towers=False)) < size // 6


# Bytes of a matrix of 256 rows and 1024 columns by scheme, by hand.
SCHEMES = [
    (FP8_TENSOR, 262_144 + 4),
    (FP8_STATIC, 262_144 + 8),
    (FP8_ROW, 262_144 + 256 * 4),
    (fp8_block(128, 128), 262_144 + 2 * 8 * 4),
    (fp8_block(100, 1000), 262_144 + 3 * 2 * 4),
    (NVFP4, 131_072 + 256 * 64 + 8),
    (MXFP4, 131_072 + 256 * 32),
    (grouped_int(4, 128, zeros=False, name="int4"), 131_072 + 256 * 8 * 2),
    (grouped_int(4, 128, zeros=True, name="awq"), 131_072 + 256 * 8 * 2 + 1024),
    (grouped_int(8, 1 << 31, zeros=False, name="int8"), 262_144 + 256 * 2),
]


@pytest.mark.parametrize(("scheme", "size_bytes"), SCHEMES, ids=lambda value: getattr(value, "name", None))
def test_scheme_counts_scales_and_zeros(scheme: Scheme, size_bytes: int) -> None:
    assert scheme.matrix_bytes(256, 1024) == size_bytes


def one_layer(quantization: Quantization | None) -> WeighedModel:
    tensors = (
        Tensor(name="embed_tokens", shape=(128, 64), split="vocab", role="embedding"),
        Tensor(name="layers.*.self_attn.q_proj", shape=(64, 64), layers=(0, 1), split="rows", role="attention"),
        Tensor(name="layers.*.mlp.experts.*.up_proj", shape=(64, 64), layers=(0, 1), copies=4, used=2, split="rows", role="expert"),
        Tensor(name="layers.*.mlp.gate", shape=(4, 64), layers=(0, 1), role="router"),
        Tensor(name="lm_head", shape=(128, 64), split="vocab", role="head"),
    )
    return weighed("gpt2").model_copy(update={"tensors": tensors, "quantization": quantization})


EIGHT = Scheme(name="eight", bits=8)
PLAIN = 2 * (2 * 128 * 64 + 2 * 64 * 64 + 2 * 4 * 64 * 64 + 2 * 4 * 64)
ATTENTION, EXPERTS = 2 * 64 * 64, 2 * 4 * 64 * 64
NAMED = [
    ((), PLAIN - ATTENTION - EXPERTS),
    (("lm_head",), PLAIN - ATTENTION - EXPERTS),
    (("model.layers.0.self_attn.q_proj",), PLAIN - ATTENTION // 2 - EXPERTS),
    (("model.layers.1.self_attn",), PLAIN - ATTENTION // 2 - EXPERTS),
    (("self_attn",), PLAIN - EXPERTS),
    (("model.language_model.layers.0*",), PLAIN - ATTENTION // 2 - EXPERTS // 2),
    (("*.mlp.experts.*",), PLAIN - ATTENTION),
    (("re:.*self_attn.*",), PLAIN - EXPERTS),
    (("re:.*mlp\\.(gate|up)_proj.*",), PLAIN - ATTENTION - EXPERTS),
    (("layers.1",), PLAIN - ATTENTION // 2 - EXPERTS // 2),
    (("layers.10",), PLAIN - ATTENTION - EXPERTS),
]


@pytest.mark.parametrize(("kept", "size_bytes"), NAMED)
def test_modules_that_a_quantization_names_stay_as_they_are(kept: tuple[str, ...], size_bytes: int) -> None:
    quantization = Quantization(method="q", scheme=EIGHT, named=tuple((name, None) for name in kept))
    assert share_bytes(one_layer(quantization), BF16, Share()) == size_bytes


def test_schemes_by_part() -> None:
    assert share_bytes(one_layer(None), BF16, Share()) == PLAIN
    assert share_bytes(one_layer(Quantization(method="q", experts=EIGHT)), BF16, Share()) == PLAIN - EXPERTS
    assert share_bytes(one_layer(Quantization(method="q", scheme=EIGHT, keeps_mixers=True)), BF16, Share()) == PLAIN - EXPERTS
    assert share_bytes(one_layer(Quantization(method="q", scheme=EIGHT, whole=True)), BF16, Share()) == PLAIN // 2
    named = Quantization(method="q", named=(("lm_head", EIGHT),))
    assert share_bytes(one_layer(named), BF16, Share()) == PLAIN - 128 * 64


LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 1024,
    "vocab_size": 1024,
}
MATRICES = 2 * (4 * 512 * 512 + 3 * 512 * 1024)
REST = 2 * (2 * 1024 * 512 + 5 * 512)
CONFIGS: list[tuple[dict[str, Any], int]] = [
    ({"quant_method": "fp8", "weight_block_size": [128, 128]}, MATRICES + MATRICES // 128**2 * 4),
    ({"quant_method": "fp8", "activation_scheme": "static"}, MATRICES + 14 * 8),
    ({"quant_method": "fp8", "activation_scheme": "dynamic"}, MATRICES + 14 * 4),
    ({"quant_method": "fbgemm_fp8"}, MATRICES + 2 * (5 * 512 + 2 * 1024) * 4),
    ({"quant_method": "awq", "bits": 4, "group_size": 128}, MATRICES // 2 + MATRICES // 128 * 5 // 2),
    ({"quant_method": "gptq", "bits": 8, "group_size": 128}, MATRICES + MATRICES // 128 * 3),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True}, MATRICES // 2 + MATRICES // 16),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, MATRICES // 2 + MATRICES // 16 + 14 * 8),
    ({"quant_method": "modelopt", "quant_algo": "FP8"}, MATRICES + 14 * 8),
    (
        {
            "quant_method": "compressed-tensors",
            "config_groups": {
                "group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}}
            },
        },
        MATRICES // 2 + MATRICES // 16,
    ),
    (
        {
            "quant_method": "compressed-tensors",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}},
        },
        MATRICES + 2 * (5 * 512 + 2 * 1024) * 4,
    ),
    ({"quant_method": "mxfp4"}, 2 * MATRICES),
]


@pytest.mark.parametrize(("quantization", "matrices"), CONFIGS, ids=lambda value: value["quant_method"] if isinstance(value, dict) else None)
def test_quantization_of_a_config(quantization: dict[str, Any], matrices: int) -> None:
    spec = read_config({**LLAMA, "quantization_config": quantization})
    assert share_bytes(spec, BF16, Share()) == matrices + REST


def test_a_scheme_that_is_not_known_leaves_the_matrices_as_they_are() -> None:
    spec = read_config({**LLAMA, "quantization_config": {"quant_method": "hqq"}})
    assert spec.quantization == Quantization(method="hqq")


def test_names_of_quantizations_make_smaller_weights() -> None:
    for name, named in BY_NAME.items():
        for model in ("llama-3-8b", "qwen3-30b-a3b"):
            spec = weighed(model)
            stored = spec.model_copy(update={"quantization": named.of(spec)[0]})
            assert share_bytes(stored, BF16, Share()) < share_bytes(spec, BF16, Share()) or (name, model) == ("mxfp4", "llama-3-8b")


def test_adapters_by_hand() -> None:
    """Each matrix of Llama-3-8B gets rank x (features in + out); two GPUs halve the side that they divide."""
    spec = weighed("llama-3-8b")
    both = 2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 14336)
    assert lora_bytes(spec, 1, adapters=1, rank=8) == 2 * 8 * 32 * both
    halved = (4096 + 2048) + 2 * (4096 + 512) + (2048 + 4096) + 2 * (4096 + 7168) + (7168 + 4096)
    assert lora_bytes(spec, 2, adapters=3, rank=8) == 3 * 2 * 8 * 32 * halved


def test_mxfp4_experts_are_padded_for_their_kernels() -> None:
    """gpt-oss-120b: 2880 becomes 2944 wide and 3072 deep; a public log of an H100 has 65.97 GiB."""
    spec = weighed("gpt-oss-120b")
    assert VLLM.loaded(spec, Options()).weights == pytest.approx(65.9651 * 2**30, rel=0.002)
    assert VLLM.loaded(spec, Options()).weights - share_bytes(spec, BF16, Share()) == 36 * 128 * 3 * (2944 * 3072 - 2880 * 2880) * 17 // 32


def test_what_is_not_known_is_said() -> None:
    read = read_config({**LLAMA, "model_type": "qwen2_vl", "vision_config": {}})
    assert (read.facts.parameters, read.facts.parameters_text) == (None, read_config({**LLAMA, "model_type": "qwen2"}).facts.parameters)
    assert any(note.code == "parameters" and "vision_config" in note.text for note in read.notes)
    with pytest.raises(KvcalcError, match="vision_config"):
        VLLM.loaded(read, Options())
    assert VLLM.loaded(read, Options(towers=False)).weights == share_bytes(read, BF16, Share(towers=False))
    unread = read_config({key: value for key, value in LLAMA.items() if key != "vocab_size"})
    assert (unread.facts.parameters, unread.tensors) == (None, ())


def test_recipes_and_towers_belong_to_known_types() -> None:
    assert set(RECIPES) <= {name for name, family in FAMILIES.items() if isinstance(family, Family)}
    assert set(TOWERS) <= set(FAMILIES)
    assert set(CARRIES_MORE) <= set(FAMILIES)


@pytest.mark.parametrize(("model", "name", "file_gb"), [("llama-3-8b", "q8_0", 8.54), ("llama-3-8b", "q4_k_m", 4.92), ("llama-3-70b", "q4_k_m", 42.52)])
def test_gguf_quantizations_by_name(model: str, name: str, file_gb: float) -> None:
    """The sizes of the files that are published under these names, in 10^9 bytes."""
    spec = weighed(model)
    stored, extra_permille = BY_NAME[name].of(spec)
    size_bytes = checkpoint_bytes(spec.model_copy(update={"quantization": stored}), PACKINGS["fp16"]) * (1000 + extra_permille) // 1000
    assert size_bytes == pytest.approx(file_gb * 1e9, rel=0.015)

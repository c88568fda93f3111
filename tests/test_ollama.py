"""The Ollama engine: its defaults, the child's slots, and the Modelfile."""

from typing import Any

import pytest

from kvcalc.catalog import load_model
from kvcalc.engines.base import Device, Options
from kvcalc.engines.llamacpp import LLAMACPP
from kvcalc.engines.ollama import OLLAMA, OllamaPlan, default_context
from kvcalc.errors import ExitCode, KvcalcError
from kvcalc.packing import parse_kv_dtype

GIB = 1 << 30


def options(**choices: Any) -> Options:
    """Options; `kv_dtype` is a name."""
    choices["kv_dtype"] = parse_kv_dtype(choices.get("kv_dtype", "auto"))
    return Options(**choices)


def plan(model: str, **choices: Any) -> OllamaPlan:
    return OLLAMA.plan(load_model(model).spec, options(**choices))


def notes_of(found: OllamaPlan) -> dict[str, str]:
    return {note.code: note.text for note in found.notes}


# Memory and context as public logs print them (total_vram, default_num_ctx), the borders, and the model's own maximum.
@pytest.mark.parametrize(
    ("gib", "train", "tokens"),
    [
        ("11.9", None, 4096),
        ("17.8", 131_072, 4096),
        ("22.0", None, 4096),
        ("23.5", None, 32_768),
        ("23", None, 32_768),
        ("46.9", None, 32_768),
        ("47", None, 262_144),
        ("102.2", 262_144, 262_144),
        ("102.2", 40_960, 40_960),
        ("23.5", 8192, 8192),
        ("8", 2048, 2048),
        ("0", None, 4096),
    ],
)
def test_default_context_follows_the_memory(gib: str, train: int | None, tokens: int) -> None:
    assert default_context(int(float(gib) * GIB), train) == tokens


def test_each_slot_has_the_context_to_itself() -> None:
    """`-c num_ctx x slots -np slots`: Llama-3.1-8B's 131,072 bytes a token, for each slot."""
    assert plan("llama-3.1-8b").need(4000) == (4096 * 131_072,)
    found = plan("llama-3.1-8b", max_seqs=3)
    assert found.need(4000) == (3 * 4096 * 131_072,)
    assert found.token_bytes(4000) == 3 * 131_072
    assert found.max_requests == 3
    assert found.capacity(3 * 4096 * 131_072, 4000) == (3, 3 * 4096)
    assert found.capacity(3 * 4096 * 131_072 - 1, 4000) == (0, 0)
    assert found.resident_bytes(4000, 3) == found.total_bytes(4000, 1) == found.need(4000)[0]
    assert sum(use.size_bytes for use in found.uses(4000)) == found.need(4000)[0]
    assert found.reserved == 0
    assert found.pools[0].unit_bytes == 1
    with pytest.raises(KvcalcError, match="4 requests at once"):
        found.resident_bytes(4000, 4)


def test_a_longer_context_than_the_models_own_is_lowered() -> None:
    """A public log: num_ctx 49,152 of a model trained at 40,960 runs with n_ctx 40,960."""
    found = plan("qwen3-8b")
    assert found.need(49_152) == found.need(40_960) == LLAMACPP.plan(load_model("qwen3-8b").spec, options(max_seqs=1)).need(40_960)
    assert found.token_bytes(40_959) > 0
    assert found.token_bytes(40_960) == 0


@pytest.mark.parametrize(
    ("choices", "tokens", "cells"),
    [
        ({}, 4096, 1536),  # 1,024 of the window and a batch of 512
        ({}, 4097, 2048),  # 1,024
        ({}, 32_768, 2048),
        ({}, 32_769, 3072),  # 2,048
        ({"max_seqs": 2}, 2048, 1536),
        ({"max_seqs": 2}, 2304, 2048),
        ({"ubatch": 256}, 32_768, 1280),
        ({"flash_attention": False}, 32_768, 1536),
        ({"flash_attention": False, "device": Device("8 GB", 86, (8 * GIB,))}, 32_768, 1280),
        ({"flash_attention": False, "device": Device("8 GB", 86, (8 * GIB,))}, 4096, 1536),
        ({"flash_attention": False, "device": Device("24 GB", 86, (24 * GIB,))}, 32_768, 1536),
        ({"flash_attention": False, "device": Device("AMD", None, (8 * GIB,), nvidia=False)}, 32_768, 2048),
    ],
)
def test_batches_follow_the_context_and_windows_follow_them(choices: dict[str, Any], tokens: int, cells: int) -> None:
    """Gemma-3-4B: 29 layers slide, 4 KV heads of 256."""
    found = plan("gemma-3-4b", **choices)
    slots = choices.get("max_seqs", 1)
    sliding = next(use for use in found.uses(tokens) if use.kind == "sliding")
    assert (sliding.layers, sliding.rows) == (29, slots * cells)
    assert sliding.size_bytes == 29 * slots * cells * 2048 * 2


@pytest.mark.parametrize("model", ["qwen3.5-35b-a3b", "qwen3-next-80b-a3b", "qwen3-vl-8b", "lfm2.5-vl-1.6b", "nemotron-3-nano-30b-a3b"])
def test_some_models_have_one_slot_whatever_is_asked(model: str) -> None:
    found = plan(model, max_seqs=4)
    assert found.max_requests == 1
    assert found.need(4096) == plan(model).need(4096)
    assert "OLLAMA_NUM_PARALLEL=4 changes nothing" in notes_of(found)["slots"]
    assert "slots" not in notes_of(plan(model))


def test_an_embedding_model_has_one_slot() -> None:
    spec = load_model("qwen3-0.6b").spec
    spec = spec.model_copy(update={"facts": spec.facts.model_copy(update={"pooling": True})})
    found = OLLAMA.plan(spec, options(max_seqs=2))
    assert found.max_requests == 1
    assert "an embedding model" in notes_of(found)["slots"]


def test_what_is_assumed_is_noted() -> None:
    assert notes_of(plan("llama-3-8b", max_seqs=2))["slots"] == "2 slots (OLLAMA_NUM_PARALLEL) have a cache of num_ctx tokens each"
    assert "down to 512" in notes_of(plan("gemma-3-4b"))["batch"]
    assert "batch" not in notes_of(plan("gemma-3-4b", ubatch=512))
    assert "batch" not in notes_of(plan("llama-3-8b"))
    assert notes_of(plan("llama-3-8b", swa_full=True, unified=True))["unused"] == "ollama does not use --swa-full, --kv-unified"


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("llama-3-8b", {"kv_dtype": "k=q8_0,v=fp16"}, "K and V alike"),
    ("llama-3-8b", {"kv_dtype": "fp8"}, "ollama has no KV cache type fp8"),
    ("llama-3-8b", {"kv_dtype": "q8_0", "flash_attention": False}, "ollama wants flash attention"),
    ("llama-3-8b", {"tp": 2}, "ollama gives whole layers to each GPU"),
    ("opt-125m", {}, "does not know the architecture of opt"),
]


@pytest.mark.parametrize(("model", "choices", "said"), REFUSED)
def test_what_ollama_turns_down_is_refused(model: str, choices: dict[str, Any], said: str) -> None:
    with pytest.raises(KvcalcError) as refused:
        plan(model, **choices)
    assert refused.value.code == ExitCode.UNANSWERABLE
    assert said in refused.value.message


@pytest.mark.parametrize(
    ("model", "choices", "lines"),
    [
        ("m.gguf", {}, ["FROM m.gguf", "PARAMETER num_ctx 8192"]),
        ("ggml-org/gemma-3-4b-it-GGUF", {}, ["FROM hf.co/ggml-org/gemma-3-4b-it-GGUF", "PARAMETER num_ctx 8192"]),
        (
            "meta-llama/Meta-Llama-3-8B",
            {"max_seqs": 2, "kv_dtype": "q8_0"},
            [
                "export OLLAMA_NUM_PARALLEL=2 OLLAMA_KV_CACHE_TYPE=q8_0 OLLAMA_FLASH_ATTENTION=1",
                "FROM MODEL.gguf",
                "PARAMETER num_ctx 8192",
            ],
        ),
        (
            "m.gguf",
            {"flash_attention": False, "ubatch": 256, "gpu_layers": 20},
            ["export OLLAMA_FLASH_ATTENTION=0", "FROM m.gguf", "PARAMETER num_ctx 8192", "PARAMETER num_batch 256", "PARAMETER num_gpu 20"],
        ),
        ("m.gguf", {"kv_dtype": "bf16"}, ["export OLLAMA_KV_CACHE_TYPE=bf16", "FROM m.gguf", "PARAMETER num_ctx 8192"]),
    ],
)
def test_the_modelfile_names_what_is_not_the_default(model: str, choices: dict[str, Any], lines: list[str]) -> None:
    assert plan("llama-3-8b", **choices).command(model, 8192, None, None).splitlines() == lines


def test_no_modelfile_for_an_encoder_decoder() -> None:
    assert plan("t5-base").command("m.gguf", 512, None, None) == ""


def test_other_slots_are_a_cause_of_their_own() -> None:
    found = plan("llama-3.1-8b", max_seqs=3)
    assert dict(found.surplus(4096)) == {"cells of the other slots": 2 * 4096 * 131_072}


def test_the_rest_is_that_of_the_child() -> None:
    spec = load_model("llama-3-8b").weighed()
    assert OLLAMA.loaded(spec, options()) == LLAMACPP.loaded(spec, options())
    assert OLLAMA.overheads(spec, options(max_seqs=2), 4096).activation == LLAMACPP.overheads(spec, options(max_seqs=2, ubatch=1024), 8192).activation
    assert OLLAMA.utilization(spec, options(), 24 * GIB) == 1
    assert plan("mamba-2.8b", max_seqs=2).fixed_bytes() == 2 * 64 * 5120 * (3 + 16) * 4
    assert str(plan("llama-3-8b").kv_dtype) == "fp16"

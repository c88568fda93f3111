"""The estimate: its parts add up, its formula is true, its options do what they say."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcalc.caches import attention, index_keys, latent
from kvcalc.catalog import find_preset
from kvcalc.engines.base import Options, pipeline_stages
from kvcalc.engines.ideal import IDEAL
from kvcalc.errors import ExitCode, KvcalcError
from kvcalc.estimate import estimate
from kvcalc.layers import Facts, Layer, ModelSpec
from kvcalc.packing import PACKINGS, KvDtype, parse_kv_dtype
from kvcalc.results.estimate import Estimate
from tests.test_golden import by_hand


def spec_of(name: str) -> ModelSpec:
    preset = find_preset(name)
    assert preset is not None
    return preset.spec()


def run(spec: ModelSpec, context: int = 4096, batch: int = 1, **options: Any) -> Estimate:
    return estimate(spec, IDEAL, Options(**options), name="model", source="test", context=context, batch=batch)


full = st.builds(
    lambda kv, group, width: attention(kv_heads=kv, query_heads=kv * group, head_dim=width), st.integers(1, 16), st.integers(1, 8), st.integers(1, 256)
)
windowed = st.builds(
    lambda kv, width, window: attention(kv_heads=kv, query_heads=kv, head_dim=width, window=window), st.integers(1, 8), st.integers(1, 99), st.integers(1, 999)
)
uneven = st.builds(lambda kv, k, v: attention(kv_heads=kv, query_heads=kv, k_dim=k, v_dim=v), st.integers(1, 8), st.integers(1, 99), st.integers(1, 99))
latents = st.builds(lambda rank, rope: latent(rank=rank, rope=rope, query_heads=8, k_dim=64, v_dim=64), st.integers(1, 600), st.integers(0, 64))
keys = st.builds(lambda width: index_keys(width=width), st.integers(1, 256))
layers = st.builds(lambda caches: Layer(caches=tuple(caches)), st.lists(st.one_of(full, windowed, uneven, latents, keys), max_size=2))
specs = st.builds(lambda each: ModelSpec(layers=tuple(each)), st.lists(layers, min_size=1, max_size=12))
dtypes = st.builds(KvDtype, st.sampled_from(sorted(PACKINGS)), st.sampled_from(sorted(PACKINGS)))


@given(specs, dtypes, st.integers(1, 5000), st.integers(1, 9))
def test_parts_add_up_and_the_formula_is_true(spec: ModelSpec, dtype: KvDtype, context: int, batch: int) -> None:
    result = run(spec, context, batch, kv_dtype=dtype)
    assert sum(row.bytes for row in result.layers) == result.request_bytes
    assert result.total_bytes == result.bytes_per_gpu == batch * result.request_bytes
    assert by_hand(result.formula.replace(",", "").replace(" x ", " * ")) == result.bytes_per_gpu


@given(specs, st.integers(1, 3000))
def test_one_more_token_costs_what_it_says(spec: ModelSpec, context: int) -> None:
    assert run(spec, context + 1).request_bytes - run(spec, context).request_bytes == run(spec, context).token_bytes


@given(specs, st.integers(1, 2000), st.integers(1, 2000))
def test_bytes_never_shrink_with_the_context(spec: ModelSpec, context: int, more: int) -> None:
    assert run(spec, context).request_bytes <= run(spec, context + more).request_bytes


@given(specs, st.integers(1, 2000), st.integers(1, 12))
def test_stages_share_all_layers_and_the_fullest_binds(spec: ModelSpec, context: int, pp: int) -> None:
    whole = run(spec, context)
    if pp > len(spec.layers):
        with pytest.raises(KvcalcError, match="more than the"):
            run(spec, context, pp=pp)
        return
    split = run(spec, context, pp=pp)
    assert split.total_bytes == whole.total_bytes
    assert whole.total_bytes <= pp * split.bytes_per_gpu


@pytest.mark.parametrize(("count", "pp", "sizes"), [(61, 4, [15, 15, 16, 15]), (62, 4, [15, 16, 16, 15]), (8, 2, [4, 4]), (7, 2, [4, 3]), (3, 3, [1, 1, 1])])
def test_stages_are_vllms(count: int, pp: int, sizes: list[int]) -> None:
    assert [len(stage) for stage in pipeline_stages((Layer(),) * count, pp)] == sizes


@given(specs, st.integers(1, 2000))
def test_one_gpu_of_everything_is_the_identity(spec: ModelSpec, context: int) -> None:
    assert run(spec, context) == run(spec, context, tp=1, pp=1, dp=1, dcp=1)


def test_heads_are_divided_then_copied() -> None:
    spec = spec_of("llama-3-8b")
    assert run(spec, 8192, tp=4).bytes_per_gpu == (1 << 30) // 4
    assert run(spec, 8192, tp=4).total_bytes == 1 << 30
    assert run(spec, 8192, tp=16).bytes_per_gpu == (1 << 30) // 8
    assert run(spec, 8192, tp=16).total_bytes == 2 << 30
    with pytest.raises(KvcalcError, match="--tp 3 neither divides the 8 KV heads"):
        run(spec, tp=3)


def test_latents_and_index_keys_are_copied_to_every_gpu() -> None:
    spec = ModelSpec(layers=(Layer(caches=(latent(rank=512, rope=64), index_keys(width=128))),))
    assert run(spec, 1000, tp=8).bytes_per_gpu == 1000 * (512 + 64 + 128) * 2
    assert run(spec, 1000, tp=8).total_bytes == 8 * run(spec, 1000).total_bytes


def test_replicas_hold_a_batch_each() -> None:
    spec = spec_of("llama-3-8b")
    assert run(spec, 8192, batch=2, dp=4).total_bytes == 8 << 30
    assert run(spec, 8192, batch=2, dp=4).bytes_per_gpu == 2 << 30


def test_decode_context_parallelism_divides_what_would_be_copied() -> None:
    spec = ModelSpec(layers=(Layer(caches=(latent(rank=512),)),))
    assert run(spec, 1001, tp=8, dcp=8).bytes_per_gpu == 126 * 512 * 2
    assert run(spec_of("llama-3-8b"), 8192, tp=16, dcp=2).bytes_per_gpu == run(spec_of("llama-3-8b"), 4096, tp=16).bytes_per_gpu
    with pytest.raises(KvcalcError, match="--dcp 2 wants 2 GPUs that hold the same tokens"):
        run(spec_of("llama-3-8b"), tp=8, dcp=2)


def test_a_mixed_dtype_costs_each_side_its_own() -> None:
    spec = spec_of("llama-3-8b")
    assert run(spec, 4096, kv_dtype=parse_kv_dtype("k=q8_0,v=q4_0")).total_bytes == 32 * 4096 * 8 * (4 * 34 + 4 * 18)
    assert run(spec, 4096, kv_dtype=parse_kv_dtype("k=q8_0,v=q4_0")).kv_dtype == "k=q8_0,v=q4_0"


AUTO = [
    (Facts(dtype="bf16"), "bf16", []),
    (Facts(dtype="fp16"), "fp16", []),
    (Facts(dtype="fp32"), "bf16", ["dtype"]),
    (Facts(), "bf16", ["dtype"]),
    (Facts(dtype="bf16", kv_dtype="fp8_e4m3"), "fp8_e4m3", ["kv-dtype"]),
]


@pytest.mark.parametrize(("facts", "dtype", "codes"), AUTO)
def test_auto(facts: Facts, dtype: str, codes: list[str]) -> None:
    spec = ModelSpec(layers=(Layer(caches=(attention(kv_heads=1, head_dim=32),)),), facts=facts)
    result = run(spec, 10)
    assert result.kv_dtype == dtype
    assert [note.code for note in result.notes] == codes
    assert run(spec, 10, kv_dtype=parse_kv_dtype("int8")).kv_dtype == "int8"
    assert run(spec, 10, kv_dtype=parse_kv_dtype("int8")).notes == ()


def test_a_context_beyond_the_models_own_is_answered_with_a_note() -> None:
    result = run(spec_of("llama-3-8b"), 8193)
    assert [note.text for note in result.notes] == ["8,193 tokens are more than the 8,192 that the model is made for"]


def test_a_head_that_does_not_fill_its_blocks_is_noted() -> None:
    spec = ModelSpec(layers=(Layer(caches=(attention(kv_heads=1, head_dim=80),)),), facts=Facts(dtype="bf16"))
    result = run(spec, 1, kv_dtype=parse_kv_dtype("q8_0"))
    assert result.total_bytes == 2 * 3 * 34
    assert [note.code for note in result.notes] == ["padding"]


def test_what_sharing_heads_saves() -> None:
    grouped = run(spec_of("llama-3-8b"), 8192).per_query_head
    assert grouped is not None
    assert (grouped.query_heads, grouped.attention_bytes, grouped.expanded_bytes) == (32, 1 << 30, 4 << 30)
    spec = ModelSpec(layers=(Layer(caches=(latent(rank=512, rope=64, query_heads=128, k_dim=192, v_dim=128), index_keys(width=128))),) * 61)
    compressed = run(spec, 1).per_query_head
    assert compressed is not None
    assert (compressed.attention_bytes, compressed.expanded_bytes) == (70_272, 61 * 128 * (192 + 128) * 2)
    assert run(ModelSpec(layers=(Layer(caches=(attention(kv_heads=1, head_dim=2),)),))).per_query_head is None


def test_where_the_plain_formula_is_wrong_is_said_with_the_size_of_it() -> None:
    plain = run(spec_of("llama-3-8b"), 8192)
    assert plain.plain_formula_bytes == plain.total_bytes
    assert plain.notes == ()
    windowed = ModelSpec(
        layers=(Layer(caches=(attention(kv_heads=8, head_dim=64, window=128),)), Layer(caches=(attention(kv_heads=8, head_dim=64),))) * 12,
        facts=Facts(dtype="bf16"),
    )
    result = run(windowed, 32768)
    assert result.plain_formula_bytes == 2 * 24 * 32768 * 8 * 64 * 2
    (note,) = result.notes
    assert note.text == "2 L n H_kv d_h b alone gives 1.50 GiB, 1.99x too high: 12 layers keep only the last 128 tokens"
    assert run(windowed, 128).notes == ()
    odd = ModelSpec(
        layers=(Layer(caches=(attention(kv_heads=8, head_dim=64),)), Layer(caches=(attention(kv_heads=4, head_dim=64),))), facts=Facts(dtype="bf16")
    )
    (note,) = run(odd).notes
    assert note.text == "2 L n H_kv d_h b cannot be written for this model: its layers differ in heads or widths"


def test_layers_that_read_another_cost_nothing_and_are_shown() -> None:
    own = Layer(caches=(attention(kv_heads=1, head_dim=2),))
    result = run(ModelSpec(layers=(own, Layer(reads=0), Layer(reads=0)), facts=Facts(dtype="bf16")), 10)
    assert result.total_bytes == 80
    assert [(row.kind, row.count, row.bytes) for row in result.layers] == [("full", 1, 80), ("shared", 2, 0)]


def test_a_reading_layer_must_read_an_earlier_cache() -> None:
    own = Layer(caches=(attention(kv_heads=1, head_dim=2),))
    for broken in ((Layer(reads=0), own), (own, Layer(), Layer(reads=1)), (own, Layer(reads=5))):
        with pytest.raises(ValueError, match="is not an earlier layer with a cache"):
            ModelSpec(layers=broken)


def test_cross_attention_counts_the_encoders_tokens() -> None:
    cross = ModelSpec(layers=(Layer(caches=(attention(kv_heads=2, head_dim=4, cross=True),)),), facts=Facts(dtype="bf16"))
    assert run(cross, 10, encoder_tokens=100).total_bytes == 100 * 2 * 2 * 4 * 2
    assert run(cross, 10, encoder_tokens=100).fixed_bytes == 3200
    assert run(cross, 10).total_bytes == 0
    assert run(cross, 10).notes[0].code == "encoder-tokens"
    own = cross.model_copy(update={"facts": Facts(dtype="bf16", encoder_tokens=1500)})
    assert run(own, 10).total_bytes == 1500 * 32


def test_draft_layers_count_once_when_asked_for() -> None:
    layer = Layer(caches=(attention(kv_heads=1, head_dim=2),))
    spec = ModelSpec(layers=(layer,) * 3, draft_layers=(layer,))
    assert run(spec, 10).total_bytes == 3 * 80
    assert run(spec, 10, draft_layers=True).total_bytes == 4 * 80
    with pytest.raises(KvcalcError, match="no draft") as refused:
        run(ModelSpec(layers=(layer,)), 10, draft_layers=True)
    assert refused.value.code == ExitCode.UNANSWERABLE

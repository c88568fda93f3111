"""How quantizations store matrices: the schemes, and what the name of one alone tells."""

from typing import Final, NamedTuple

from kvcalc.tensors import Quantization, Scheme, WeighedModel

FP8_TENSOR: Final = Scheme(name="fp8", bits=8, scale_bytes=4)
FP8_STATIC: Final = Scheme(name="fp8", bits=8, scale_bytes=4, tensor_bytes=4)
FP8_ROW: Final = Scheme(name="fp8", bits=8, per="row", scale_bytes=4)
NVFP4: Final = Scheme(name="nvfp4", bits=4, per="block", block_columns=16, scale_bytes=1, tensor_bytes=8)
MXFP4: Final = Scheme(name="mxfp4", bits=4, per="block", block_columns=32, scale_bytes=1)
BNB_4BIT: Final = Scheme(name="bnb-4bit", bits=4, per="block", block_columns=64, scale_bytes=4)
INT8_ROW: Final = Scheme(name="int8", bits=8, per="row", scale_bytes=4)
Q8_0: Final = Scheme(name="q8_0", bits=8, per="block", block_columns=32, scale_bytes=2)
Q4_K: Final = Scheme(name="q4_k", bits=4, per="block", block_columns=256, scale_bytes=16)
"""Block sizes and scales: vllm/model_executor/layers/quantization (0.33.0), fp8.py, modelopt.py, mxfp4.py, bitsandbytes.py; those of GGUF:
ggml/src/ggml-common.h (llama.cpp 0c1e57098)."""


def fp8_block(rows: int, columns: int, scale_bytes: int = 4) -> Scheme:
    """FP8 with a scale for each block, as DeepSeek-V3."""
    return Scheme(name="fp8", bits=8, per="block", block_rows=rows, block_columns=columns, scale_bytes=scale_bytes)


def grouped_int(bits: int, group: int, *, zeros: bool, name: str) -> Scheme:
    """Whole numbers with a 16-bit scale, and with `zeros` a zero point, for each group along a row: AWQ, GPTQ, pack-quantized."""
    return Scheme(name=name, bits=bits, per="block", block_columns=group, scale_bytes=2, zero_bits=bits if zeros else 0)


class Named(NamedTuple):
    """What the name of a quantization alone tells: the form in which most checkpoints of that name are published, of models with experts apart where
    it differs, and by how many thousandths more a server reports than the plain form's tensors are.
    """

    plain: Quantization
    with_experts: Quantization | None = None
    extra_permille: int = 0

    def of(self, spec: WeighedModel) -> tuple[Quantization, int]:
        """The form for a model, and those thousandths."""
        if self.with_experts is not None and any(tensor.role == "expert" for tensor in spec.tensors):
            return self.with_experts, 0
        return self.plain, self.extra_permille


def _kept_drafts(
    method: str, scheme: Scheme | None, experts: Scheme | None = None, mixers: Scheme | None = None, *, keeps_mixers: bool = False
) -> Quantization:
    return Quantization(method=method, scheme=scheme, experts=experts, mixers=mixers, keeps_mixers=keeps_mixers, drafts=False)


INT_EXTRA_PERMILLE: Final = 14
"""Of integer weights repacked for their kernels: five public logs of dense AWQ and INT4 checkpoints lie 0.6 to 2.4 % above their tensors."""

Q4_K_M_EXTRA_PERMILLE: Final = 80
"""Of the matrices that Q4_K_M stores in 6 bits (llama_tensor_get_type, src/llama-quant.cpp): files of Llama-3-8B and 70B are 8.9 and 7.2 % above Q4_K."""

BY_NAME: Final[dict[str, Named]] = {
    "awq": Named(
        _kept_drafts("awq", grouped_int(4, 128, zeros=True, name="awq")),
        _kept_drafts("awq", grouped_int(4, 32, zeros=False, name="awq"), keeps_mixers=True),
        INT_EXTRA_PERMILLE,
    ),
    "gptq": Named(_kept_drafts("gptq", grouped_int(4, 128, zeros=True, name="gptq")), None, INT_EXTRA_PERMILLE),
    "int4": Named(
        _kept_drafts("int4", grouped_int(4, 128, zeros=False, name="int4")),
        _kept_drafts("int4", None, grouped_int(4, 32, zeros=True, name="int4")),
        INT_EXTRA_PERMILLE,
    ),
    "int8": Named(_kept_drafts("int8", INT8_ROW)),
    "fp8": Named(Quantization(method="fp8", scheme=fp8_block(128, 128))),
    "nvfp4": Named(_kept_drafts("nvfp4", NVFP4, mixers=FP8_TENSOR)),
    "mxfp4": Named(_kept_drafts("mxfp4", None, MXFP4)),
    "bnb-4bit": Named(_kept_drafts("bnb-4bit", BNB_4BIT)),
    "q8_0": Named(Quantization(method="q8_0", scheme=Q8_0, whole=True)),
    "q4_k_m": Named(Quantization(method="q4_k_m", scheme=Q4_K, whole=True), None, Q4_K_M_EXTRA_PERMILLE),
}
"""Experts alone, or with the MLPs, in groups of 32 beside 16-bit attention; FP8 attention beside NVFP4; draft layers in 16 bits: as the checkpoints
of RedHatAI, cyankiwi, poolside, unsloth and NVIDIA in public logs."""

"""A running server beside its prediction: answers as the three kinds give them, on loopback, and answers as nobody should."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from decimal import Decimal
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from kvcalc.asking.deployment import options_of
from kvcalc.budget import Asked, Question
from kvcalc.catalog import load_model
from kvcalc.cli.budget import BUDGET
from kvcalc.cli.options import DEPLOYMENT, MODEL
from kvcalc.engines import find_engine
from kvcalc.engines.vllm.versions import modelled_engine
from kvcalc.errors import ExitCode, KvcalcError
from kvcalc.packing import KvDtype
from kvcalc.results.fit import GpuInfo
from kvcalc.results.verify import Check, Verified
from kvcalc.verify import web
from kvcalc.verify.log_config import parsed
from kvcalc.verify.server import LlamaCppFacts, ServerFacts, SglangFacts, VllmFacts, find_served, options_from, read_server, verify_server
from tests.loopback import listening

KEY = "sk-no-one-may-read-this"

# Figures of a server that a public project's tests repeat as it said them: vLLM 0.28, a Qwen hybrid of 27B, a stated pool of 10 GiB.
VLLM_CONFIG = (
    'vllm:cache_config_info{_block_size_resolved="True",block_size="784",cache_dtype="auto",enable_prefix_caching="True",engine="0",'
    'gpu_memory_utilization="0.45",hash_block_size="None",kv_cache_dtype_skip_layers="[]",kv_cache_max_concurrency="4.333333333333333",'
    'kv_cache_memory_bytes="10737418240",kv_cache_size_tokens="141994",mamba_block_size="None",mamba_ssm_cache_dtype="auto",num_gpu_blocks="208",'
    'num_gpu_blocks_override="None",sliding_window="None",user_specified_block_size="False"} 1.0\n'
)
VLLM_LIVE = (
    "# HELP vllm:num_requests_running Number of requests in model execution batches.\n"
    'vllm:num_requests_running{engine="0",model_name="served"} 2.0\n'
    'vllm:num_requests_waiting{engine="0",model_name="served"} 1.0\n'
)
VLLM_USED = 'vllm:kv_cache_usage_perc{engine="0",model_name="served"} 0.5\n'

# The example of SGLang's documentation (docs/basic_usage/native_api): Qwen2.5-0.5B in 20,480 tokens; arguments that change nothing here are left out.
SGLANG_ARGUMENTS = {
    "model_path": "qwen/qwen2.5-0.5b-instruct",
    "context_length": None,
    "kv_cache_dtype": "auto",
    "mem_fraction_static": 0.907,
    "max_running_requests": 128,
    "max_total_tokens": 20480,
    "chunked_prefill_size": 8192,
    "page_size": 1,
    "swa_full_tokens_ratio": 0.8,
    "tp_size": 1,
    "pp_size": 1,
    "dp_size": 1,
    "served_model_name": "qwen/qwen2.5-0.5b-instruct",
    "speculative_algorithm": None,
    "mamba_ssm_dtype": None,
    "mamba_full_memory_ratio": 0.9,
    "disable_radix_cache": False,
    "disable_cuda_graph": True,
    "enable_dp_attention": False,
}
SGLANG_INFO = {
    **SGLANG_ARGUMENTS,
    "status": "ready",
    "max_total_num_tokens": 20480,
    "max_req_input_len": 20474,
    "internal_states": [
        {
            **SGLANG_ARGUMENTS,
            "last_gen_throughput": 129.33290871063787,
            "memory_usage": {"weight": 0.98, "kvcache": 0.23, "token_capacity": 20480, "graph": 0},
            "effective_max_running_requests_per_dp": 128,
        }
    ],
    "version": "0.0.0.dev1+gf97c09dac",
}
SGLANG_METRICS = "".join(
    f'sglang:{name}{{engine_type="unified",model_name="served",tp_rank="{rank}"}} {value}\n'
    for name, value in (("num_used_tokens", 4096.0), ("num_running_reqs", 2.0), ("num_queue_reqs", 0.0), ("token_usage", 0.2))
    for rank in (0, 1)
)

# The examples of llama.cpp's tools/server/README.md.
LLAMA_PROPS = {
    "default_generation_settings": {"id": 0, "id_task": -1, "n_ctx": 8192, "speculative": False, "is_processing": False, "params": {"n_predict": -1}},
    "total_slots": 2,
    "model_path": "../models/Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf",
    "chat_template": "...",
    "modalities": {"vision": False},
    "build_info": "b6850-0d161f021",
    "endpoint_slots": True,
}
LLAMA_MODELS = {
    "object": "list",
    "data": [
        {
            "id": "../models/Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf",
            "object": "model",
            "owned_by": "llamacpp",
            "meta": {"vocab_type": 2, "n_vocab": 128256, "n_ctx_train": 131072, "n_embd": 4096, "n_params": 8030261312, "size": 4912898304},
        }
    ],
}
LLAMA_SLOTS = [
    {"id": 0, "n_ctx": 8192, "is_processing": True, "id_task": 7, "n_prompt_tokens": 1100, "next_token": [{"n_decoded": 100, "n_remain": -1}]},
    {"id": 1, "n_ctx": 8192, "speculative": False, "is_processing": False, "n_prompt_tokens": 500},
]


def models_of_vllm(**fields: Any) -> dict[str, Any]:
    return {"object": "list", "data": [{"id": "served", "object": "model", "owned_by": "vllm", "root": "Qwen/Qwen3.5-27B", "parent": None, **fields}]}


@dataclass
class Page:
    """What to say to a request: a body, or a function that writes one as it likes."""

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    write: Callable[[Any, threading.Event], None] | None = None


@dataclass
class Server:
    """Pages by path, which of them want the key, and what was asked."""

    url: str
    pages: dict[str, Page] = field(default_factory=dict)
    guarded: set[str] = field(default_factory=set)
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)

    def add(self, path: str, body: Any, **how: Any) -> None:
        data = body if isinstance(body, bytes) else body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.pages[path] = Page(data, **how)


def handler(server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            sent = self.headers.get("authorization")
            server.asked.append((self.command, self.path, sent))
            page = server.pages.get(self.path, Page(b'{"detail":"Not Found"}', 404))
            if self.path in server.guarded and sent != f"Bearer {KEY}":
                page = Page(f"no: {sent}".encode(), 401)
            with suppress(OSError):
                self.send_response(page.status)
                for name, value in page.headers.items():
                    self.send_header(name, value)
                if page.write is None and "Content-Length" not in page.headers:
                    self.send_header("Content-Length", str(len(page.body)))
                self.end_headers()
                if page.write is None:
                    self.wfile.write(page.body)
                else:
                    page.write(self.wfile, server.stop)

        def log_message(self, *_: Any) -> None:
            """Silence: a test's output is its own."""

    return Handler


@contextmanager
def serving() -> Iterator[Server]:
    server = Server("")
    with listening(handler(server), server.stop) as server.url:
        yield server


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as found:
        yield found


@pytest.fixture
def vllm(server: Server) -> Server:
    server.add("/metrics", VLLM_CONFIG + VLLM_LIVE + VLLM_USED)
    server.add("/v1/models", models_of_vllm(max_model_len=32768))
    server.add("/version", {"version": "0.28.1"})
    return server


@pytest.fixture
def sglang(server: Server) -> Server:
    server.add("/server_info", SGLANG_INFO)
    server.add("/metrics", SGLANG_METRICS)
    server.add("/v1/models", {"object": "list", "data": [{"id": "qwen/qwen2.5-0.5b-instruct", "owned_by": "sglang", "max_model_len": 32768}]})
    return server


@pytest.fixture
def llamacpp(server: Server) -> Server:
    server.add("/props", LLAMA_PROPS)
    server.add("/slots", LLAMA_SLOTS)
    server.add("/v1/models", LLAMA_MODELS)
    return server


def question(facts: ServerFacts, model: str | None = None, gpu_mem: int | None = None, **stated: Any) -> Question:
    """As the command asks: what the server tells, and above it what is typed."""
    typed = {name: default for group in (MODEL, DEPLOYMENT, BUDGET) for name, (_, default) in group.items()} | options_from(facts) | stated
    rules = find_engine(typed["engine"])
    name = model or find_served(facts)
    assert name is not None
    found = load_model(name)
    asked = Asked(found.name, found.source, found.served_as, typed["context"], 1)
    utilization = typed["utilization"] or typed["mem_fraction_static"]
    gpu = GpuInfo(name=None, memory_bytes=gpu_mem, used_bytes=gpu_mem)
    return Question(found.weighed(), rules, options_of(typed, None, rules.name), asked, gpu, kv_bytes=typed["kv_mem"], utilization=utilization)


def by_name(verified: Verified) -> dict[str, Check]:
    return {check.name: check for check in verified.checks}


def figures(verified: Verified) -> dict[str, tuple[object, object]]:
    return {check.name: (check.predicted, check.measured) for check in verified.checks}


def refused(url: str, api_key: str | None = None) -> KvcalcError:
    """The error of a server that is not read: one line, and no key in it."""
    with pytest.raises(KvcalcError) as caught:
        read_server(url, api_key)
    error = caught.value
    said = f"{error.message} {error.hint}"
    assert said.isprintable()
    assert len(said) < 400
    assert KEY not in said
    assert error.__context__ is None or error.__suppress_context__
    return error


# vLLM


def test_vllm_agrees_with_a_public_server(vllm: Server) -> None:
    facts = read_server(vllm.url, None)
    verified = verify_server(facts, question(facts))
    assert verified.ok
    assert figures(verified) == {
        "block": (784, 784),
        "blocks": (208, 208),
        "KV cache": (208 * 51380224, 208 * 51380224),
        "tokens": (141994, 141994),
        "concurrency": (pytest.approx(4.333333333333333), 4.333333333333333),
        "in use": (None, 70997),  # 104 of the 208 blocks: half of the 207 that requests can have
        "headroom": (None, 2),  # 104 blocks, of 48 each
    }
    assert "2 running, 1 waiting" in by_name(verified)["in use"].explanation
    assert {request[:2] for request in vllm.asked} == {("GET", "/metrics"), ("GET", "/v1/models"), ("GET", "/version")}


@pytest.mark.parametrize(
    ("release", "engine"),
    [
        ("0.11.2", "vllm@0.11"),
        ("v0.11", "vllm@0.11"),
        ("0.28.1rc2.dev3+g1a2b3c4", "vllm@0.28"),
        ("0.11rc1", "vllm@0.11"),
        ("0.34.0", None),
        ("0.0111", None),
        ("0.1.dev17", None),
        ("1.0.0", None),
        ("nightly", None),
        (None, None),
    ],
)
def test_a_release_is_asked_for_where_it_is_modelled(release: str | None, engine: str | None) -> None:
    """Alike for a server and a log."""
    assert modelled_engine(release) == engine
    assert parsed("vllm", release, {})["engine"] == (engine or "vllm")


def test_vllm_tells_its_options(vllm: Server) -> None:
    facts = read_server(f"{vllm.url}/v1/", None)
    found = options_from(facts)
    assert found == {"engine": "vllm@0.28", "context": 32768, "kv_dtype": ("auto", "auto"), "kv_mem": 10737418240}
    assert find_served(facts) == "qwen3.5-27b"


def test_vllm_with_other_settings(vllm: Server) -> None:
    config = VLLM_CONFIG.replace('"784"', '"32"').replace('user_specified_block_size="False"', 'user_specified_block_size="True"')
    config = config.replace('"10737418240"', '"None"').replace('cache_dtype="auto",e', 'cache_dtype="fp8",e').replace('caching="True"', 'caching="False"')
    vllm.add("/metrics", config.replace('mamba_ssm_cache_dtype="auto"', 'mamba_ssm_cache_dtype="float32"'))
    vllm.add("/version", {"version": "0.40.2"})
    assert options_from(read_server(vllm.url, None)) == {
        "engine": "vllm",
        "context": 32768,
        "kv_dtype": ("fp8", "fp8"),
        "block_size": 32,
        "mamba_ssm_cache_dtype": "fp32",
        "no_prefix_caching": True,
        "utilization": Decimal("0.45"),
    }


def test_vllm_disagrees(vllm: Server) -> None:
    """The same figures about another model: every one of them is wrong, and says by how much."""
    facts = read_server(vllm.url, None)
    verified = verify_server(facts, question(facts, "qwen3-8b"))
    assert not verified.ok
    wrong = {check.name: check.difference for check in verified.checks if not check.ok}
    assert wrong["block"] == 784 - 16
    assert wrong["blocks"] == 208 - 10737418240 // (2 * 36 * 8 * 128 * 2 * 16)
    assert wrong.keys() == {"block", "blocks", "KV cache", "tokens", "concurrency"}


def test_vllm_by_a_gpu(vllm: Server) -> None:
    """Blocks by an estimate have bounds; that the server itself fills the GPU is no reason to refuse."""
    unstated = VLLM_CONFIG.replace('"10737418240"', '"None"')
    vllm.add("/metrics", unstated.replace('"208"', '"5"'))
    facts = read_server(vllm.url, None)
    blocks = by_name(verify_server(facts, question(facts, gpu_mem=200 << 30)))["blocks"]
    assert isinstance(blocks.predicted, int)
    assert not blocks.ok
    assert "--tp" in blocks.explanation
    # 0.45 of the memory, less 27.36 billion parameters in 16 bits, in blocks of 49 MiB.
    assert 200 * 0.45 * 1024 / 49 - 54.72e9 / 51380224 - 150 < blocks.predicted < 200 * 0.45 * 1024 / 49 - 54.72e9 / 51380224
    vllm.add("/metrics", unstated.replace('"208"', f'"{blocks.predicted + 1}"'))
    facts = read_server(vllm.url, None)
    found = by_name(verify_server(facts, question(facts, gpu_mem=200 << 30)))
    assert (found["blocks"].ok, found["blocks"].difference, found["KV cache"].difference) == (True, 1, 51380224)


def test_nothing_to_compare(vllm: Server) -> None:
    vllm.add("/metrics", 'vllm:cache_config_info{cache_dtype="auto",num_gpu_blocks="None"} 1.0\n')
    facts = read_server(vllm.url, None)
    with pytest.raises(KvcalcError, match="no figure that can be compared"):
        verify_server(facts, question(facts))


def test_another_context_than_the_server_has(vllm: Server) -> None:
    facts = read_server(vllm.url, None)
    verified = verify_server(facts, question(facts, context=4096))
    assert verified.ok
    assert "context" in {note.code for note in verified.notes}


def test_vllm_without_a_budget_says_so(vllm: Server) -> None:
    vllm.add("/metrics", VLLM_CONFIG.replace('"10737418240"', '"None"'))
    facts = read_server(vllm.url, None)
    verified = verify_server(facts, question(facts))
    assert verified.ok
    assert figures(verified)["blocks"] == (None, 208)
    assert "gpu" in {note.code for note in verified.notes}
    assert "in use" not in by_name(verified)


def test_vllm_replicas_share_the_sum_of_blocks(vllm: Server) -> None:
    one = VLLM_CONFIG.replace('"208"', '"416"')
    used = VLLM_USED + VLLM_USED.replace('engine="0"', 'engine="1"').replace("0.5", "0.25")
    vllm.add("/metrics", one + one.replace('engine="0"', 'engine="1"') + VLLM_LIVE + VLLM_LIVE.replace('engine="0"', 'engine="1"') + used)
    facts = read_server(vllm.url, None)
    assert isinstance(facts, VllmFacts)
    assert (facts.engines, facts.blocks, facts.running, facts.used) == (2, 208, 4, Decimal("0.375"))
    assert verify_server(facts, question(facts)).ok


def test_vllm_before_the_usage_was_renamed(vllm: Server) -> None:
    """A release that tells neither tokens nor concurrency, as public pages show its line (Qwen3-32B, 573 blocks)."""
    vllm.add(
        "/metrics",
        'vllm:cache_config_info{block_size="16",cache_dtype="auto",calculate_kv_scales="False",cpu_offload_gb="0",enable_prefix_caching="True",'
        'gpu_memory_utilization="0.82",is_attention_free="False",num_cpu_blocks="1024",num_gpu_blocks="573",num_gpu_blocks_override="573",'
        'sliding_window="None",swap_space_bytes="4294967296"} 1.0\n'
        'vllm:gpu_cache_usage_perc{model_name="qwen3-32b"} 0.0\n',
    )
    vllm.add("/v1/models", models_of_vllm(root="/models/Qwen3-32B", max_model_len=8192))
    vllm.add("/version", {"version": "0.9.2"})
    facts = read_server(vllm.url, None)
    assert find_served(facts) == "qwen3-32b"
    verified = verify_server(facts, question(facts))
    assert verified.ok
    assert figures(verified)["tokens"] == (573 * 16, None)
    assert figures(verified)["headroom"] == (None, 1)
    assert "blocks" in {note.code for note in verified.notes}


# SGLang


def test_sglang_agrees_with_its_documentation(sglang: Server) -> None:
    facts = read_server(sglang.url, None)
    assert find_served(facts) == "qwen2.5-0.5b"
    verified = verify_server(facts, question(facts))
    assert verified.ok
    found = figures(verified)
    assert found["tokens"] == (20480, 20480)
    # 24 layers of 2 heads of 64, K and V in 16 bits, and one page more.
    assert found["KV cache"][0] == 24 * 2 * 2 * 64 * 2 * 20481
    assert found["running"] == (128, 128)
    assert found["in use"] == (None, 4096)  # both GPUs of a group publish the same
    assert found["headroom"] == (None, 0)


def test_sglang_tells_its_options(sglang: Server) -> None:
    sglang.add(
        "/server_info", {**SGLANG_INFO, "tp_size": 2, "dp_size": 2, "enable_dp_attention": True, "disable_radix_cache": True, "kv_cache_dtype": "fp8_e4m3"}
    )
    assert options_from(read_server(sglang.url, None)) == {
        "engine": "sglang",
        "context": 32768,
        "kv_dtype": ("fp8_e4m3", "fp8_e4m3"),
        "tp": 2,
        "pp": 1,
        "dp": 2,
        "dcp": 1,
        "page_size": 1,
        "max_seqs": 128,
        "max_batched_tokens": 8192,
        "mem_fraction_static": Decimal("0.907"),
        "no_prefix_caching": True,
        "enforce_eager": True,
        "enable_dp_attention": True,
    }


def test_sglang_disagrees(sglang: Server) -> None:
    facts = read_server(sglang.url, None)
    verified = verify_server(facts, question(facts, kv_dtype=KvDtype("fp8_e4m3", "fp8_e4m3")))
    assert [check.name for check in verified.checks if not check.ok] == ["KV cache"]


def test_sglang_by_a_gpu(sglang: Server) -> None:
    """A bound in tokens binds; without it the pool is what the memory leaves: 12,288 bytes a token."""
    facts = read_server(sglang.url, None)
    assert verify_server(facts, question(facts, gpu_mem=20 << 30)).ok
    sglang.add("/server_info", {**SGLANG_INFO, "max_total_tokens": None})
    facts = read_server(sglang.url, None)
    tokens = by_name(verify_server(facts, question(facts, gpu_mem=20 << 30)))["tokens"]
    assert isinstance(tokens.predicted, int)
    assert 0.8 * (20 << 30) / 12288 < tokens.predicted < 0.907 * (20 << 30) / 12288
    assert not tokens.ok
    assert figures(verify_server(facts, question(facts)))["tokens"] == (None, 20480)


def test_sglang_drafts(sglang: Server) -> None:
    sglang.add("/server_info", {**SGLANG_INFO, "speculative_algorithm": "EAGLE"})
    facts = read_server(sglang.url, None)
    assert "draft" in {note.code for note in verify_server(facts, question(facts)).notes}


def test_sglang_states_make_the_size_unclear(sglang: Server) -> None:
    sglang.add("/server_info", {**SGLANG_INFO, "model_path": "Qwen/Qwen3-Next-80B-A3B-Instruct"})
    facts = read_server(sglang.url, None)
    found = by_name(verify_server(facts, question(facts)))
    assert (found["KV cache"].predicted, found["running"].predicted) == (None, None)


def test_sglang_under_its_older_address(sglang: Server) -> None:
    sglang.pages["/get_server_info"] = sglang.pages.pop("/server_info")
    del sglang.pages["/metrics"]
    facts = read_server(sglang.url, None)
    assert isinstance(facts, SglangFacts)
    assert (facts.tokens, facts.used) == (20480, None)


def test_sglang_windows_have_a_pool_of_their_own(sglang: Server) -> None:
    """0.8 tokens for each of the full pool, as the default ratio has it."""
    memory = {"weight": 12.835, "kvcache": 1.001, "token_capacity": 30000, "token_capacity_swa": 24000, "graph": {"decode": 0.1}}
    states = [{"memory_usage": memory, "effective_max_running_requests_per_dp": 128}]
    info = {**SGLANG_INFO, "model_path": "openai/gpt-oss-20b", "max_total_num_tokens": 30000, "max_total_tokens": None, "internal_states": states}
    sglang.add("/server_info", info)
    facts = read_server(sglang.url, None)
    verified = verify_server(facts, question(facts))
    assert figures(verified)["window tokens"] == (24000, 24000)
    # 12 layers of each kind, 8 heads of 64.
    assert figures(verified)["KV cache"][0] == 12 * 2 * 8 * 64 * 2 * (30001 + 24001)
    assert not by_name(verified)["KV cache"].ok


# llama.cpp


def test_llamacpp(llamacpp: Server) -> None:
    facts = read_server(llamacpp.url, None)
    assert options_from(facts) == {"engine": "llama.cpp", "context": 16384, "max_seqs": 2}
    assert find_served(facts) == "llama-3.1-8b"
    verified = verify_server(facts, question(facts))
    assert verified.ok
    assert figures(verified) == {
        "slots": (2, 2),
        "slot context": (8192, 8192),
        "parameters": (8030261248, 8030261312),  # the file counts 64 frequencies
        "KV cache": (2 * 32 * 8 * 128 * 2 * 16384, None),
        "in use": (None, 1200),
        "headroom": (None, 1),
    }
    assert {"slots", "logged", "kv-dtype"} <= {note.code for note in verified.notes}


def test_llamacpp_with_the_default_slots(llamacpp: Server) -> None:
    llamacpp.add("/props", {**LLAMA_PROPS, "total_slots": 4, "endpoint_slots": False})
    facts = read_server(llamacpp.url, None)
    assert options_from(facts) == {"engine": "llama.cpp", "context": 8192}
    assert "/slots" not in {path for _, path, _ in llamacpp.asked}
    verified = verify_server(facts, question(facts))
    assert verified.ok
    assert figures(verified)["slots"] == (4, 4)


def test_llamacpp_disagrees(llamacpp: Server) -> None:
    facts = read_server(llamacpp.url, None)
    verified = verify_server(facts, question(facts, "qwen3-0.6b", max_seqs=4))
    assert {check.name for check in verified.checks if not check.ok} == {"slots", "slot context", "parameters"}


@pytest.mark.parametrize("extra", [{"next_token": {"n_decoded": 3}}, {"next_token": [{"n_decoded": 3}]}])
def test_llamacpp_slots_of_older_builds(llamacpp: Server, extra: dict[str, Any]) -> None:
    llamacpp.add("/slots", [{"id": 0, "is_processing": True, "n_prompt_tokens": 10, **extra}])
    facts = read_server(llamacpp.url, None)
    assert isinstance(facts, LlamaCppFacts)
    assert facts.used == 13


# What is found by what


def test_options_are_parameters_of_the_command(vllm: Server) -> None:
    known = {"engine", "context"} | DEPLOYMENT.keys() | BUDGET.keys()
    assert options_from(read_server(vllm.url, None)).keys() <= known
    with serving() as other:
        other.add("/server_info", SGLANG_INFO)
        assert options_from(read_server(other.url, None)).keys() <= known
    with serving() as other:
        other.add("/props", LLAMA_PROPS)
        assert options_from(read_server(other.url, None)).keys() <= known


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (("Qwen/Qwen2.5-0.5B-Instruct", "chat"), "qwen2.5-0.5b"),
        (("/data/hub/models--meta-llama--Llama-3.1-8B-Instruct/snapshots/0e9e39f249a16976918f6564b8830bc894c89659",), "llama-3.1-8b"),
        (("/models/gpt-oss-20b-mxfp4.gguf",), "gpt-oss-20b"),
        (("/models/Qwen3-8B-UD-Q4_K_XL.gguf",), "qwen3-8b"),
        (("/models/llama-3-70b-q8_0-00001-of-00002.gguf",), "llama-3-70b"),
        (("/srv/unknown", "chat", "owner/Some-Model-AWQ"), "owner/Some-Model-AWQ"),
        (("/etc/passwd", "chat"), None),
        ((), None),
    ],
)
def test_the_model_is_found_by_its_names(names: tuple[str, ...], found: str | None) -> None:
    assert find_served(LlamaCppFacts(None, names, 8192, 1, None, None, None, None, None)) == found


def test_another_engine_is_not_compared(vllm: Server) -> None:
    facts = read_server(vllm.url, None)
    with pytest.raises(KvcalcError, match="the server is vllm"):
        verify_server(facts, question(facts)._replace(engine=find_engine("sglang")))


def test_a_dtype_that_is_not_known_is_asked_for(vllm: Server) -> None:
    vllm.add("/metrics", VLLM_CONFIG.replace('cache_dtype="auto",e', 'cache_dtype="fp3_new",e'))
    facts = read_server(vllm.url, None)
    with pytest.raises(KvcalcError, match="a type that is not known"):
        verify_server(facts, question(facts))
    assert verify_server(facts, question(facts, kv_dtype=KvDtype("bf16", "bf16"))).ok


# Keys


@pytest.mark.parametrize(("api_key", "hint"), [(None, "put its API key into KVCALC_API_KEY"), (f"{KEY}-wrong", "check KVCALC_API_KEY")])
def test_a_key_is_asked_for_and_never_shown(vllm: Server, api_key: str | None, hint: str) -> None:
    vllm.guarded = {"/v1/models"}
    error = refused(vllm.url, api_key)
    assert (error.code, error.hint) == (ExitCode.ENVIRONMENT, hint)


def test_forbidden(vllm: Server) -> None:
    vllm.add("/metrics", b"", status=403)
    assert "403" in refused(vllm.url, KEY).message


def test_a_key_is_sent_and_what_repeats_it_is_not_shown(vllm: Server) -> None:
    vllm.guarded = {"/v1/models"}
    vllm.add("/version", {"version": f"0.28.0+{KEY}"})
    facts = read_server(vllm.url, f" {KEY}\n")
    assert KEY not in repr(facts)
    assert {sent for _, _, sent in vllm.asked} == {f"Bearer {KEY}"}
    assert KEY not in verify_server(facts, question(facts)).to_json()


@pytest.mark.parametrize("api_key", [f"{KEY}\r\nX-More: 1", f"{KEY}ä"])
def test_a_key_that_no_header_can_hold(server: Server, api_key: str) -> None:
    assert refused(server.url, api_key).code == ExitCode.USAGE
    assert server.asked == []


# URLs


@pytest.mark.parametrize(
    "url",
    [
        "localhost:8000",
        "ftp://localhost",
        "file:///etc/passwd",
        "http://",
        "http://[::1",
        "http://localhost:99999",
        f"http://user:{KEY}@localhost:8000",
        f"http://{KEY}@localhost:8000",
        f"http://localhost:8000/?key={KEY}",
        "http://localhost:8000/a b",
        "http://localhost:8000/\r\nX: 1",
        "",
    ],
)
def test_what_is_no_url_of_a_server(url: str) -> None:
    assert refused(url).code == ExitCode.USAGE


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://gpu1:8000", "http://gpu1:8000"),
        ("http://gpu1:8000/v1/", "http://gpu1:8000"),
        ("https://gpu1/llm/v1", "https://gpu1:443/llm"),
        ("http://[::1]:8000/", "http://[::1]:8000"),
    ],
)
def test_urls(url: str, address: str) -> None:
    assert str(web.parse_address(url)) == address


def test_pages_lie_behind_the_path_of_the_url(server: Server) -> None:
    server.add("/llm/props", LLAMA_PROPS)
    assert isinstance(read_server(f"{server.url}/llm/v1", None), LlamaCppFacts)


# Servers that are none, and servers that are up to something


def test_nobody_listens() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    error = refused(url)
    assert error.code == ExitCode.ENVIRONMENT
    assert "cannot be reached" in error.message


def test_a_host_that_is_not_there() -> None:
    assert refused("http://no-such-host.invalid:8000").code == ExitCode.ENVIRONMENT


def test_another_kind_of_server(server: Server) -> None:
    for path in ("/metrics", "/server_info", "/get_server_info", "/props", "/v1/models"):
        server.add(path, "<html>welcome</html>")
    error = refused(server.url)
    assert error.code == ExitCode.UNANSWERABLE
    assert "none of vLLM, SGLang and llama.cpp" in error.message
    assert all(path in error.hint for path in ("/metrics", "/server_info", "/get_server_info", "/props"))


def test_a_server_that_still_loads(server: Server) -> None:
    server.add("/metrics", {"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}}, status=503)
    error = refused(server.url)
    assert (error.code, "not ready" in error.message) == (ExitCode.ENVIRONMENT, True)


def test_what_does_not_speak_http() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def talk() -> None:
            with listener.accept()[0] as client:
                client.sendall(b"220 mail.example ESMTP\r\n")

        thread = threading.Thread(target=talk)
        thread.start()
        error = refused(f"http://127.0.0.1:{listener.getsockname()[1]}")
        thread.join()
    assert (error.code, "as an HTTP server" in error.message) == (ExitCode.UNANSWERABLE, True)


def test_plain_http_where_tls_is_asked_for(server: Server) -> None:
    error = refused(server.url.replace("http:", "https:"))
    assert "TLS" in error.message


def test_redirects_stay_with_the_host(server: Server) -> None:
    server.add("/props", b"", status=307, headers={"Location": "/moved/props"})
    server.add("/moved/props", LLAMA_PROPS)
    assert isinstance(read_server(server.url, KEY), LlamaCppFacts)


@pytest.mark.parametrize("elsewhere", ["other", "//other", "file", "nowhere"])
def test_redirects_elsewhere_are_not_followed(vllm: Server, elsewhere: str) -> None:
    with serving() as other:
        target = {"other": f"{other.url}/metrics", "//other": other.url.removeprefix("http:"), "file": "file:///etc/passwd", "nowhere": f"http://{KEY}@x/"}
        vllm.add("/metrics", b"", status=302, headers={"Location": target[elsewhere]})
        error = refused(vllm.url, KEY)
        assert error.code == ExitCode.UNANSWERABLE
        assert "redirects" in error.message
        assert other.asked == []


def test_redirects_in_a_circle(vllm: Server) -> None:
    vllm.add("/metrics", b"", status=302, headers={"Location": "/metrics"})
    assert "without end" in refused(vllm.url).message
    assert len(vllm.asked) == web.MAX_REDIRECTS + 1


def endless(out: Any, stop: threading.Event) -> None:
    while not stop.is_set():
        out.write(b"vllm:x 1\n" * 4096)


def endless_chunks(out: Any, stop: threading.Event) -> None:
    while not stop.is_set():
        out.write(b"1000\r\n" + b"x" * 4096 + b"\r\n")


def drips(out: Any, stop: threading.Event) -> None:
    while not stop.wait(0.05):
        out.write(b"#")


def silent(_out: Any, stop: threading.Event) -> None:
    stop.wait(30)


def pauses(_out: Any, stop: threading.Event) -> None:
    stop.wait(0.3)


@pytest.mark.parametrize(
    ("page", "said"),
    [
        (Page(write=endless), "sends more than"),
        (Page(write=endless_chunks, headers={"Transfer-Encoding": "chunked"}), "sends more than"),
        (Page(headers={"Content-Length": str(1 << 50)}, write=silent), "sends more than"),
        (Page(headers={f"X-{number}": "y" * 60000 for number in range(90)}, write=endless), "sends more than"),
        (Page(headers={f"X-{number}": "y" for number in range(200)}), "as an HTTP server"),
    ],
)
def test_answers_without_end(server: Server, page: Page, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "MAX_BYTES", 1 << 20)
    server.pages["/metrics"] = page
    error = refused(server.url)
    assert said in error.message
    assert error.code == ExitCode.UNANSWERABLE


@pytest.mark.parametrize("page", [Page(write=drips), Page(write=silent), Page(headers={"Content-Length": "100"}, write=drips)])
def test_slow_answers(server: Server, page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "TOTAL_S", 0.4)
    server.pages["/metrics"] = page
    error = refused(server.url)
    assert (error.code, "in time" in error.message) == (ExitCode.ENVIRONMENT, True)


def test_headers_that_drip(monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte at a time keeps any time-out of a socket from passing."""
    monkeypatch.setattr(web, "TOTAL_S", 0.4)
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            with listener.accept()[0] as client, suppress(OSError):
                client.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
                while not stop.wait(0.05):
                    client.sendall(b"y")

        thread = threading.Thread(target=drip)
        thread.start()
        error = refused(f"http://127.0.0.1:{listener.getsockname()[1]}")
        stop.set()
        thread.join()
    assert "in time" in error.message


def test_all_pages_share_the_time(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "TOTAL_S", 0.5)
    for path in ("/metrics", "/server_info", "/get_server_info", "/props"):
        server.pages[path] = Page(write=pauses)
    assert "in time" in refused(server.url).message


def test_half_an_answer(vllm: Server) -> None:
    vllm.pages["/metrics"] = Page(b"vllm:", headers={"Content-Length": "1000"})
    assert refused(vllm.url).message == f"{vllm.url}/metrics did not arrive whole: 5 of 1,000 bytes"


@pytest.mark.parametrize("sent", [b"5\r\nvllm:\r\n64\r\nx", b"FFFFFFFFFFFFFFFF\r\nx"])
def test_half_an_answer_in_chunks(vllm: Server, sent: bytes) -> None:
    vllm.pages["/metrics"] = Page(headers={"Transfer-Encoding": "chunked"}, write=lambda out, _: out.write(sent))
    assert "did not arrive whole" in refused(vllm.url).message


@pytest.mark.parametrize(
    ("status", "said"), [(429, "wants fewer requests (429)"), (502, "behind a proxy that does not reach it (502)"), (504, "does not reach it (504)")]
)
def test_a_server_or_a_proxy_that_refuses_for_now(vllm: Server, status: int, said: str) -> None:
    vllm.add("/metrics", KEY.encode(), status=status)
    error = refused(vllm.url, KEY)
    assert (error.code, said in error.message) == (ExitCode.ENVIRONMENT, True)


@pytest.mark.parametrize("body", [b"{", b"<html>", b"\xff\xfe", b"[" * 100000, b"NaN", b'{"data": ' + b"9" * 5000 + b"}"])
def test_what_is_no_json(vllm: Server, body: bytes) -> None:
    vllm.add("/v1/models", body)
    error = refused(vllm.url)
    assert (error.code, "does not hold JSON" in error.message) == (ExitCode.UNANSWERABLE, True)


@pytest.mark.parametrize(
    "models",
    [
        [],
        "text",
        {"data": {}},
        {"data": ["x"]},
        {"data": [{"id": 3}]},
        {"data": [{"id": "m", "max_model_len": "8192"}]},
        {"data": [{"id": "m", "max_model_len": True}]},
        {"data": [{"id": "m", "max_model_len": -1}]},
        {"data": [{"id": "m", "max_model_len": 10**40}]},
        {"data": [{"id": "m", "max_model_len": 1.5}]},
    ],
)
def test_wrong_types_of_vllm(vllm: Server, models: Any) -> None:
    vllm.add("/v1/models", models)
    assert refused(vllm.url).code == ExitCode.UNANSWERABLE


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('num_gpu_blocks="208"', 'num_gpu_blocks="many"'),
        ('kv_cache_max_concurrency="4.333333333333333"', 'kv_cache_max_concurrency="x"'),
        ('enable_prefix_caching="True"', 'enable_prefix_caching="maybe"'),
        ('block_size="784"', 'block_size="1.5"'),
    ],
)
def test_wrong_labels(vllm: Server, old: str, new: str) -> None:
    vllm.add("/metrics", VLLM_CONFIG.replace(old, new))
    assert old.partition("=")[0] in refused(vllm.url).message


def test_vllm_without_statistics(vllm: Server) -> None:
    vllm.add("/metrics", VLLM_LIVE)
    assert "cache_config_info" in refused(vllm.url).message


@pytest.mark.parametrize(
    "change",
    [
        {"max_total_num_tokens": "many"},
        {"max_total_num_tokens": 0},
        {"tp_size": [2]},
        {"internal_states": {}},
        {"internal_states": [3]},
        {"internal_states": [{"memory_usage": 3}]},
        {"internal_states": [{"memory_usage": {"kvcache": "0.23"}}]},
        {"disable_radix_cache": "no"},
        {"model_path": 1},
        {"swa_full_tokens_ratio": 1e300},
    ],
)
def test_wrong_types_of_sglang(sglang: Server, change: dict[str, Any]) -> None:
    sglang.add("/server_info", {**SGLANG_INFO, **change})
    assert refused(sglang.url).code == ExitCode.UNANSWERABLE


@pytest.mark.parametrize("change", [{"total_slots": "two"}, {"total_slots": 0}, {"default_generation_settings": []}, {"default_generation_settings": {}}])
def test_wrong_types_of_llamacpp(llamacpp: Server, change: dict[str, Any]) -> None:
    llamacpp.add("/props", {**LLAMA_PROPS, **change})
    assert refused(llamacpp.url).code == ExitCode.UNANSWERABLE


@pytest.mark.parametrize("slots", [{}, [1], [{"is_processing": 1}], [{"is_processing": True, "n_prompt_tokens": "x"}]])
def test_wrong_slots(llamacpp: Server, slots: Any) -> None:
    llamacpp.add("/slots", slots)
    assert refused(llamacpp.url).code == ExitCode.UNANSWERABLE

"""A running server beside its prediction: what vLLM, SGLang and llama.cpp tell of themselves over HTTP, read-only.

Fields, and where each is read: vLLM 0.33.0, vllm/v1/metrics/loggers.py (`vllm:cache_config_info` has every attribute of vllm/config/cache.py as a label),
vllm/entrypoints/openai/models/protocol.py (`/v1/models`); SGLang 0.5.23, sglang/srt/entrypoints/http_server.py (`/server_info`, before `/get_server_info`: the
server's arguments, and one of `internal_states` for each group of GPUs), sglang/srt/metrics/collector.py; llama.cpp 0c1e57098, tools/server/README.md.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final, NamedTuple, assert_never

from kvcalc.budget import Question, budget
from kvcalc.catalog import HUB_ID, find_preset, presets
from kvcalc.engines.base import Plan
from kvcalc.engines.llamacpp import AUTO_SLOTS, LlamaCppPlan
from kvcalc.engines.sglang import DEFAULT_MAMBA_RATIO, DEFAULT_SWA_RATIO
from kvcalc.engines.vllm.versions import NEWEST_RELEASE, find_version, modelled_engine
from kvcalc.errors import ExitCode, KvcalcError
from kvcalc.layers import Note
from kvcalc.packing import AUTO, KvDtype, parse_kv_dtype, parse_state_dtype
from kvcalc.results.verify import Check, Verified
from kvcalc.units import BINARY_UNITS, MAX_BYTES, MAX_TOKENS, format_bytes
from kvcalc.verify.web import NotJsonError, Site, parse_address

GIB: Final = BINARY_UNITS["GiB"]
PARAMETERS_PERCENT: Final = 5
"""How far a GGUF file's parameters lie from its model's at most: tables of rotary frequencies are counted, draft layers may be."""
BY_FLOATS: Final = 1e-9
"""How far two floats lie apart that were computed in another order."""


class VllmFacts(NamedTuple):
    """`names`: what the model may be found by, the likeliest first. `context`: the longest request. `engines`: replicas (`dp`), each with so many `blocks`,
    which a user may have stated (`blocks_stated`); `block_tokens` as planned, `block_stated` where a user chose them; `tokens` and `requests` (of
    `context`) in one replica. `kv_bytes`: a pool as stated, on one GPU. Then what the server does now: the part of the blocks in use, requests.
    """

    version: str | None
    names: tuple[str, ...]
    context: int | None
    engines: int
    blocks: int | None
    blocks_stated: bool
    block_tokens: int | None
    block_stated: bool
    tokens: int | None
    requests: Decimal | None
    kv_dtype: str
    kv_bytes: int | None
    utilization: Decimal | None
    prefix_caching: bool
    state_dtype: str | None
    used: Decimal | None
    running: int | None
    waiting: int | None


class SglangFacts(NamedTuple):
    """`arguments`: the server's own, as far as a prediction takes them. `tokens` of the full pool, `window_tokens` of that for windows, the cache in GiB as it
    is rounded to `kv_decimals`, and the requests that run at most: all of one group of GPUs, of which there are `groups`. `tokens_stated`: a bound that a user
    gave. `used`: tokens of all groups that requests hold now.
    """

    version: str | None
    names: tuple[str, ...]
    context: int | None
    arguments: Mapping[str, Any]
    groups: int
    tokens: int
    tokens_stated: int | None
    window_tokens: int | None
    kv_gib: Decimal | None
    kv_decimals: int
    most_running: int | None
    drafts: bool
    used: int | None
    running: int | None
    waiting: int | None


class LlamaCppFacts(NamedTuple):
    """`context` of each of `slots`; `parameters` and the `trained` context of the model; `used`: tokens in the slots that are at work."""

    version: str | None
    names: tuple[str, ...]
    context: int
    slots: int
    parameters: int | None
    trained: int | None
    used: int | None
    running: int | None
    waiting: int | None


ServerFacts = VllmFacts | SglangFacts | LlamaCppFacts


# What the server says


def read_server(url: str, api_key: str | None) -> ServerFacts:
    """What the server at an http or https URL tells of itself. `api_key` is sent as a bearer token, to that host alone, and is in no text.

    Raises KvcalcError: no such URL (usage); not reachable, not ready, too slow, wants a key (exit 4); none of the three kinds, or not in the form that
    they have (exit 3). It takes `web.TOTAL_S` seconds at most.
    """
    site = Site(parse_address(url), api_key)
    gauges = _gauges(site.get("/metrics"))
    if any(name.startswith("vllm:") for name, _, _ in gauges):
        return _read_vllm(site, gauges)
    tried = ["/metrics has no vllm:"]
    for path in ("/server_info", "/get_server_info"):
        info = _object(site, path)
        if info is not None and "max_total_num_tokens" in info:
            return _read_sglang(site, _Fields(site, path, info), gauges)
        tried.append(f"{path} no max_total_num_tokens")
    props = _object(site, "/props")
    if props is not None and {"default_generation_settings", "total_slots"} <= props.keys():
        return _read_llamacpp(site, _Fields(site, "/props", props))
    tried.append("/props no total_slots")
    raise KvcalcError(
        f"{site.address} answers, but as none of vLLM, SGLang and llama.cpp", hint=f"{', '.join(tried)}; a router before servers tells nothing of them"
    )


def _object(site: Site, path: str) -> Mapping[str, Any] | None:
    """A page that holds one JSON object; None for any other, which another kind of server may have there."""
    try:
        page = site.json(path)
    except NotJsonError:
        return None
    return page if isinstance(page, dict) else None


class _Fields(NamedTuple):
    """Values by name of one page, which must have the right type where they are there."""

    site: Site
    page: str
    values: Mapping[str, Any]

    def _wrong(self, name: str, wanted: str) -> KvcalcError:
        return KvcalcError(
            f"{self.site.address}{self.page}: {name} is not {wanted}", hint="the server, or a proxy before it, does not answer as this kind does"
        )

    def whole(self, name: str, most: int = MAX_TOKENS) -> int | None:
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
            raise self._wrong(name, "a whole number in its range")
        return value

    def needed(self, name: str) -> int:
        value = self.whole(name)
        if not value:
            raise self._wrong(name, "a number of at least 1")
        return value

    def decimal(self, name: str) -> Decimal | None:
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, int | Decimal) or isinstance(value, bool) or not abs(Decimal(value)) <= MAX_TOKENS:
            raise self._wrong(name, "a number in its range")
        return Decimal(value)

    def text(self, name: str) -> str | None:
        value = self.values.get(name)
        if value is not None and not isinstance(value, str):
            raise self._wrong(name, "text")
        return None if value is None else self.site.shown(value)

    def switch(self, name: str) -> bool | None:
        value = self.values.get(name)
        if value is not None and not isinstance(value, bool):
            raise self._wrong(name, "true or false")
        return value

    def inner(self, name: str) -> "_Fields":
        """The values of an object in this one; of an absent one there are none."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, dict):
            raise self._wrong(name, "an object")
        return _Fields(self.site, f"{self.page} {name}", value or {})

    def each(self, name: str) -> "list[_Fields]":
        """The objects of an array; none where it is absent."""
        value = self.values.get(name)
        if value is not None and not (isinstance(value, list) and all(isinstance(each, dict) for each in value)):
            raise self._wrong(name, "an array of objects")
        return [_Fields(self.site, f"{self.page} {name}", each) for each in value or ()]


Gauge = tuple[str, Mapping[str, str], Decimal]
"""A line of /metrics: name, labels, value."""

_GAUGE: Final = re.compile(r"^((?:vllm|sglang|llamacpp):\w{1,80})(?:\{([^\n]*)\})?[ \t]+(\S{1,40})", re.ASCII | re.MULTILINE)
_LABEL: Final = re.compile(r'\b([a-z_]\w{0,60})="((?:[^"\\]|\\.){0,2000})"', re.ASCII | re.IGNORECASE)


def _gauges(page: bytes | None) -> list[Gauge]:
    """Values that a server publishes for Prometheus; none where it has no such page. A value that is no number is left out."""
    found: list[Gauge] = []
    for name, labels, text in _GAUGE.findall("" if page is None else page.decode(errors="replace")):
        try:
            value = Decimal(text)
        except InvalidOperation:
            continue
        if value.is_finite() and 0 <= value <= MAX_BYTES:
            found.append((name, dict(_LABEL.findall(labels)), value))
    return found


def _values(gauges: Iterable[Gauge], *names: str) -> list[Decimal]:
    """A gauge under the first of its names that is there, once for each replica: GPUs that share the work of one publish the same."""
    for wanted in names:
        by_replica: dict[str, Decimal] = {}
        for name, labels, value in gauges:
            if name == wanted:
                replica = labels.get("engine", "") + labels.get("dp_rank", "")
                by_replica[replica] = max(value, by_replica.get(replica, value))
        if by_replica:
            return list(by_replica.values())
    return []


def _sum(gauges: Iterable[Gauge], *names: str) -> int | None:
    values = _values(gauges, *names)
    return int(sum(values)) if values else None


def _models(site: Site) -> list[_Fields]:
    """What `/v1/models` lists, as all three kinds have it."""
    page = site.json("/v1/models")
    if page is not None and not isinstance(page, dict):
        raise KvcalcError(f"{site.address}/v1/models does not hold a JSON object", hint="a proxy may stand before the server")
    return _Fields(site, "/v1/models", page or {}).each("data")


def _read_vllm(site: Site, gauges: list[Gauge]) -> VllmFacts:
    configs = [labels for name, labels, _ in gauges if name == "vllm:cache_config_info"]
    if not configs:
        raise KvcalcError(f"{site.address} is vLLM, but its /metrics has no vllm:cache_config_info", hint="start it without --disable-log-stats")
    labels = _Fields(site, "/metrics vllm:cache_config_info", {name: _label(text) for name, text in configs[0].items()})
    engines = len({config.get("engine", "") for config in configs})
    blocks = labels.whole("num_gpu_blocks")
    models = [model for model in _models(site) if model.text("parent") is None]
    first = models[0] if models else _Fields(site, "/v1/models", {})
    named = [text for key in ("root", "id") if (text := first.text(key)) is not None]
    named += [site.shown(of["model_name"]) for _, of, _ in gauges if "model_name" in of][:1]
    used = _values(gauges, "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
    version = _object(site, "/version")
    return VllmFacts(
        version=None if version is None else _Fields(site, "/version", version).text("version"),
        names=tuple(dict.fromkeys(named)),
        context=first.whole("max_model_len") or None,
        engines=engines,
        # vLLM adds up the blocks of all replicas, and shows the sum with each (vllm/v1/engine/core_client.py 0.33.0).
        blocks=None if blocks is None else blocks // engines,
        blocks_stated=labels.whole("num_gpu_blocks_override") is not None,
        block_tokens=labels.whole("block_size"),
        block_stated=labels.switch("user_specified_block_size") is True,
        tokens=labels.whole("kv_cache_size_tokens"),
        requests=labels.decimal("kv_cache_max_concurrency"),
        kv_dtype=labels.text("cache_dtype") or "auto",
        kv_bytes=labels.whole("kv_cache_memory_bytes", MAX_BYTES),
        utilization=labels.decimal("gpu_memory_utilization"),
        prefix_caching=labels.switch("enable_prefix_caching") is not False,
        state_dtype=labels.text("mamba_ssm_cache_dtype"),
        used=sum(used, Decimal(0)) / len(used) if used else None,
        running=_sum(gauges, "vllm:num_requests_running"),
        waiting=_sum(gauges, "vllm:num_requests_waiting"),
    )


def _label(text: str) -> object:
    """An attribute of Python as its label shows it."""
    words = {"None": None, "True": True, "False": False}
    if text in words:
        return words[text]
    if re.fullmatch(r"\d{1,30}", text, re.ASCII):
        return int(text)
    return Decimal(text) if re.fullmatch(r"\d{1,30}\.\d{1,30}(e-?\d\d)?", text, re.ASCII) else text


def _read_sglang(site: Site, info: _Fields, gauges: list[Gauge]) -> SglangFacts:
    states = info.each("internal_states")
    state = states[0] if states else _Fields(site, info.page, {})
    memory = state.inner("memory_usage")
    sizes = [size for name in ("weight", "kvcache") if (size := memory.decimal(name)) is not None]
    window = _values(gauges, "sglang:max_total_num_tokens_swa")
    models = _models(site)
    published = _values(gauges, "sglang:context_len")
    context = info.whole("context_length") or (models[0].whole("max_model_len") if models else None) or (int(published[0]) if published else None)
    named = [info.text("model_path"), info.text("served_model_name"), *(model.text("id") for model in models[:1])]
    used = _sum(gauges, "sglang:kv_used_tokens", "sglang:num_used_tokens")
    ratio, mamba_ratio = info.decimal("swa_full_tokens_ratio"), info.decimal("mamba_full_memory_ratio")
    chunk = info.values.get("chunked_prefill_size")
    return SglangFacts(
        version=info.text("version"),
        names=tuple(dict.fromkeys(name for name in named if name)),
        context=context,
        arguments={
            "kv_cache_dtype": info.text("kv_cache_dtype") or "auto",
            "tp": info.whole("tp_size") or 1,
            "pp": info.whole("pp_size") or 1,
            "dp": info.whole("dp_size") or 1,
            "dcp": info.whole("dcp_size") or 1,
            "page_size": info.whole("page_size"),
            "swa_full_tokens_ratio": None if ratio == DEFAULT_SWA_RATIO else ratio,
            "mamba_full_memory_ratio": None if mamba_ratio == DEFAULT_MAMBA_RATIO else mamba_ratio,
            "mamba_ssm_dtype": info.text("mamba_ssm_dtype"),
            "mem_fraction_static": info.decimal("mem_fraction_static"),
            "max_seqs": info.whole("max_running_requests"),
            "max_batched_tokens": None if chunk == -1 else info.whole("chunked_prefill_size"),  # -1: whole prompts
            "no_prefix_caching": info.switch("disable_radix_cache") is True,
            "enforce_eager": info.switch("disable_cuda_graph") is True,
            "enable_dp_attention": info.switch("enable_dp_attention") is True,
        },
        groups=max(1, len(states)),
        tokens=info.needed("max_total_num_tokens"),
        tokens_stated=info.whole("max_total_tokens"),
        window_tokens=memory.whole("token_capacity_swa") or (int(window[0]) if window else None),
        kv_gib=memory.decimal("kvcache"),
        kv_decimals=max((-int(size.as_tuple().exponent) for size in sizes), default=0),
        most_running=state.whole("effective_max_running_requests_per_dp"),
        drafts=info.text("speculative_algorithm") is not None,
        used=used,
        running=_sum(gauges, "sglang:num_running_reqs"),
        waiting=_sum(gauges, "sglang:num_queue_reqs"),
    )


def _read_llamacpp(site: Site, props: _Fields) -> LlamaCppFacts:
    models = _models(site)
    first = models[0] if models else _Fields(site, "/v1/models", {})
    meta = first.inner("meta")
    page = site.json("/slots") if props.switch("endpoint_slots") is not False else None
    slots = None if page is None else [slot for slot in _Fields(site, "/slots", {"slots": page}).each("slots") if slot.switch("is_processing")]
    named = [props.text("model_path"), first.text("id"), props.text("model_alias")]
    return LlamaCppFacts(
        version=props.text("build_info"),
        names=tuple(dict.fromkeys(name for name in named if name)),
        context=props.inner("default_generation_settings").needed("n_ctx"),
        slots=props.needed("total_slots"),
        parameters=meta.whole("n_params", MAX_BYTES),
        trained=meta.whole("n_ctx_train"),
        used=None if slots is None else sum(map(_slot_tokens, slots)),
        running=None if slots is None else len(slots),
        waiting=None,
    )


def _slot_tokens(slot: _Fields) -> int:
    """Prompt and answer so far. `next_token` was one object, and is an array of one in newer builds."""
    following = slot.values.get("next_token")
    nested = slot.each("next_token") if isinstance(following, list) else [slot.inner("next_token")]
    return (slot.whole("n_prompt_tokens") or 0) + sum(each.whole("n_decoded") or 0 for each in nested)


# What follows for the question


def find_served(facts: ServerFacts) -> str | None:
    """What `load_model` takes for the model that is served. None where the names that the server has for it do not tell."""
    return find_named(facts.names)


def find_named(names: Sequence[str]) -> str | None:
    """What `load_model` takes for the model of these names: a preset by its name, alias or repositories, else a Hub id. None where they tell
    neither. A path is never read: the server may be elsewhere, and may say anything.
    """
    of_hub = {hub.lower(): preset.name for preset in presets() for hub in preset.hub}
    by_tail = {hub.rpartition("/")[2]: name for hub, name in of_hub.items()}
    for name in names:
        plain = _repository(name)
        tail = plain.rpartition("/")[2].lower()
        bare = _QUANTIZED.sub("", tail.removesuffix(".gguf"))
        found = of_hub.get(plain.lower()) or by_tail.get(tail) or by_tail.get(bare)
        if found is None and (preset := find_preset(bare)) is not None:
            found = preset.name
        if found is not None:
            return found
        if HUB_ID.fullmatch(plain) and not plain.endswith(".gguf"):
            return plain
    return None


_QUANTIZED: Final = re.compile(r"[.-](?:ud-)?(?:i?q\d\w*|b?f16|f32|fp16|mxfp4\w*)(?:-\d{5}-of-\d{5})?$", re.ASCII)
"""How the file of a GGUF model is stored, at the end of its name."""


def _repository(name: str) -> str:
    """The repository of a file in the Hub's cache (models--owner--name/snapshots/...), else the name itself."""
    cached = re.search(r"models--([\w.-]+?)--([\w.-]+)", name, re.ASCII)
    return name.rstrip("/") if cached is None else f"{cached[1]}/{cached[2]}"


def options_from(facts: ServerFacts) -> dict[str, Any]:
    """The options of the command line that a server tells, by the names of their parameters, `engine` among them. What it does not tell is not in it."""
    match facts:
        case VllmFacts():
            options = {
                "engine": modelled_engine(facts.version) or "vllm",
                "context": facts.context,
                "kv_dtype": _kv_dtype(facts),
                "dp": facts.engines if facts.engines > 1 else None,
                "block_size": facts.block_tokens if facts.block_stated else None,
                "mamba_ssm_cache_dtype": _state_dtype(facts.state_dtype),
                "no_prefix_caching": True if not facts.prefix_caching else None,
                "kv_mem": facts.kv_bytes,
                "utilization": facts.utilization if facts.kv_bytes is None else None,
            }
        case SglangFacts():
            given = facts.arguments
            alike = ("tp", "pp", "dp", "dcp", "page_size", "swa_full_tokens_ratio", "mamba_full_memory_ratio", "max_seqs", "max_batched_tokens")
            switches = ("no_prefix_caching", "enforce_eager", "enable_dp_attention")
            options = {
                "engine": "sglang",
                "context": facts.context,
                "kv_dtype": _kv_dtype(facts),
                "mamba_ssm_cache_dtype": _state_dtype(given["mamba_ssm_dtype"]),
                "mem_fraction_static": given["mem_fraction_static"],
                **{name: given[name] for name in alike},
                **{name: True for name in switches if given[name]},
            }
        case LlamaCppFacts():
            shared = facts.slots == AUTO_SLOTS
            options = {
                "engine": "llama.cpp",
                "context": facts.context if shared else facts.context * facts.slots,
                "max_seqs": None if shared else facts.slots,
            }
        case unreachable:
            assert_never(unreachable)
    return {name: value for name, value in options.items() if value is not None}


def _kv_dtype(facts: VllmFacts | SglangFacts) -> KvDtype | None:
    """None for one that is not known, which verify_server refuses unless another is stated."""
    name = facts.kv_dtype if isinstance(facts, VllmFacts) else facts.arguments["kv_cache_dtype"]
    try:
        return parse_kv_dtype(name)
    except KvcalcError:
        return None


def _state_dtype(name: str | None) -> str | None:
    try:
        return None if name is None else parse_state_dtype(name)
    except KvcalcError:
        return None


# Beside the prediction


def verify_server(facts: ServerFacts, question: Question) -> Verified:
    """Each figure that the server tells beside what is predicted for it: the question's model, engine and options are taken to be the server's own, its GPU
    and KV budget count where they are stated. `requests` and `tokens` are about the server's own context.

    Raises KvcalcError where the engine is another, cannot run the model so, or nothing that the server tells can be compared.
    """
    _check_same(facts, question)
    plan = question.engine.plan(question.spec, question.options)
    notes = [*question.spec.notes, *question.notes, *plan.notes]
    match facts:
        case VllmFacts():
            checks, more = _verify_vllm(facts, question, plan)
        case SglangFacts():
            checks, more = _verify_sglang(facts, question, plan)
        case LlamaCppFacts():
            checks, more = _verify_llamacpp(facts, question, plan)
        case unreachable:
            assert_never(unreachable)
    if not isinstance(facts, LlamaCppFacts) and facts.context not in (None, question.asked.context):
        notes.append(Note(code="context", text=f"requests are of {facts.context:,} tokens here, as the server has it, not of {question.asked.context:,}"))
    if not any(check.predicted is not None and check.measured is not None for check in checks):
        raise KvcalcError("the server tells no figure that can be compared", hint="state --gpu or --kv-mem; its start-up log tells more: --log FILE")
    return Verified(checks=tuple(checks), ok=all(check.ok for check in checks), notes=(*notes, *more))


def _check_same(facts: ServerFacts, question: Question) -> None:
    kind = str(options_from(facts)["engine"]).partition("@")[0]
    if question.engine.name != kind:
        raise KvcalcError(f"the server is {kind}, and the question is about {question.engine.name}", hint="leave out --engine", code=ExitCode.USAGE)
    if not isinstance(facts, LlamaCppFacts) and _kv_dtype(facts) is None and question.options.kv_dtype == AUTO:
        raise KvcalcError("the server stores its cache in a type that is not known here", hint="state the nearest with --kv-dtype")


class _Budget(NamedTuple):
    """What a GPU has for the cache: likely, and the bounds; `why` says how it is known."""

    low: int
    likely: int
    high: int
    why: str


def _budgeted(question: Question) -> tuple[_Budget | None, list[Note]]:
    """The pool by the question alone, where it states one, or a GPU by which it can be estimated. The server itself is what uses that GPU."""
    if question.kv_bytes is not None:
        return _Budget(question.kv_bytes, question.kv_bytes, question.kv_bytes, "by the stated size of the pool"), []
    if question.gpu.memory_bytes is None:
        text = "how large the pool should be follows from the GPU: --gpu, with --tp and what else the server was started with, predicts that too"
        return None, [Note(code="gpu", text=text)]
    try:
        found = budget(question._replace(gpu=question.gpu.model_copy(update={"used_bytes": None})))
    except KvcalcError as error:
        return None, [Note(code="budget", text=f"the size of the pool is not predicted: {error.message}")]
    span, likely = found.ranges.get("kv_bytes"), found.memory.kv_bytes
    low, high = (likely, likely) if span is None else (span.low, span.high)
    return _Budget(low, likely, high, f"estimated by what the GPU leaves, {format_bytes(low)} to {format_bytes(high)}"), list(found.notes)


UNTOLD: Final = "the server does not tell --tp, --max-seqs, --max-batched-tokens and --gpu: state them as it was started"


def _check(name: str, predicted: int | None, measured: int | None, unit: str, why: str, *, bounds: tuple[int, int] | None = None, otherwise: str = "") -> Check:
    """Whole numbers side by side, equal, or within bounds; without a prediction the figure alone. `otherwise` is said where they disagree."""
    if predicted is None or measured is None:
        return Check(name=name, predicted=predicted, measured=measured, difference=None, unit=unit, ok=True, explanation=why)
    low, high = (predicted, predicted) if bounds is None else bounds
    ok = low <= measured <= high
    explanation = why if ok or not otherwise else f"{why}; {otherwise}"
    return Check(name=name, predicted=predicted, measured=measured, difference=measured - predicted, unit=unit, ok=ok, explanation=explanation)


def _verify_vllm(facts: VllmFacts, question: Question, plan: Plan) -> tuple[list[Check], list[Note]]:
    (pool,) = plan.pools
    context = question.asked.context if facts.context is None else facts.context
    checks = [_check("block", pool.unit_rows, facts.block_tokens, "tokens", "tokens in a block, as the engine plans it", otherwise=UNTOLD)]
    notes: list[Note] = _release_notes(facts, question)
    if facts.blocks is not None:
        if facts.blocks_stated:
            predicted, notes = None, [*notes, Note(code="blocks", text="the number of blocks was stated, with --num-gpu-blocks-override")]
        else:
            predicted, more = _budgeted(question)
            notes += more
        ends = None if predicted is None else (predicted.low // pool.unit_bytes, predicted.high // pool.unit_bytes)
        likely = None if predicted is None else predicted.likely // pool.unit_bytes
        why = "blocks of one replica" if predicted is None else f"blocks of one replica, {predicted.why}"
        checks.append(_check("blocks", likely, facts.blocks, "blocks", why, bounds=ends, otherwise=UNTOLD))
        size, sizes = pool.unit_bytes, None if ends is None else (ends[0] * pool.unit_bytes, ends[1] * pool.unit_bytes)
        why = f"blocks of {size:,} bytes on one GPU"
        checks.append(_check("KV cache", None if likely is None else likely * size, facts.blocks * size, "bytes", why, bounds=sizes))
        held = plan.capacity(facts.blocks, context)
        checks.append(_check("tokens", held.tokens, facts.tokens, "tokens", f"in so many blocks, as requests of {context:,}", otherwise=UNTOLD))
        checks.append(_requests(held.requests, facts.requests, context))
        checks += _live_vllm(facts, facts.blocks, plan, context)
    return checks, notes


def _requests(predicted: float, measured: Decimal | None, context: int) -> Check:
    said = None if measured is None else float(measured)
    difference = None if said is None else said - predicted
    ok = difference is None or abs(difference) <= BY_FLOATS * max(1, predicted)
    why = f"requests of {context:,} tokens that so many blocks hold"
    explanation = why if ok else f"{why}; {UNTOLD}"
    return Check(
        name="concurrency",
        predicted=predicted,
        measured=said,
        difference=0 if ok and said is not None else difference,
        unit="requests",
        ok=ok,
        explanation=explanation,
    )


def _release_notes(facts: VllmFacts, question: Question) -> list[Note]:
    if modelled_engine(facts.version) == f"vllm@0.{find_version(question.engine.version or '').minor}":
        return []
    server = "a server that does not tell its release" if facts.version is None else f"vLLM {facts.version}"
    return [Note(code="version", text=f"the rules are those of vLLM {question.engine.version} (modelled up to {NEWEST_RELEASE}), beside {server}")]


def _live_vllm(facts: VllmFacts, blocks: int, plan: Plan, context: int) -> list[Check]:
    """The part in use is of all blocks but the null block (vllm/v1/core/block_pool.py 0.33.0, get_usage)."""
    if facts.used is None:
        return []
    held = min(blocks, int(facts.used * (blocks - 1) + Decimal("0.5")))
    tokens = plan.capacity(blocks, context).tokens * held // blocks if blocks else 0
    room = max(0, blocks - plan.reserved - held) // plan.need(context)[0]
    why = f"{held:,} of {blocks:,} blocks in each replica{_busy(facts)}; what only the prefix cache keeps is free"
    return _live(facts, _check("in use", None, tokens, "tokens", why), room, context)


def _busy(facts: ServerFacts) -> str:
    said = [f"{count:,} {word}" for count, word in ((facts.running, "running"), (facts.waiting, "waiting")) if count is not None]
    return f"; requests: {', '.join(said)}" if said else ""


def _live(facts: ServerFacts, used: Check, room: int, context: int) -> list[Check]:
    free = f"whole requests of {context:,} tokens for which there is room beside those that run now"
    if facts.waiting and not room:
        free += "; others wait for it"
    return [used, _check("headroom", None, room, "requests", free)]


def _verify_sglang(facts: SglangFacts, question: Question, plan: Plan) -> tuple[list[Check], list[Note]]:
    context = question.asked.context if facts.context is None else facts.context
    predicted, notes = _budgeted(question)
    checks = [_sglang_tokens(facts, predicted, plan, context)]
    uses = plan.uses(facts.tokens)
    states = any(use.kind == "state" for use in uses)
    size = sum(use.size_bytes for use in uses if use.kind != "state")
    if facts.kv_gib is not None:
        measured, half = int(facts.kv_gib * GIB), GIB // (2 * 10 ** (3 if facts.kv_decimals > 2 else 2)) + 1
        why = f"pools for so many tokens and a page that absorbs padding; the server rounds it by up to {format_bytes(half)}"
        if states:
            checks.append(_check("KV cache", None, measured, "bytes", "as the server reports it; it does not say whether states are in it"))
        else:
            checks.append(_check("KV cache", size, measured, "bytes", why, bounds=(size - half, size + half), otherwise="is --kv-dtype, or --tp, another?"))
    windows = [use.rows for use in uses if use.kind in ("sliding", "chunked")]
    full = [use.rows for use in uses if use.kind not in ("sliding", "chunked", "state")]
    if windows and full and facts.window_tokens is not None:
        page = facts.arguments["page_size"] or 1
        why = "tokens of the pool for windows, by --swa-full-tokens-ratio"
        checks.append(_check("window tokens", max(windows) - page, facts.window_tokens, "tokens", why))
    if facts.most_running is not None:
        asked = question.options.max_seqs is not None and not states
        why = "requests that run at once" if asked else "requests that run at once, as the server chose"
        checks.append(_check("running", plan.max_requests if asked else None, facts.most_running, "requests", why))
    if facts.used is not None:
        total = facts.tokens * facts.groups
        room = max(0, total - facts.used) // context
        why = f"of {total:,} in all{_busy(facts)}; what only the prefix cache keeps is free"
        checks += _live(facts, _check("in use", None, facts.used, "tokens", why), room, context)
    if facts.drafts and not question.options.speculative_tokens:
        text = "the server drafts tokens, whose cache is in its pool: --mtp N counts it where the model's own layers draft"
        notes.append(Note(code="draft", text=text))
    return checks, notes


def _sglang_tokens(facts: SglangFacts, predicted: _Budget | None, plan: Plan, context: int) -> Check:
    """The full pool of one group of GPUs, as the budget or --max-total-tokens bounds it."""
    stated, why = facts.tokens_stated, "tokens of one group of GPUs"
    likely, bounds = stated, None if stated is None else (0, stated)
    if predicted is not None:
        low, likely, high = (plan.capacity(size, context).tokens for size in (predicted.low, predicted.likely, predicted.high))
        if stated is not None:
            low, likely, high = min(low, stated), min(likely, stated), min(high, stated)
        bounds, why = (low, high), f"{why}, {predicted.why}"
    if stated is not None:
        why += "; at most --max-total-tokens"
    otherwise = "the prediction wants the GPU and the options that the server was started with"
    return _check("tokens", likely, facts.tokens, "tokens", why, bounds=bounds, otherwise=otherwise)


def _verify_llamacpp(facts: LlamaCppFacts, question: Question, plan: Plan) -> tuple[list[Check], list[Note]]:
    assert isinstance(plan, LlamaCppPlan)  # noqa: S101 (its engine has no other; _check_same)
    context = question.asked.context
    own = plan.slot_cells(context) if facts.trained is None else min(plan.slot_cells(context), facts.trained)
    facts_of = question.spec.facts
    parameters = facts_of.parameters if facts_of.parameters_text is None else facts_of.parameters_text
    off = 0 if parameters is None else parameters * PARAMETERS_PERCENT // 100
    checks = [
        _check("slots", plan.slots, facts.slots, "slots", "requests that the server takes at once", otherwise="--max-seqs says how many"),
        _check(
            "slot context",
            own,
            facts.context,
            "tokens",
            "the longest request of a slot, in cells of 256",
            otherwise="--context is what all slots share, which older builds may round otherwise",
        ),
        _check(
            "parameters",
            parameters,
            facts.parameters,
            "parameters",
            f"whether the model is the one that is asked about, within {PARAMETERS_PERCENT} %: a file counts tables, and may have draft layers",
            bounds=None if parameters is None else (parameters - off, parameters + off),
            otherwise="is another model served?",
        ),
        _check("KV cache", plan.resident_bytes(context, 1), None, "bytes", "on the GPU that holds most; llama-server tells no size but in its start-up log"),
    ]
    notes = list(plan.length_notes(context, 1))
    if facts.slots > 1:
        shared = "share one pool, as without -np" if plan.unified else "have cells of their own, as with -np"
        text = f"whether slots share one pool is not told: they are taken to {shared}; --max-seqs and --kv-unified say otherwise"
        notes.append(Note(code="slots", text=text))
    notes.append(Note(code="kv-dtype", text="the types of K and V are not told: --kv-dtype says them, as -ctk and -ctv did"))
    if facts.used is not None:
        total = plan.capacity(plan.need(context)[0], context).tokens
        idle = facts.slots - (facts.running or 0)
        room = min(idle, max(0, total - facts.used) // facts.context) if plan.unified else idle
        why = f"prompts and answers so far, of {total:,} cells{_busy(facts)}"
        checks += _live(facts, _check("in use", None, facts.used, "tokens", why), room, facts.context)
    return checks, notes

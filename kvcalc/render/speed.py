"""`kvcalc speed` for a reader."""

from typing import Final

from rich.console import Console

from kvcalc.errors import printable
from kvcalc.render.style import Grid, in_unit, milliseconds, notes, with_version
from kvcalc.results.speed import Chunked, Lever, Phase, Rate, Speed
from kvcalc.units import binary_unit, counted

BOUND_BY: Final = {"compute": "arithmetic", "bandwidth": "memory bandwidth", "link": "the link between GPUs"}


def render_speed(result: Speed, console: Console) -> None:
    """The verdict first, then times, work, rates, levers, and what doubles. A ~ marks what is likely and no bound."""
    console.print(verdict(result), style="bold", highlight=False, markup=False)
    console.print(setup_line(result), highlight=False, markup=False)
    console.print()
    times_grid(result).print(console)
    console.print()
    for line in sides_lines(result):
        console.print(line, highlight=False, markup=False)
    console.print()
    work_grid(result).print(console)
    console.print()
    rates_grid(result).print(console)
    if len(result.batches) > 1:
        console.print()
        batches_grid(result).print(console)
    for table in (prefill_levers_grid(result), decode_levers_grid(result)):
        if table.rows:
            console.print()
            table.print(console)
    if result.chunked is not None:
        console.print()
        console.print(chunked_line(result.chunked), highlight=False, markup=False)
    console.print()
    doublings_grid(result).print(console)
    if result.recomputed:
        console.print()
        recomputed_grid(result).print(console)
    console.print()
    for line in efficiency_lines(result):
        console.print(line, highlight=False, markup=False)
    notes(console, result.notes)


def verdict(result: Speed) -> str:
    decode = result.decode.seconds
    first = "" if result.prefill.seconds is None else f"first token after ~{milliseconds(result.prefill.seconds.likely)} ms, then "
    each = "" if decode is None else f"~{milliseconds(decode.likely)} ms a token"
    asked = f"{counted(result.batch, 'request')} of {counted(result.context, 'token')}"
    return f"{printable(result.model.name)} on {printable(result.gpu.name)}: {first}{each} with {asked}"


def setup_line(result: Speed) -> str:
    """Whose rules, how weights and cache are stored, on how many GPUs."""
    said = f"engine {with_version(result.engine, result.engine_version)}, weights {result.weights}, KV dtype {result.kv_dtype}, {_gpus(result)}"
    return printable(said)


def chunked_line(chunked: Chunked) -> str:
    """What chunked prefill does for other requests."""
    tokens, wait, whole = chunked.tokens, milliseconds(chunked.wait_s), milliseconds(chunked.whole_wait_s)
    chunks = f"In chunks of {counted(tokens, 'token')} (--max-batched-tokens {tokens})"
    return f"{chunks} others wait ~{wait} ms for the last of a prompt, not ~{whole} for all at once."


def efficiency_lines(result: Speed) -> list[str]:
    """What the range rests on."""
    return [f"Likely {name}: {printable(text)}." for name, text in result.efficiency.items()]


def _gpus(result: Speed) -> str:
    parallel = result.parallel
    parts = [f"{name} {number}" for name, number in (("tp", parallel.tp), ("pp", parallel.pp), ("dp", parallel.dp)) if number > 1]
    return "1 GPU" if result.gpus == 1 else f"{result.gpus} GPUs: {' x '.join(parts)}"


def times_grid(result: Speed) -> Grid:
    table = Grid(left=["milliseconds"], right=["at least", "likely", "low", "high"])
    for name, phase in ((f"first token (prompt of {result.prompt:,})", result.prefill), (f"each token (batch of {result.batch:,})", result.decode)):
        if phase.seconds is None:
            table.add(name, "not known", "", "", "")
        else:
            seconds = phase.seconds
            table.add(name, milliseconds(seconds.lower), f"~{milliseconds(seconds.likely)}", milliseconds(seconds.low), milliseconds(seconds.high))
    return table


def sides_lines(result: Speed) -> list[str]:
    """Which side is slow, and what binds each."""
    lines = []
    if result.prefill.seconds is not None:
        lines.append(f"Prefill is bound by {BOUND_BY[result.prefill.bound_by]}: {_longest(result.prefill)}.")
    share = f"{100 * result.kv_share:.0f} %" if result.kv_share >= 0.01 or result.kv_share == 0 else "less than 1 %"
    lines.append(f"Decode is bound by {BOUND_BY[result.decode.bound_by]}: {_longest(result.decode)}. Of its bytes {share} are KV cache.")
    if result.experts is not None:
        experts = result.experts
        lines.append(f"A step is expected to read {experts.distinct:,.2f} of the {experts.experts:,} experts of a layer; a token uses {experts.used:,}.")
    if result.turning_batch is not None:
        lines.append(f"Decode computes for longer than it moves bytes from a batch of {result.turning_batch:,} on.")
    elif result.turning_batch_uncached is not None:
        without = f"with nothing cached that ends at a batch of {result.turning_batch_uncached:,}"
        lines.append(f"At this context decode moves bytes for longer than it computes, whatever the batch; {without}.")
    if result.prefill_in_steps is not None:
        steps = max(1, round(result.prefill_in_steps))
        lines.append(f"The prompt takes as long as ~{counted(steps, 'token')} of decode: prefill is the slow side of shorter answers, decode of longer ones.")
    return lines


def _longest(phase: Phase) -> str:
    parts = {"computes": phase.compute_s, "moves bytes": phase.bandwidth_s, "sums among GPUs": phase.link_s or None}
    return ", ".join(f"{name} {milliseconds(seconds)} ms" for name, seconds in parts.items() if seconds is not None) + " at full rate"


def work_grid(result: Speed) -> Grid:
    """FLOPs and bytes of one GPU of each stage."""
    table = Grid(left=["work of one GPU"], right=["prefill", "decode step"])
    unit = binary_unit(max(result.prefill.moved_bytes, result.decode.moved_bytes))
    scale, name = _flop_unit(max(result.prefill.flops, result.decode.flops))
    for label, field in (("matrices", "linear_flops"), ("attention", "attention_flops"), ("recurrent states", "recurrence_flops")):
        values = [getattr(phase, field) for phase in (result.prefill, result.decode)]
        if any(values):
            table.add(f"{label}, {name}", *(_flops(value, scale) for value in values))
    for label, field in (
        ("weights", "weight_bytes"),
        ("KV read", "kv_read_bytes"),
        ("KV written", "kv_write_bytes"),
        ("states", "state_bytes"),
        ("summed among GPUs", "reduced_bytes"),
    ):
        values = [getattr(phase, field) for phase in (result.prefill, result.decode)]
        if any(values):
            table.add(f"{label}, {unit}", *(in_unit(value, unit) for value in values))
    table.add("FLOPs a byte", *(f"{phase.intensity:,.1f}" for phase in (result.prefill, result.decode)))
    return table


def _flop_unit(largest: int) -> tuple[int, str]:
    return (10**12, "TFLOP") if largest >= 10**12 else (10**9, "GFLOP")


def _flops(number: int, scale: int) -> str:
    value = number / scale
    return "0" if number == 0 else "< 0.01" if value < 0.005 else f"{value:,.2f}"


def rates_grid(result: Speed) -> Grid:
    table = Grid(left=["tokens a second"], right=["at most", "likely", "low", "high"])
    replicas = "" if result.parallel.dp == 1 else f", all {result.parallel.dp} replicas"
    rows = [("one request, decoding", result.request_tokens_s), (f"all requests, decoding{replicas}", result.decode_tokens_s)]
    if result.served_tokens_s is not None:
        rows.append((f"with the prompts of {result.prompt:,}{replicas}", result.served_tokens_s))
    for name, rate in rows:
        table.add(name, *_rate(rate))
    return table


def batches_grid(result: Speed) -> Grid:
    """Decode steps of other batches."""
    table = Grid(left=[], right=["batch", "each token, ms", "tokens/s", "FLOPs a byte"])
    for row in result.batches:
        table.add(f"{row.batch:,}", f"~{milliseconds(row.tpot_s)}", f"~{_per_second(row.tokens_s)}", f"{row.intensity:,.1f}")
    return table


def _rate(rate: Rate) -> tuple[str, str, str, str]:
    return _per_second(rate.upper), f"~{_per_second(rate.likely)}", _per_second(rate.low), _per_second(rate.high)


def _per_second(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.1f}"


WORTH_IT: Final = 0.98
"""What a lever leaves of a time at most, to be named for it."""


def prefill_levers_grid(result: Speed) -> Grid:
    """What makes the first token come earlier, the best first."""
    table = Grid(left=["sooner the first token"], right=["ms"])
    now = None if result.prefill.seconds is None else result.prefill.seconds.likely
    helping = [] if now is None else [(lever.ttft_s, lever) for lever in result.levers if lever.ttft_s is not None and lever.ttft_s < WORTH_IT * now]
    for seconds, lever in sorted(helping, key=lambda each: each[0]):
        table.add(_lever(lever), f"~{milliseconds(seconds)}")
    return table


def decode_levers_grid(result: Speed) -> Grid:
    """What makes decoding faster, the best first."""
    table = Grid(left=["faster decoding"], right=["each token, ms", "tokens/s"])
    now = result.decode_tokens_s.likely
    for lever in sorted(result.levers, key=lambda each: -each.tokens_s):
        if now < WORTH_IT * lever.tokens_s:
            table.add(_lever(lever), f"~{milliseconds(lever.tpot_s)}", f"~{_per_second(lever.tokens_s)}")
    return table


def _lever(lever: Lever) -> str:
    return f"{lever.text} ({lever.options})" if lever.options else lever.text


def doublings_grid(result: Speed) -> Grid:
    table = Grid(left=["grows by, with twice"], right=["the context", "plain model", "the batch", "plain model"])
    for row in result.doubling:
        table.add(row.what, f"{row.context:.2f}x", f"{row.plain_context:.2f}x", f"{row.batch:.2f}x", f"{row.plain_batch:.2f}x")
    return table


def recomputed_grid(result: Speed) -> Grid:
    scale, name = _flop_unit(max(row.recomputed_flops for row in result.recomputed))
    table = Grid(left=[], right=["generated tokens", f"cached, {name}", "attention", "without a cache", "attention", "times"])
    for row in result.recomputed:
        table.add(
            f"{row.tokens:,}",
            _flops(row.cached_flops, scale),
            _flops(row.cached_attention_flops, scale),
            _flops(row.recomputed_flops, scale),
            _flops(row.recomputed_attention_flops, scale),
            f"{row.recomputed_flops / row.cached_flops:,.0f}x",
        )
    return table

"""`kvcalc prefix` for a reader."""

from rich.console import Console

from kvcalc.errors import printable
from kvcalc.render.style import Grid, milliseconds, notes, with_version
from kvcalc.results.prefix import Break, Breaks, Hits, Prefix, Rate, Reading
from kvcalc.units import counted, format_bytes


def render_prefix(result: Prefix, console: Console) -> None:
    """The hit rate and what breaks it first, then the caches, the tree and the breaks one by one."""
    mark = "~" if result.tokens_by == "bytes" else ""
    served = result.budget or result.unlimited
    tokens = f"{mark}{counted(result.unlimited.tokens, 'token')}"
    of = "" if result.budget is None else " under the KV budget"
    _line(console, f"{counted(result.reading.prompts, 'prompt')}, {tokens}: {mark}{percent(served)} come from the prefix cache{of}", style="bold")
    by = "" if result.model is None else f", {printable(result.model.name)} read from {printable(result.model.source)}"
    block = f"blocks of {counted(result.block_tokens, 'token')}"
    _line(console, f"engine {with_version(result.engine, result.engine_version)}, {block}{by}")
    _line(console, _reading(result.reading))
    for malformed in result.reading.first_malformed:
        _line(console, f"  line {malformed.line:,}: {malformed.reason}")
    console.print()
    for sentence in verdict(result.breaks, mark):
        _line(console, sentence, style="bold")
    console.print()
    _caches(result, mark).print(console)
    console.print()
    _tree(result, mark, console)
    if result.breaks is not None:
        console.print()
        _breaks(result.breaks, mark).print(console)
    notes(console, result.notes)


def _line(console: Console, text: str, style: str = "") -> None:
    console.print(text, style=style, highlight=False, markup=False)


def percent(rate: Rate) -> str:
    return f"{_whole(rate)} %"


def _whole(rate: Rate) -> int:
    """Percent, rounded half up."""
    return (200 * rate.hit_tokens + rate.tokens) // (2 * rate.tokens) if rate.tokens else 0


def _reading(read: Reading) -> str:
    kinds = ", ".join(f"{number:,} {kind}" for kind, number in read.kinds.items())
    left_out = f"; {read.malformed:,} of {read.lines:,} lines left out" if read.malformed else ""
    return f"read from {printable(read.source)} as {read.format}: {kinds}{left_out}"


def verdict(breaks: Breaks | None, mark: str) -> list[str]:
    """What breaks sharing and what that costs, a sentence each."""
    if breaks is None:
        return ["no break is worth moving: prompts that differ do not agree again, or that costs next to nothing"]
    now, best = _whole(breaks.now), _whole(breaks.all_moved)
    said = []
    for each in breaks.found:
        possible = _whole(each.moved)
        if possible > now:
            said.append(f"{_named(each)} costs you {mark}{possible - now} % of a possible {mark}{possible} % hit rate")
    if len(breaks.found) > 1 and best > max((_whole(each.moved) for each in breaks.found), default=0):
        said.append(f"together, these {len(breaks.found)} breaks cost you {mark}{best - now} % of a possible {mark}{best} % hit rate")
    return said or [f"no break costs 1 % of the hit rate: {mark}{now} %"]


def _named(each: Break) -> str:
    if each.role == "tools" and each.remedy == "sorted":
        return f"the {' and '.join(each.kinds)}"
    form = f" ({each.shown})" if each.shown else ""
    return f"the {' and '.join(each.kinds)}{form} in {_where(each)}"


def _where(each: Break) -> str:
    if each.role == "tools":
        return f"line {each.line:,} of the tools"
    if each.role is None and each.part == 1:
        return f"line {each.line:,}"
    whose = f"the {each.role} message" if each.role is not None and each.part == 1 else f"message {each.part:,}"
    return f"line {each.line:,} of {whose}" + (f" ({each.role})" if each.role is not None and each.part > 1 else "")


def _place(each: Break) -> str:
    """The same for a table."""
    if each.role is None and each.part == 1:
        return f"line {each.line:,}"
    whose = each.role if each.role is not None else "message"
    return f"{whose}{'' if each.part == 1 or each.role == 'tools' else f' {each.part:,}'}, line {each.line:,}"


def _caches(result: Prefix, mark: str) -> Grid:
    timed = result.unlimited.seconds_saved_low is not None
    grid = Grid(left=["cache"], right=["hit rate", "tokens saved", "prompts hit", *(["ms saved"] if timed else [])])
    for name, hits in (("without end", result.unlimited), (_budget(result.budget), result.budget)):
        if hits is not None:
            found = f"{hits.prompts_hit:,} of {hits.prompts:,}"
            grid.add(name, mark + percent(hits), f"{mark}{hits.hit_tokens:,}", found, *([_seconds(hits)] if timed else []))
    return grid


def _budget(hits: Hits | None) -> str:
    return "" if hits is None else f"KV budget, {hits.capacity_tokens:,} tokens"


def _seconds(hits: Hits) -> str:
    """Of prefill: the low and the high end of what is likely."""
    low, high = hits.seconds_saved_low or 0.0, hits.seconds_saved_high or 0.0
    return f"~{milliseconds(low)} to {milliseconds(high)}"


def _tree(result: Prefix, mark: str, console: Console) -> None:
    tree = result.tree
    _line(console, f"{mark}{tree.blocks:,} whole blocks, {mark}{tree.distinct_blocks:,} of them distinct, {mark}{tree.shared_blocks:,} in more than one prompt")
    if tree.alone_bytes is not None and tree.once_bytes is not None and tree.shared_bytes is not None:
        sizes = [mark + format_bytes(size) for size in (tree.alone_bytes, tree.once_bytes, tree.shared_bytes)]
        _line(console, f"KV cache on one GPU: {sizes[0]} prompt by prompt, {sizes[1]} with equal beginnings held once: {sizes[2]} shared")
    if tree.trunks:
        grid = Grid(left=["shared beginnings"], right=["tokens", "prompts"])
        for trunk in tree.trunks:
            grid.add(f"{'  ' * trunk.level}from token {mark}{trunk.start_tokens:,}", f"{mark}{trunk.tokens:,}", f"{trunk.prompts:,}")
        console.print()
        grid.print(console)


def _breaks(breaks: Breaks, mark: str) -> Grid:
    grid = Grid(left=["where sharing breaks", "what stands there"], right=["token", "prompts", "if moved"])
    for each in breaks.found:
        remedy = "" if each.remedy == "moved" else " (sorted)"
        grid.add(_place(each), ", ".join(each.kinds), f"{mark}{each.token:,}", f"{each.prompts:,}", f"{mark}{percent(each.moved)}{remedy}")
    if len(breaks.found) > 1:
        grid.add("all of them", "", "", "", mark + percent(breaks.all_moved))
    return grid

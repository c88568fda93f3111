"""What older releases of vLLM do otherwise than 0.33.0, and the flags that each has. A release counts by its minor number."""

import re
from typing import Final, NamedTuple

from kvcalc.errors import ExitCode, KvcalcError

OLDEST: Final = 4
NEWEST: Final = 33
NEWEST_RELEASE: Final = "0.33.0"


class Version(NamedTuple):
    """A release, 0.`minor`. Each property says what its code does (read at 0.4.3, 0.6.6, 0.8.5, 0.9.2, 0.11.0, 0.14.1, 0.18.0, 0.20.0, 0.22.0, 0.25.0, 0.28.0
    and 0.33.0; a release between two of these counts as the older one): vllm/core and vllm/v1/core/kv_cache_utils.py of that release.
    """

    minor: int

    @property
    def number(self) -> str:
        return NEWEST_RELEASE if self.minor == NEWEST else f"0.{self.minor}"

    @property
    def utilization_percent(self) -> int:
        """The default of --gpu-memory-utilization."""
        return 92 if self.minor >= 20 else 90

    @property
    def one_kind_of_layer(self) -> bool:
        """Every layer keeps every token; a request of M tokens counts as M / block blocks, in parts."""
        return self.minor < 9

    @property
    def pools_states(self) -> bool:
        """States lie in blocks of the KV pool."""
        return self.minor >= 11

    @property
    def copies_states(self) -> bool:
        """Prefix caching, which is on by default, keeps a second state at a block boundary. Public logs of 0.25 and older hold one, of 0.27 two."""
        return self.minor >= 27

    @property
    def checkpoints_states(self) -> bool:
        """Prefix caching keeps a checkpoint beside these, and aligns blocks to it."""
        return self.minor >= 33

    @property
    def keeps_chunks(self) -> bool:
        """Chunked attention is allocated as such, not as full attention."""
        return self.minor >= 14

    @property
    def stores_v_apart(self) -> bool:
        """K and V may differ in width, and a sparse MLA row is plain unless fp8 is asked for."""
        return self.minor >= 14

    @property
    def group_growth_percent(self) -> int:
        """Groups take the size of the largest bucket where it is less than this part of the smallest."""
        return 100 if self.minor < 14 else 125 if self.minor < 18 else 150

    @property
    def tokens_follow_requests(self) -> bool:
        """The token line is concurrency x context; before, it is blocks x block size over the number of groups."""
        return self.minor >= 22

    @property
    def batches_overlap(self) -> bool:
        """Windows hold the tokens of all batches in flight; before, those of one."""
        return self.minor >= 28

    @property
    def batches_by_device(self) -> bool:
        """Batch defaults follow the GPU; before (V0), a server had the same everywhere (EngineArgs.max_num_seqs, vllm/engine/arg_utils.py, 0.5.4)."""
        return self.minor >= 8

    @property
    def spares_a100(self) -> bool:
        """An A100 of 80 GB takes the small batches (vllm pull request 17885)."""
        return self.minor >= 9

    @property
    def has_large_tier(self) -> bool:
        """Batch defaults of their own for GPUs of 160 GiB and more."""
        return self.minor >= 28

    @property
    def packs_groups(self) -> bool:
        """Pages of several sizes share a block id, and new KV dtypes are there; one block is never given to a request."""
        return self.minor >= 33

    def has_flag(self, flag: str) -> bool:
        return self.minor >= FLAGS_SINCE.get(flag, OLDEST)

    def check_flag(self, flag: str) -> None:
        """Raises KvcalcError for a flag that this release does not have."""
        if not self.has_flag(flag):
            since = FLAGS_SINCE[flag]
            raise KvcalcError(f"vLLM {self.number} has no {flag}", hint=f"it came with 0.{since}: use --engine vllm@0.{since} or newer")


FLAGS_SINCE: Final = {
    "--data-parallel-size": 8,
    "--enable-expert-parallel": 8,
    "--speculative-config": 8,
    "--disable-hybrid-kv-cache-manager": 9,
    "--decode-context-parallel-size": 10,
    "--kv-cache-memory-bytes": 10,
    "--mamba-ssm-cache-dtype": 10,
    "--no-async-scheduling": 10,
    "--language-model-only": 17,
}
"""The first release that takes a flag, by its release notes (0.8.3, 0.8.2, 0.9.1, 0.10.2, 0.10.2, 0.10.1, 0.10.0) or the first read that has it (expert
parallelism in 0.8.5, the language model alone in 0.17.0); others are in all."""


def find_version(text: str) -> Version:
    """A release as typed: "0.11", "0.11.2", "v0.11". Raises KvcalcError (usage for what is no release, else unanswerable)."""
    matched = re.fullmatch(r"v?0\.(\d{1,3})(?:\.\w[\w.+-]*)?", text.strip())
    if matched is None:
        raise KvcalcError(f"vLLM release {text[:40]!r} is not written as 0.11 or 0.11.2", code=ExitCode.USAGE)
    minor = int(matched.group(1))
    if not OLDEST <= minor <= NEWEST:
        raise KvcalcError(f"vLLM 0.{minor} is not modelled", hint=f"0.{OLDEST} to 0.{NEWEST} are; the nearest is vllm@0.{min(max(minor, OLDEST), NEWEST)}")
    return Version(minor)


def modelled_engine(release: str | None) -> str | None:
    """The engine of a release as a server tells it or a log prints it ("0.11.2", "v0.11.2.dev3+g1a2b3c4"): vllm@0.11. None where that is not modelled."""
    matched = re.match(r"v?(0\.\d{1,3})(?!\d)", release or "", re.ASCII)
    if matched is None:
        return None
    try:
        find_version(matched[1])
    except KvcalcError:
        return None
    return f"vllm@{matched[1]}"

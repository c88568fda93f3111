"""One small file from a Hugging Face repository, through huggingface_hub: its cache, HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE count."""

import logging
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from kvcalc import __version__
from kvcalc.errors import ExitCode, KvcalcError
from kvcalc.units import format_bytes


class GatedError(KvcalcError):
    """The repository exists, but its files are shown only to those who accepted its terms."""


def fetch(repo: str, filename: str, revision: str | None, *, max_bytes: int) -> Path | None:
    """The path of the cached file, fetched where it is not cached yet; None where the repository has no such file.

    Of a commit, what the cache knows is final and nothing is asked. Raises GatedError, and KvcalcError for a repository or revision that does not
    exist (exit 3), a file larger than `max_bytes` (exit 3), and a Hub that cannot be reached or does not answer as one (exit 4). No message
    repeats what the Hub or a proxy said.
    """
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # else huggingface_hub asks for more than the file
    from huggingface_hub import constants, errors, try_to_load_from_cache
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    cached = try_to_load_from_cache(repo, filename, revision=revision)
    if cached is not None and (constants.is_offline_mode() or _COMMIT.fullmatch(revision or "")):
        return Path(cached) if isinstance(cached, str) else None
    if constants.is_offline_mode():
        hint = "unset it, or name a local config.json"
        raise KvcalcError(f"{filename} of {repo} is not in the cache, and HF_HUB_OFFLINE is set", hint=hint, code=ExitCode.ENVIRONMENT)
    try:
        return _download(repo, filename, revision, max_bytes)
    except (errors.GatedRepoError, errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        raise _refused(repo, revision, error) from None
    except KvcalcError:
        raise
    except Exception as error:  # noqa: BLE001 (the HTTP library below huggingface_hub raises types of its own, others with each major version)
        if isinstance(cached, str):
            return Path(cached)
        raise _unreachable(repo, filename, error) from None


def _download(repo: str, filename: str, revision: str | None, max_bytes: int) -> Path | None:
    """Asks for the size first, so that a large file is never downloaded, and once, since huggingface_hub's own look-up retries for minutes."""
    from huggingface_hub import constants, errors, get_hf_file_metadata, hf_hub_download, hf_hub_url, try_to_load_from_cache

    try:
        url = hf_hub_url(repo, filename, revision=revision)
        found = get_hf_file_metadata(url, timeout=constants.HF_HUB_ETAG_TIMEOUT, library_name="kvcalc", library_version=__version__)
    except errors.RemoteEntryNotFoundError:
        with suppress(errors.RemoteEntryNotFoundError):
            hf_hub_download(repo, filename, revision=revision, dry_run=True)  # notes the absence in the cache
        return None
    if found.commit_hash is None or found.etag is None:
        hint = "check HF_ENDPOINT, and whether a proxy stands between"
        raise KvcalcError(f"what answers for {filename} of {repo} is not a Hub", hint=hint, code=ExitCode.ENVIRONMENT)
    newest = try_to_load_from_cache(repo, filename, revision=found.commit_hash)
    if isinstance(newest, str):
        return Path(newest)
    if found.size is not None and found.size > max_bytes:
        raise KvcalcError(f"{filename} of {repo} is larger than {format_bytes(max_bytes)}: this is no model description")
    return Path(hf_hub_download(repo, filename, revision=revision, library_name="kvcalc", library_version=__version__))


_COMMIT = re.compile(r"[0-9a-f]{40}")


def _refused(repo: str, revision: str | None, error: Exception) -> KvcalcError:
    from huggingface_hub import constants, errors

    if isinstance(error, errors.GatedRepoError):
        hint = f"accept its terms at {constants.ENDPOINT}/{repo}, then set HF_TOKEN"
        return GatedError(f"{repo} is gated", hint=hint, code=ExitCode.ENVIRONMENT)
    if isinstance(error, errors.RepositoryNotFoundError):
        return KvcalcError(f"the Hub has no repository {repo}", hint="check the spelling; a private repository needs HF_TOKEN")
    return KvcalcError(f"{repo} has no revision {str(revision)[:60]!r}", hint="leave out --revision for the newest")


def _unreachable(repo: str, filename: str, error: BaseException) -> KvcalcError:
    chain = list(_causes(error))
    status = next((code for each in chain if isinstance(code := getattr(getattr(each, "response", None), "status_code", None), int)), None)
    names = {type(each).__name__ for each in chain}
    hint = "try again, name a preset (`kvcalc models`), or a local config.json"
    if status == 401:
        message, hint = f"the Hub refused the token for {repo}", "check HF_TOKEN"
    elif status == 429:
        message = f"the Hub allows no more requests for now ({filename} of {repo})"
    elif status is not None and status >= 400:
        message = f"the Hub answered {status} for {filename} of {repo}"
    elif any("Timeout" in name for name in names):
        message = f"the Hub did not answer in time for {filename} of {repo}"
    elif any(isinstance(each, PermissionError) for each in chain):
        message, hint = f"the Hub's cache cannot be written for {repo}", "set HF_HOME to a folder that can"
    elif any("Connect" in name or "Proxy" in name for name in names):
        message = f"the Hub cannot be reached for {filename} of {repo}"
    else:
        message = f"{filename} of {repo} did not arrive whole"
    return KvcalcError(message, hint=hint, code=ExitCode.ENVIRONMENT)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An exception and what it was raised from, outermost first."""
    seen = 0
    while error is not None and seen < 20:
        yield error
        error, seen = error.__cause__ or error.__context__, seen + 1

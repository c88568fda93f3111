"""One small file from a Hugging Face repository, through huggingface_hub: its cache, HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE count."""

import logging
from collections.abc import Iterator
from pathlib import Path

from kvcalc import __version__
from kvcalc.errors import ExitCode, KvcalcError
from kvcalc.units import format_bytes


class GatedError(KvcalcError):
    """The repository exists, but its files are shown only to those who accepted its terms."""


def fetch(repo: str, filename: str, revision: str | None, *, max_bytes: int) -> Path | None:
    """The path of the cached file, fetched where it is not cached yet; None where the repository has no such file.

    Raises GatedError, and KvcalcError for a repository or revision that does not exist (exit 3), a file larger than `max_bytes` (exit 3), and a Hub
    that cannot be reached or does not answer as one (exit 4). No message repeats what the Hub or a proxy said.
    """
    from huggingface_hub import constants, errors, hf_hub_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    try:
        found = hf_hub_download(repo, filename, revision=revision, library_name="kvcalc", library_version=__version__, dry_run=True)
        if found.is_cached:
            return Path(found.local_path)
        if found.file_size is None or found.file_size <= max_bytes:
            return Path(hf_hub_download(repo, filename, revision=revision, library_name="kvcalc", library_version=__version__))
    except errors.GatedRepoError:
        hint = f"accept its terms at {constants.ENDPOINT}/{repo}, then set HF_TOKEN"
        raise GatedError(f"{repo} is gated", hint=hint, code=ExitCode.ENVIRONMENT) from None
    except errors.RepositoryNotFoundError:
        raise KvcalcError(f"the Hub has no repository {repo}", hint="check the spelling; a private repository needs HF_TOKEN") from None
    except errors.RevisionNotFoundError:
        raise KvcalcError(f"{repo} has no revision {str(revision)[:60]!r}", hint="leave out --revision for the newest") from None
    except errors.RemoteEntryNotFoundError:
        return None
    except Exception as error:  # noqa: BLE001 (the HTTP library below huggingface_hub raises types of its own, another with each major version)
        if constants.is_offline_mode():
            if filename != "config.json":
                return None
            raise _offline(repo, filename) from None
        raise _unreachable(repo, filename, error) from None
    raise KvcalcError(f"{filename} of {repo} is larger than {format_bytes(max_bytes)}: this is no model description")


def _offline(repo: str, filename: str) -> KvcalcError:
    return KvcalcError(
        f"{filename} of {repo} is not in the cache, and HF_HUB_OFFLINE is set", hint="unset it, or name a local config.json", code=ExitCode.ENVIRONMENT
    )


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
    elif "FileMetadataError" in names:
        message, hint = f"what answers for {filename} of {repo} is not a Hub", "check HF_ENDPOINT, and whether a proxy stands between"
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

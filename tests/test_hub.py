"""Hub ids against a Hub on loopback: what is fetched, and each way it can fail."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command import Done, kvcalc
from tests.loopback import COMMIT, Hub, serving

CONFIG = {"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 128}
BYTES = 2 * 4 * 128 * 2 * 32 * 2
TOKEN = "hf_" + "secretsecretsecret"


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving() as running:
        yield running


def ask(hub: Hub, home: Path, *words: str, **env: str) -> Done:
    settings = {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0", "HF_HUB_ETAG_TIMEOUT": "2", "HF_HUB_DOWNLOAD_TIMEOUT": "2", **env}
    done = kvcalc("estimate", "--quiet", "--model", *words, env=settings)
    assert TOKEN not in done.out + done.err
    return done


def test_config_json_is_fetched_once_and_nothing_else_is(hub: Hub, tmp_path: Path) -> None:
    hub.add("org/model", CONFIG)
    assert ask(hub, tmp_path, "org/model") == Done(0, f"{BYTES}\n", "")
    assert {name for method, name in hub.asked if method == "GET"} == {"org/model@main/config.json"}
    assert {name for _, name in hub.asked} == {"org/model@main/config.json", f"org/model@{COMMIT}/hf_quant_config.json"}
    hub.asked.clear()
    assert ask(hub, tmp_path, "org/model").out == f"{BYTES}\n"
    assert hub.asked == [("HEAD", "org/model@main/config.json")]


def test_the_quant_file_is_not_asked_for_beside_a_quantization_config(hub: Hub, tmp_path: Path) -> None:
    hub.add("org/model", {**CONFIG, "quantization_config": {"quant_method": "fp8"}})
    assert ask(hub, tmp_path, "org/model").code == 0
    assert {name for _, name in hub.asked} == {"org/model@main/config.json"}


def test_the_quant_file_is_read_where_there_is_one(hub: Hub, tmp_path: Path) -> None:
    hub.add("org/model", CONFIG)
    hub.add("org/model", {"producer": {"name": "modelopt"}, "quantization": {"kv_cache_quant_algo": "FP8"}}, "hf_quant_config.json")
    assert ask(hub, tmp_path, "org/model").out == f"{BYTES // 2}\n"


def test_the_cache_serves_offline_and_revision_is_honoured(hub: Hub, tmp_path: Path) -> None:
    hub.add("org/model", CONFIG)
    assert ask(hub, tmp_path, "org/model", "--revision", COMMIT).code == 0
    assert ("GET", f"org/model@{COMMIT}/config.json") in hub.asked
    hub.asked.clear()
    assert ask(hub, tmp_path, "org/model", "--revision", COMMIT, HF_HUB_OFFLINE="1").out == f"{BYTES}\n"
    assert hub.asked == []


def test_a_token_is_sent_to_the_hub_alone(hub: Hub, tmp_path: Path) -> None:
    hub.add("org/model", CONFIG)
    assert ask(hub, tmp_path, "org/model", HF_TOKEN=TOKEN).code == 0
    assert hub.tokens == {f"Bearer {TOKEN}"}


def test_nothing_that_a_repository_holds_is_run(hub: Hub, tmp_path: Path) -> None:
    hub.add("org/model", {**CONFIG, "auto_map": {"AutoConfig": "evil.Evil"}})
    assert ask(hub, tmp_path, "org/model").code == 0
    assert "evil" not in " ".join(name for _, name in hub.asked)


def fails(done: Done, code: int, said: str) -> None:
    assert done.out == ""
    assert done.code == code, done.err
    assert done.err.startswith("error: ")
    assert said in done.err
    assert len(done.err.splitlines()) <= 2


def test_a_missing_repository(hub: Hub, tmp_path: Path) -> None:
    fails(ask(hub, tmp_path, "org/nothing"), 3, "the Hub has no repository org/nothing")


def test_a_missing_revision(hub: Hub, tmp_path: Path) -> None:
    hub.add("org/model", CONFIG)
    fails(ask(hub, tmp_path, "org/model", "--revision", "v9"), 3, "no revision 'v9'")


def test_a_repository_without_config(hub: Hub, tmp_path: Path) -> None:
    hub.add("org/model", b"gguf", "model.gguf")
    fails(ask(hub, tmp_path, "org/model"), 3, "org/model has no config.json")


def test_a_gated_repository(hub: Hub, tmp_path: Path) -> None:
    hub.add("org/model", b"", status=403, headers={"X-Error-Code": "GatedRepo"})
    done = ask(hub, tmp_path, "org/model", HF_TOKEN=TOKEN)
    fails(done, 4, "org/model is gated")
    assert "HF_TOKEN" in done.err


def test_a_gated_model_that_is_a_preset_is_answered_and_says_so(hub: Hub, tmp_path: Path) -> None:
    hub.add("meta-llama/Meta-Llama-3-8B", b"", status=401, headers={"X-Error-Code": "GatedRepo"})
    assert ask(hub, tmp_path, "meta-llama/Meta-Llama-3-8B").out == f"{1 << 30}\n"
    said = kvcalc("estimate", "--json", "-m", "meta-llama/Meta-Llama-3-8B", env={"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0"})
    assert said.json["model"]["source"] == "preset llama-3-8b"
    assert [note["code"] for note in said.json["notes"]] == ["gated"]
    fails(ask(hub, tmp_path, "meta-llama/Meta-Llama-3-8B", "--revision", "main"), 4, "is gated")


def test_offline_without_a_cached_copy(hub: Hub, tmp_path: Path) -> None:
    hub.add("org/model", CONFIG)
    fails(ask(hub, tmp_path, "org/model", HF_HUB_OFFLINE="1"), 4, "HF_HUB_OFFLINE is set")
    assert hub.asked == []


def test_no_network(tmp_path: Path) -> None:
    with serving() as gone:
        pass
    fails(ask(gone, tmp_path, "org/model"), 4, "the Hub cannot be reached")


def test_no_network_but_a_cached_copy(tmp_path: Path) -> None:
    with serving() as hub:
        hub.add("org/model", CONFIG)
        assert ask(hub, tmp_path, "org/model").code == 0
    assert ask(hub, tmp_path, "org/model").out == f"{BYTES}\n"


def test_a_quant_file_that_cannot_be_looked_for_is_noted(hub: Hub, tmp_path: Path) -> None:
    hub.add("org/model", CONFIG)
    hub.add("org/model", b"", "hf_quant_config.json", status=503)
    said = kvcalc("estimate", "--json", "-m", "org/model", env={"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0"})
    assert said.json["total_bytes"] == BYTES
    assert "quant-file" in [note["code"] for note in said.json["notes"]]


def test_a_hub_that_does_not_answer(hub: Hub, tmp_path: Path) -> None:
    hub.add("org/model", CONFIG, delay_s=30)
    fails(ask(hub, tmp_path, "org/model", HF_HUB_ETAG_TIMEOUT="1"), 4, "did not answer in time")


def test_a_page_of_a_proxy_instead_of_a_hub(hub: Hub, tmp_path: Path) -> None:
    hub.add("org/model", b"<html>log in</html>", hub_headers=False)
    fails(ask(hub, tmp_path, "org/model"), 4, "is not a Hub")


def test_a_page_that_pretends_to_be_the_file(hub: Hub, tmp_path: Path) -> None:
    hub.add("org/model", b"<html>log in</html>")
    fails(ask(hub, tmp_path, "org/model"), 4, "is a web page, not JSON")


def test_a_file_that_is_cut_short(hub: Hub, tmp_path: Path) -> None:
    hub.add("org/model", b'{"model_type": "lla')
    fails(ask(hub, tmp_path, "org/model"), 3, "is not valid JSON")


def test_a_file_too_large_is_not_downloaded(hub: Hub, tmp_path: Path) -> None:
    hub.add("org/model", b"{}", length=50_000_000)
    fails(ask(hub, tmp_path, "org/model"), 3, "is larger than 8.00 MiB")
    assert {method for method, _ in hub.asked} == {"HEAD"}


@pytest.mark.parametrize(("status", "said"), [(401, "refused the token"), (429, "no more requests"), (500, "answered 500"), (503, "answered 503")])
def test_a_hub_that_answers_with_an_error(hub: Hub, tmp_path: Path, status: int, said: str) -> None:
    hub.add("org/model", b"", status=status)
    fails(ask(hub, tmp_path, "org/model", HF_TOKEN=TOKEN), 4, said)

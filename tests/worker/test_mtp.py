"""The modules are wired as transformers wires them, or as the equations say where it has no such wiring."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaForCausalLM
from transformers.cache_utils import MtpCache
from transformers.modeling_layers import MtpModel

from augury.types import SamplingParams
from tests.worker.driver import Driver
from tests.worker.tiny import BLOCK_SIZE, VOCAB_SIZE, limit_drafts, save_mtp
from worker_svc.attention import make_attention
from worker_svc.batch import Span, make_batch
from worker_svc.engine import Engine, EngineOptions
from worker_svc.kv import Kv
from worker_svc.model.description import read_architecture
from worker_svc.model.groups import make_layout
from worker_svc.model.llama import Llama
from worker_svc.model.mtp import Modules, Queries, Rows
from worker_svc.model.policy import ChainKind
from worker_svc.model.weights import Checkpoint

torch.set_num_threads(1)

TOKENS = torch.randint(0, VOCAB_SIZE, (40,), generator=torch.Generator().manual_seed(3))
"""The text, and behind it what the last row's modules read."""


@pytest.mark.parametrize("num_modules", [1, 3])
@pytest.mark.parametrize("concat", ["embed_hidden", "hidden_embed"])
def test_a_chain_equals_the_mtp_model_of_transformers(num_modules: int, concat: str, tmp_path: Path) -> None:
    tensors = save_mtp(tmp_path, num_modules, {"concat": concat})
    ours = our_logits(tmp_path, num_modules)
    theirs = their_logits(their_modules(tmp_path, tensors, num_modules, concat), num_modules)
    for mine, reference in zip(ours, theirs, strict=True):
        assert (mine - reference).abs().max() < 1e-4
        assert reference.std() > 0.5


@torch.inference_mode()
def test_drafts_are_those_of_transformers(tmp_path: Path) -> None:
    tensors = save_mtp(tmp_path, 3)
    main, mtp = their_modules(tmp_path, tensors, 3, "embed_hidden")
    driver = Driver(Engine.load(tmp_path, EngineOptions(dtype="float32", num_blocks=40, block_size=4, depth=3)), 1)
    for length in (1, 2, 3, 7, 20, 37):
        request = driver.add(tuple(TOKENS[:length].tolist()), 8, SamplingParams(temperature=0))
        driver.step({len(driver.requests) - 1: 7})
        while not request.emitted:
            driver.step({len(driver.requests) - 1: 7})
        tokens = torch.tensor([request.tokens])
        hidden = main.model(tokens[:, :-1]).last_hidden_state
        cache = MtpCache(config=main.config.get_mtp_config())
        positions = torch.arange(1, length + 1)[None]
        theirs, *_ = mtp(tokens[:, 1:], hidden, None, positions, cache)
        assert request.drafted[length + 1] == theirs[0].tolist()


POLICIES = [
    {"chain": chain, "target_hidden": target, "chain_hidden": passed_on, "out_norm": norm, "head": head}
    for chain, passed_on in [("chained", "pre_norm"), ("chained", "post_norm"), ("parallel", "pre_norm")]
    for target in ("pre_norm", "post_norm")
    for norm, head in [("shared", "shared"), ("per_module", "per_module"), ("none", "per_module")]
]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: " ".join(policy.values()))
def test_every_policy_follows_its_equations(policy: dict[str, str], tmp_path: Path) -> None:
    """Around the decoder layer of transformers, with windows in the layers of the model and of one module."""
    windows = {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]}
    module_windows = ["full_attention", "sliding_attention"]
    tensors = save_mtp(tmp_path, 2, policy | {"layer_types": module_windows}, **windows)
    for mine, reference in zip(our_logits(tmp_path, 2), hand_wrapped(tmp_path, tensors, policy), strict=True):
        assert (mine - reference).abs().max() < 1e-4


def test_the_draft_head_reads_the_subset_alone(tmp_path: Path) -> None:
    save_mtp(tmp_path, 2)
    whole = our_logits(tmp_path, 2)
    subset = [5, 0, 96, 17]
    limit_drafts(tmp_path, subset)
    for some, every in zip(our_logits(tmp_path, 2), whole, strict=True):
        torch.testing.assert_close(some, every[:, subset])


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_modules_that_are_not_used_are_not_loaded(depth: int, tmp_path: Path) -> None:
    save_mtp(tmp_path, 3)
    limit_drafts(tmp_path, [1, 2, 3])
    engine = Engine.load(tmp_path, EngineOptions(dtype="float32", num_blocks=4, depth=depth))
    assert len(engine.kv.layers) == 2 + depth


def test_modules_in_the_file_of_the_model_are_found(tmp_path: Path) -> None:
    save_mtp(tmp_path, 2)
    expected = our_logits(tmp_path, 2)
    merged = load_file(tmp_path / "model.safetensors") | load_file(tmp_path / "mtp.safetensors")
    (tmp_path / "mtp.safetensors").unlink()
    save_file(merged, tmp_path / "model.safetensors")
    assert all(map(torch.equal, our_logits(tmp_path, 2), expected))


def test_a_checkpoint_that_says_nothing_is_wired_as_deepseek_v3(tmp_path: Path) -> None:
    save_mtp(tmp_path, 1, {"head": "per_module"})
    expected = our_logits(tmp_path, 1)
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace('"mtp":', '"no_mtp":'))
    assert all(map(torch.equal, our_logits(tmp_path, 1), expected))
    assert Engine.load(tmp_path, EngineOptions(num_blocks=9, depth=4)).description.max_drafts == 4


# --- ours ---


@torch.inference_mode()
def our_logits(path: Path, num_modules: int) -> list[Tensor]:
    """[rows, draft vocabulary] what each module says at every row of TOKENS but the last ones, which it reads ahead."""
    architecture, checkpoint = read_architecture(path), Checkpoint(path, torch.float32)
    model = Llama(architecture, checkpoint, 64)
    modules = Modules(architecture, checkpoint, model, num_modules)
    kv = Kv(architecture, make_layout(architecture, num_modules, BLOCK_SIZE, hybrid=False), torch.float32, 16)
    num_rows, blocks = len(TOKENS) - num_modules, list(range(15, 0, -1))
    span = Span(start=0, num_new=num_rows, num_context=num_rows, blocks=[blocks])
    batch = make_batch([TOKENS[:num_rows].tolist()], [span], BLOCK_SIZE)
    attend = make_attention("cpu").prepare([span], BLOCK_SIZE)
    kv.claim(blocks)
    h = model.forward(batch, kv, attend)
    g = h if modules.policy.target_hidden == "pre_norm" else model.norm(h)
    rows = Rows(slots={0: kv.rows(batch.slots[0])}, rotation=model.rotation(batch.positions))
    logits = []
    for m in range(num_modules):
        y = modules.run(m, TOKENS[m + 1 : m + 1 + num_rows], g, rows, Queries(index=None, attend=attend), kv)
        normed = modules.normed(m, y)
        logits.append(modules.logits(m, normed))
        if modules.policy.chain is ChainKind.CHAINED:
            g = y if modules.policy.chain_hidden == "pre_norm" else normed
    return logits


# --- theirs ---


def load(path: Path) -> Any:
    model: Any = LlamaForCausalLM.from_pretrained(path, attn_implementation="eager")
    return model.eval()


def their_modules(path: Path, tensors: dict[str, Tensor], num_modules: int, concat: str) -> Any:
    main = load(path)
    main.config.num_mtp_layers = num_modules
    main.config.mtp_hidden_states_first = concat == "hidden_embed"
    model: Any = MtpModel(main, num_modules)
    model.eval()
    for index, layer in enumerate(model.layers):
        own = of_module(tensors, index)
        wrapper = {
            "enorm.weight": own.pop("enorm.weight"),
            "hnorm.weight": own.pop("hnorm.weight"),
            "eh_proj.weight": own.pop("eh_proj.weight"),
            "post_norm.weight": own.pop("shared_head.norm.weight"),
        }
        layer.load_state_dict(wrapper | {f"mtp_block.{name}": tensor for name, tensor in own.items()})
    return main, model


@torch.inference_mode()
def their_logits(models: Any, num_modules: int) -> list[Tensor]:
    main, model = models
    num_rows = len(TOKENS) - num_modules
    hidden = main.model(TOKENS[None, :num_rows]).last_hidden_state
    cache = MtpCache(config=main.config.get_mtp_config())
    logits = []
    for m in range(num_modules):
        ids = TOKENS[None, m + 1 : m + 1 + num_rows]
        positions = torch.arange(m + 1, m + 1 + num_rows)[None]
        hidden = model.forward_layer(m, hidden, positions, cache, input_ids=ids)
        logits.append(model._project_to_logits(hidden)[0])
    return logits


def of_module(tensors: dict[str, Tensor], index: int) -> dict[str, Tensor]:
    prefix = f"model.layers.{2 + index}."
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


# --- by hand ---


@torch.inference_mode()
def hand_wrapped(path: Path, tensors: dict[str, Tensor], policy: dict[str, str]) -> list[Tensor]:
    """x = W [norm(E[t]); norm(g)], y = layer(x), logits = head(norm(y)), with two modules."""
    main = load(path)
    num_rows = len(TOKENS) - 2
    h = run_layers(main, main.model.embed_tokens(TOKENS[:num_rows]), main.model.layers, [6, None])
    target = g = main.model.norm(h) if policy["target_hidden"] == "post_norm" else h
    logits = []
    for m, window in enumerate([None, 6]):
        own = of_module(tensors, m)
        e = rms(main.model.embed_tokens(TOKENS[m + 1 : m + 1 + num_rows]), own["enorm.weight"])
        x = torch.cat([e, rms(g, own["hnorm.weight"])], -1) @ own["eh_proj.weight"].T
        layer: Any = type(main.model.layers[0])(main.config, 0).eval()
        layer.load_state_dict({name: own[name] for name in layer.state_dict()})
        y = run_layers(main, x, [layer], [window])
        normed = {
            "none": y,
            "shared": main.model.norm(y),
            "per_module": rms(y, own.get("shared_head.norm.weight", torch.ones(1))),
        }[policy["out_norm"]]
        head = own["shared_head.head.weight"] if policy["head"] == "per_module" else main.lm_head.weight
        logits.append(normed @ head.T)
        passed_on = normed if policy["chain_hidden"] == "post_norm" else y
        g = passed_on if policy["chain"] == "chained" else target
    return logits


def run_layers(main: Any, x: Tensor, layers: Any, windows: list[int | None]) -> Tensor:
    positions = torch.arange(len(x))
    distance = positions[:, None] - positions
    for layer, window in zip(layers, windows, strict=True):
        hidden = (distance < 0) | (distance >= (window or len(x)))
        mask = torch.zeros(1, 1, *hidden.shape).masked_fill_(hidden, -torch.inf)
        rotary = main.model.rotary_emb(x[None], positions[None])
        x = layer(x[None], attention_mask=mask, position_embeddings=rotary)[0]
    return x


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight

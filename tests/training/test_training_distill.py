"""Distillation: it learns, it is reproducible, it can be taken up again, and its files are what an engine loads."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.training.tiny_chain import (
    NUM_MODULES,
    all_tokens,
    architecture,
    examples_of,
    random_base,
    random_chain,
    random_text,
)
from worker_svc.training.base import Base
from worker_svc.training.chain import Chain
from worker_svc.training.distill import Example, Frozen, Recipe, Run, head_slice, losses, make_batch
from worker_svc.training.evaluate import module_drafts
from worker_svc.training.export import export, load_exported
from worker_svc.training.start import start

torch.set_num_threads(1)

RECIPE = Recipe(solo_epochs=2, epochs=4, batch_tokens=200, warmup=2)


@pytest.fixture
def base() -> Base:
    torch.manual_seed(0)
    return random_base(architecture())


@pytest.fixture
def examples(base: Base) -> list[Example]:
    return examples_of(base, [random_text(i, 30 + i, 5, 50) for i in range(24)])


def new_run(base: Base, examples: list[Example]) -> tuple[Run, Chain]:
    torch.manual_seed(1)
    chain, frozen = Chain(base.architecture, (None,) * NUM_MODULES), all_tokens(base)
    start(chain, base.last_layer, frozen, examples)
    return Run(chain, frozen, examples, RECIPE), chain


def test_every_module_that_learns_gets_better(base: Base, examples: list[Example]) -> None:
    run, _ = new_run(base, examples)
    (first,), (second,) = run.train_epoch(), run.train_epoch()
    third, fourth = run.train_epoch(), run.train_epoch()
    assert second < first
    assert len(third) == len(fourth) == NUM_MODULES
    assert all(later < earlier for earlier, later in zip(third, fourth, strict=True))


class Shifted(Chain):
    """Modules that return the base's own hidden state, ``ahead`` rows off the right one."""

    ahead = 0

    def forward(self, hidden_bte: torch.Tensor, embedding_bte: torch.Tensor, depth: int) -> list[torch.Tensor]:
        starts = [m + 1 + self.ahead for m in range(depth)]
        return [hidden_bte[:, start : start + hidden_bte.shape[1] - len(self)] for start in starts]


class Keeping(Shifted):
    ahead = -1


def test_the_start_is_better_than_keeping_the_last_hidden_state(base: Base, examples: list[Example]) -> None:
    _, chain = new_run(base, examples)
    keeping = Keeping(base.architecture, chain.windows)
    batch, frozen = make_batch(examples[:8], all_tokens(base), NUM_MODULES), all_tokens(base)
    started, kept = (losses(each.eval(), batch, frozen.head_de, 1, 1.0).item() for each in (chain, keeping))
    assert started < kept


def test_while_the_first_module_learns_alone_the_others_are_its_copies(base: Base, examples: list[Example]) -> None:
    run, chain = new_run(base, examples)
    run.train_epoch()
    first, *others = [module.state_dict() for module in chain.each()]
    assert all(torch.equal(first[name], other[name]) for other in others for name in first)


def test_one_seed_means_one_result(base: Base, examples: list[Example]) -> None:
    results = []
    for _ in range(2):
        run, chain = new_run(base, examples)
        results.append(([run.train_epoch() for _ in range(3)], chain.state_dict()))
    assert results[0][0] == results[1][0]
    assert all(torch.equal(tensor, results[1][1][name]) for name, tensor in results[0][1].items())


def test_a_run_that_was_cut_ends_as_one_that_was_not(base: Base, examples: list[Example], tmp_path: Path) -> None:
    whole, chain = new_run(base, examples)
    cut, _ = new_run(base, examples)
    for run, num_epochs in ((whole, 4), (cut, 1)):
        for _ in range(num_epochs):
            run.train_epoch()
    cut.save(tmp_path / "run.pt")
    resumed, resumed_chain = new_run(base, examples)
    resumed.resume(tmp_path / "run.pt")
    while resumed.epoch < RECIPE.epochs:
        resumed.train_epoch()
    assert all(torch.equal(tensor, resumed_chain.state_dict()[name]) for name, tensor in chain.state_dict().items())


def test_a_checkpoint_of_another_run_is_refused(base: Base, examples: list[Example], tmp_path: Path) -> None:
    run, _ = new_run(base, examples)
    run.save(tmp_path / "run.pt")
    other, _ = new_run(base, examples[1:])
    with pytest.raises(ValueError, match="other texts"):
        other.resume(tmp_path / "run.pt")


def test_modules_that_say_what_the_base_says_have_no_loss(base: Base, examples: list[Example]) -> None:
    batch, frozen = make_batch(examples[:3], all_tokens(base), NUM_MODULES), all_tokens(base)
    perfect = Shifted(base.architecture, (None,) * NUM_MODULES)
    torch.testing.assert_close(losses(perfect, batch, frozen.head_de, 3, 1.0), torch.zeros(3), atol=1e-5, rtol=0)


def test_the_loss_needs_one_device_alone(base: Base, examples: list[Example]) -> None:
    """A device that cannot mix with the CPU stands for CUDA."""
    meta = torch.device("meta")
    frozen = Frozen.of(base.embed_tokens.weight.detach().to(meta), torch.arange(50, device=meta))
    chain = random_chain(base.architecture).to(meta)
    batch = make_batch(examples[:3], frozen, NUM_MODULES)
    assert losses(chain, batch, head_slice(frozen, batch, 20), NUM_MODULES, 1.0).device == meta


def test_a_head_slice_holds_the_tokens_of_its_batch(base: Base, examples: list[Example]) -> None:
    embedding = base.embed_tokens.weight.detach()
    frozen = Frozen.of(embedding, torch.arange(0, 50, 2))
    batch = make_batch(examples[:1], frozen, NUM_MODULES)
    own = {token for token in batch.answer_n.tolist() if token % 2 == 0}
    rows = head_slice(frozen, batch, len(own) + 2).tolist()
    assert len(rows) == len(own) + 2
    assert all(embedding[token].tolist() in rows for token in own)


def test_exported_names_and_shapes_are_deepseeks(base: Base, tmp_path: Path) -> None:
    export(tmp_path, random_chain(base.architecture), torch.arange(10))
    tensors = load_file(tmp_path / "mtp.safetensors")
    layer = {
        "enorm.weight": (32,),
        "hnorm.weight": (32,),
        "eh_proj.weight": (32, 64),
        "input_layernorm.weight": (32,),
        "self_attn.q_proj.weight": (32, 32),
        "self_attn.k_proj.weight": (16, 32),
        "self_attn.v_proj.weight": (16, 32),
        "self_attn.o_proj.weight": (32, 32),
        "post_attention_layernorm.weight": (32,),
        "mlp.gate_proj.weight": (48, 32),
        "mlp.up_proj.weight": (48, 32),
        "mlp.down_proj.weight": (32, 48),
        "shared_head.norm.weight": (32,),
    }
    expected = {f"model.layers.{2 + m}.{name}": shape for m in range(NUM_MODULES) for name, shape in layer.items()}
    ids = tensors.pop("model.mtp.draft_token_ids")
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == expected
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    assert ids.dtype == torch.int32 and ids.tolist() == list(range(10))
    config = json.loads((tmp_path / "mtp.json").read_text())
    assert config["num_nextn_predict_layers"] == NUM_MODULES and config["mtp"]["chain"] == "chained"


def test_exported_modules_draft_as_before_rounding(base: Base, examples: list[Example], tmp_path: Path) -> None:
    chain = random_chain(base.architecture)
    for parameter in chain.parameters():
        parameter.data = parameter.data.bfloat16().float()
    export(tmp_path, chain, torch.arange(0, 50, 3))
    loaded = Chain(base.architecture, (None,) * NUM_MODULES)
    frozen = load_exported(tmp_path, loaded, base.embed_tokens.weight.detach())
    assert frozen.draft_ids_d.tolist() == list(range(0, 50, 3))
    drafts = [module_drafts(each, frozen, examples[0]) for each in (chain, loaded)]
    assert torch.equal(*drafts)
    assert len(drafts[0]) > 0 and set(drafts[0].flatten().tolist()) <= set(range(0, 50, 3))

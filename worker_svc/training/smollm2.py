"""The three steps for SmolLM2: let it write, train modules on what it wrote, measure them on new prompts."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer

from worker_svc.training import corpus, report
from worker_svc.training.base import Base
from worker_svc.training.chain import Chain
from worker_svc.training.distill import Example, Frozen, Recipe, Run
from worker_svc.training.evaluate import Acceptance, measure_lookup, measure_modules
from worker_svc.training.export import export, load_exported
from worker_svc.training.generate import generate
from worker_svc.training.hidden import Kept, hidden_states
from worker_svc.training.prompts import Part
from worker_svc.training.start import start
from worker_svc.training.vocabulary import DRAFT_SIZE, draft_ids

NUM_MODULES = 3
TRAINING_PARTS = Part.TRAIN, Part.VARIED, Part.DIVERSE


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """``model`` is the base's folder, ``work`` holds texts, hidden states and checkpoints, ``out`` the result."""

    model: Path
    work: Path
    out: Path

    def texts(self, part: Part) -> Path:
        return self.work / f"{part.value}.npz"

    def hidden(self, part: Part) -> Kept:
        return Kept(self.work / f"{part.value}.hidden")

    @property
    def checkpoint(self) -> Path:
        return self.work / "run.pt"


def write_texts(places: Places, part: Part, num_prompts: int, num_places: int) -> None:
    """Let the base answer the first ``num_prompts`` prompts of a part, ``num_places`` at once. Can be interrupted."""
    places.work.mkdir(parents=True, exist_ok=True)
    generate(places.model, part, (places.texts(part), places.hidden(part)), num_prompts, num_places)


def train(
    places: Places, parts: Sequence[Part], recipe: Recipe, device: torch.device, trained: Path | None = None
) -> None:
    """Train on the texts of ``parts`` written so far and export after each epoch.

    Goes on from the checkpoint of the same recipe and texts. A new run starts from the modules exported to ``trained``,
    if given.
    """
    base = Base.load(places.model, torch.bfloat16, device)
    examples = [example for part in parts for example in _examples(places, part, base)]
    held_out = _examples(places, Part.EVALUATION, base)
    if not examples or not held_out:
        raise ValueError(f"{places.work} lacks texts to train on or to measure with; generate some first")
    tokenizer = Tokenizer.from_file(str(places.model / "tokenizer.json"))
    ids = draft_ids((example.text for example in examples), tokenizer, DRAFT_SIZE).to(device)
    frozen = Frozen.of(base.embed_tokens.weight.detach(), ids)
    chain = Chain(base.architecture, (None,) * NUM_MODULES)
    start(chain, base.last_layer, frozen, examples)
    if trained is not None:
        load_exported(trained, chain, frozen.embedding_ve)
    chain.to(device)
    run = Run(chain, frozen, examples, recipe)
    if places.checkpoint.is_file():
        run.resume(places.checkpoint)
    while run.epoch < recipe.epochs:
        run.train_epoch()
        run.save(places.checkpoint)
        export(places.out, chain, ids)
        print(report.table(_measure(chain, frozen, held_out)), flush=True)


def evaluate(places: Places, device: torch.device) -> None:
    """Print how the exported modules do on the evaluation prompts, and write it beside them."""
    base = Base.load(places.model, torch.bfloat16, device)
    chain = Chain(base.architecture, (None,) * NUM_MODULES).to(device)
    frozen = load_exported(places.out, chain, base.embed_tokens.weight.detach())
    examples = _examples(places, Part.EVALUATION, base)
    if not examples:
        raise ValueError(f"{places.texts(Part.EVALUATION)} holds no text; generate some first")
    measured = _measure(chain, frozen, examples)
    print(report.table(measured))
    report.write(places.out / "acceptance.json", measured)


def _measure(chain: Chain, frozen: Frozen, examples: list[Example]) -> dict[str, Acceptance]:
    """The modules and prompt lookup, on greedy and on drawn texts."""
    greedy = [example for example in examples if example.text.temperature == 0]
    drawn = [example for example in examples if example.text.temperature > 0]
    return {
        "modules, greedy": measure_modules(chain, frozen, greedy),
        "modules, temperature 0.8": measure_modules(chain, frozen, drawn),
        "prompt lookup, greedy": measure_lookup(greedy, NUM_MODULES),
        "prompt lookup, temperature 0.8": measure_lookup(drawn, NUM_MODULES),
    }


def _examples(places: Places, part: Part, base: Base) -> list[Example]:
    """The texts of a part with their hidden states: loops are cut off in training, and left out in the evaluation."""
    texts = corpus.load(places.texts(part))
    if part is Part.EVALUATION:
        texts = [text for text in texts if not corpus.loops(text.answer)]
    hidden = hidden_states(base, texts, places.hidden(part))
    cut = [corpus.without_loop(text) for text in texts]
    return [
        Example(text=text, hidden_te=hidden_te[: len(text.tokens) - 1])
        for text, hidden_te in zip(cut, hidden, strict=True)
    ]

"""Self-distillation: modules learn to say what the frozen base says, on text that it wrote itself."""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from worker_svc.training.chain import Chain
from worker_svc.training.corpus import Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """In the first ``solo_epochs`` the first module learns alone and the others are its copies, which costs a third as
    much as teaching all of them from the beginning.

    ``batch_tokens`` bounds a batch with its padding, ``slice_size`` the draft tokens that a batch is judged on.
    ``regression`` weighs the distance to the base's next hidden state against the divergence from its distribution.
    """

    solo_epochs: int = 4
    epochs: int = 8
    batch_tokens: int = 2048
    slice_size: int = 2048
    learning_rate: float = 1e-3
    warmup: int = 40
    weight_decay: float = 0.05
    regression: float = 1.0
    dropout: float = 0.1
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A text and the hidden states of all its tokens but the last, bfloat16 [T - 1, E]."""

    text: Text
    hidden_te: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """What modules share with the base: the embedding [V, E], and in float32 the head's rows that drafts come from."""

    embedding_ve: Tensor
    draft_ids_d: Tensor
    head_de: Tensor

    @classmethod
    def of(cls, embedding_ve: Tensor, draft_ids_d: Tensor) -> "Frozen":
        return cls(embedding_ve=embedding_ve, draft_ids_d=draft_ids_d, head_de=embedding_ve[draft_ids_d].float())


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """``hidden_bte`` and ``embedding_bte`` are padded, float32; ``rows`` are the base's rows (sequence, position) that
    predict a token of an answer; ``answer_n`` are those tokens."""

    hidden_bte: Tensor
    embedding_bte: Tensor
    rows: tuple[Tensor, Tensor]
    answer_n: Tensor


def make_batch(examples: Sequence[Example], frozen: Frozen, depth: int) -> Batch:
    """Every text gets ``depth`` rows more than it has tokens, so that each module has a row for each prediction."""
    device = frozen.embedding_ve.device
    hidden = pad_sequence([functional.pad(e.hidden_te, (0, 0, 0, depth + 1)) for e in examples], batch_first=True)
    tokens = pad_sequence([functional.pad(torch.tensor(e.text.tokens), (0, depth)) for e in examples], batch_first=True)
    tokens = tokens.to(device)
    pairs = [
        (index, row)
        for index, e in enumerate(examples)
        for row in range(max(e.text.num_prompt - 1, depth), len(e.text.tokens) - 1)
    ]
    sequences, rows = torch.tensor(pairs, device=device).unbind(1)
    return Batch(
        hidden_bte=hidden.to(device, torch.float32),
        embedding_bte=functional.embedding(tokens, frozen.embedding_ve).float(),
        rows=(sequences, rows),
        answer_n=tokens[sequences, rows + 1],
    )


def losses(chain: Chain, batch: Batch, head_se: Tensor, depth: int, regression: float) -> Tensor:
    """[depth] each module's Kullback-Leibler divergence from the base over the head's tokens, in nats, plus
    ``regression`` times the relative squared distance of its output from the base's hidden state."""
    sequences, rows = batch.rows
    target_ne = batch.hidden_bte[sequences, rows]
    target_ns = functional.linear(target_ne, head_se).float()
    p_ns = target_ns.softmax(-1)
    entropy, scale = _cross_entropy(p_ns, target_ns), target_ne.square().mean()
    result = []
    for m, g_bre in enumerate(chain(batch.hidden_bte, batch.embedding_bte, depth)):
        g_ne = g_bre[sequences, rows - m - 1]
        divergence = _cross_entropy(p_ns, functional.linear(g_ne, head_se).float()) - entropy
        distance = functional.mse_loss(g_ne.float(), target_ne) / scale
        result.append(divergence + regression * distance)
    return torch.stack(result)


def head_slice(frozen: Frozen, batch: Batch, size: int) -> Tensor:
    """[S, E] the head's rows of the batch's own draft tokens and of others by chance, ``size`` in all if so many."""
    own = torch.isin(frozen.draft_ids_d, batch.answer_n)
    chance = torch.rand(len(own), device=own.device) + own
    return frozen.head_de[chance.topk(min(size, len(own))).indices]


def _cross_entropy(p_ns: Tensor, logits_ns: Tensor) -> Tensor:
    return (logits_ns.logsumexp(-1) - (p_ns * logits_ns).sum(-1)).mean()


class Run:
    """A training run: goes through the examples ``recipe.epochs`` times, and can be left and taken up again."""

    def __init__(self, chain: Chain, frozen: Frozen, examples: Sequence[Example], recipe: Recipe) -> None:
        self._chain = chain
        self._frozen = frozen
        self._recipe = recipe
        self._examples = examples
        self._per_epoch = len(self._order(0))
        self._identity = {"recipe": asdict(recipe), "texts": hash(tuple(example.text.tokens for example in examples))}
        self.epoch = 0
        self._optimizer = torch.optim.AdamW(
            chain.parameters(), recipe.learning_rate, (0.9, 0.95), weight_decay=recipe.weight_decay
        )
        self._schedule = torch.optim.lr_scheduler.LambdaLR(self._optimizer, self._rate)
        for module in chain.each():
            module.dropout.p = recipe.dropout

    def train_epoch(self) -> list[float]:
        """One pass over the examples. Returns the mean loss of each module that learns. Draws a progress bar."""
        recipe, device = self._recipe, self._frozen.embedding_ve.device
        depth = 1 if self.epoch < recipe.solo_epochs else len(self._chain)
        self._chain.train()
        torch.manual_seed(recipe.seed + self.epoch)
        total, order = torch.zeros(depth), self._order(self.epoch)
        with tqdm(order, unit="batch", desc=f"epoch {self.epoch + 1} of {recipe.epochs}") as bar:
            for number, examples in enumerate(bar, 1):
                batch = make_batch(examples, self._frozen, len(self._chain))
                head_se = head_slice(self._frozen, batch, recipe.slice_size)
                with torch.autocast(device.type, torch.bfloat16):
                    loss_m = losses(self._chain, batch, head_se, depth, recipe.regression)
                self._update(loss_m.mean())
                total += loss_m.detach().cpu()
                bar.set_postfix_str(" ".join(f"{value:.3f}" for value in total / number), refresh=False)
        if depth == 1:
            self._chain.spread()
        self.epoch += 1
        return (total / len(order)).tolist()

    def save(self, file: Path) -> None:
        partial = file.with_suffix(".partial")
        state = {
            "chain": self._chain.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "schedule": self._schedule.state_dict(),
            "epoch": self.epoch,
            "identity": self._identity,
        }
        torch.save(state, partial)
        partial.replace(file)

    def resume(self, file: Path) -> None:
        """Go on where ``save`` wrote ``file``. Raises ValueError if that was another recipe or had other texts."""
        state = torch.load(file, map_location=self._frozen.embedding_ve.device)
        if state["identity"] != self._identity:
            raise ValueError(f"{file} belongs to a run over other texts or by another recipe; delete it to start anew")
        self._chain.load_state_dict(state["chain"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._schedule.load_state_dict(state["schedule"])
        self.epoch = state["epoch"]

    def _update(self, loss: Tensor) -> None:
        self._optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self._chain.parameters(), 1.0)
        self._optimizer.step()
        self._schedule.step()

    def _rate(self, step: int) -> float:
        """Linear warm-up, then a cosine down to a fiftieth."""
        warmup = self._recipe.warmup
        if step < warmup:
            return (step + 1) / warmup
        done = (step - warmup) / max(1, self._recipe.epochs * self._per_epoch - warmup)
        return 0.51 + 0.49 * math.cos(math.pi * min(done, 1.0))

    def _order(self, epoch: int) -> list[list[Example]]:
        """The epoch's batches: texts of like length together, batches shuffled."""
        rng = random.Random(f"{self._recipe.seed} {epoch}")
        ordered = sorted(self._examples, key=lambda e: len(e.text.tokens) + rng.random() * 32)
        batches = list(_cut(ordered, self._recipe.batch_tokens))
        rng.shuffle(batches)
        return batches


def _cut(examples: Sequence[Example], batch_tokens: int) -> Iterator[list[Example]]:
    """Runs of examples that take at most ``batch_tokens`` once the short ones are padded to the longest."""
    batch: list[Example] = []
    longest = 0
    for example in examples:
        longest = max(longest, len(example.text.tokens))
        if batch and longest * (len(batch) + 1) > batch_tokens:
            yield batch
            batch, longest = [], len(example.text.tokens)
        batch.append(example)
    yield batch

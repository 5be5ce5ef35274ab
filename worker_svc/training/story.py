"""The story model: a tiny Llama with four MTP modules, trained together from scratch on the grammar's stories."""

import json
import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from worker_svc.model.description import parse_architecture
from worker_svc.training import grammar, report
from worker_svc.training.base import Base
from worker_svc.training.chain import Chain
from worker_svc.training.corpus import Text
from worker_svc.training.distill import Example, Frozen
from worker_svc.training.evaluate import Acceptance, measure_lookup, measure_modules
from worker_svc.training.export import mtp_config, save_weights, write_json
from worker_svc.training.hidden import hidden_states
from worker_svc.training.write import write

END, REQUEST, STORY = "<|end|>", "<|request|>", "<|story|>"
_TEMPLATE = f"{REQUEST}{{{{ messages[-1]['content'] }}}}{STORY}"
_WINDOW = 32
_LAYERS = ("sliding_attention", "full_attention", "sliding_attention", "full_attention")
_MODULES = ("full_attention", "sliding_attention", "full_attention", "sliding_attention")
_PLAIN_SHARE = 0.2
"""Stories in training that answer no request."""
_BATCH = 8
_LEARNING_RATE = 3e-3
_MODULE_WEIGHT = 0.5
_MAX_TOKENS = 256
_SAVE_EVERY = 100
"""Steps of training between two checkpoints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    tokenizer: Tokenizer
    config: dict[str, Any]
    base: Base
    chain: Chain


def make(out: Path, num_steps: int, device: torch.device, checkpoint: Path) -> None:
    """Train, write the Hugging Face style folder ``out``, print what the model's stories and drafts are worth.

    Goes on from the checkpoint of a run of as many steps.
    """
    torch.manual_seed(0)
    model = new_model(device)
    run = Run(model, num_steps)
    if checkpoint.is_file():
        run.resume(checkpoint)
    while run.step < num_steps:
        run.train(min(num_steps - run.step, _SAVE_EVERY))
        run.save(checkpoint)
    save(model, out)
    measured, verdicts = judge(model, 64)
    print(report.table(measured))
    print("stories:", ", ".join(f"{count} {name}" for name, count in verdicts.items()))
    report.write(out / "acceptance.json", measured)


def new_model(device: torch.device) -> Model:
    """Random weights."""
    tokenizer = build_tokenizer()
    config = model_config(tokenizer)
    architecture = parse_architecture(config)
    base = Base(architecture).to(device)
    chain = Chain(architecture, _windows(_MODULES)).to(device)
    for matrix in [*base.modules(), *chain.modules()]:
        if isinstance(matrix, nn.Linear | nn.Embedding):
            nn.init.normal_(matrix.weight, std=0.05)
    return Model(tokenizer=tokenizer, config=config, base=base, chain=chain)


class Run:
    """Teaches base and modules on new stories at every step; can be left and taken up again."""

    def __init__(self, model: Model, num_steps: int, batch_size: int = _BATCH) -> None:
        self._model = model
        self._num_steps = num_steps
        self._batch_size = batch_size
        self._trained = nn.ModuleList([model.base, model.chain])
        self._optimizer = torch.optim.AdamW(self._trained.parameters(), _LEARNING_RATE, (0.9, 0.98), weight_decay=0.01)
        self._schedule = torch.optim.lr_scheduler.OneCycleLR(
            self._optimizer, _LEARNING_RATE, total_steps=num_steps, pct_start=0.1
        )
        self.step = 0

    def train(self, num_steps: int) -> list[float]:
        """Returns each step's loss. Draws a progress bar."""
        result = []
        bar = tqdm(range(self.step, self.step + num_steps), unit="step", desc=f"story model, {self._num_steps} steps")
        for step in bar:
            loss_m = losses(self._model, story_batch(self._model, random.Random(step), self._batch_size))
            loss = loss_m[0] + _MODULE_WEIGHT * loss_m[1:].mean()
            self._optimizer.zero_grad()
            torch.autograd.backward(loss)
            nn.utils.clip_grad_norm_(self._trained.parameters(), 1.0)
            self._optimizer.step()
            self._schedule.step()
            self.step = step + 1
            result.append(loss.item())
            bar.set_postfix_str(" ".join(f"{value:.3f}" for value in loss_m.tolist()), refresh=False)
        return result

    def save(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(".partial")
        state = {name: part.state_dict() for name, part in self._parts().items()}
        torch.save({**state, "step": self.step, "num_steps": self._num_steps}, partial)
        partial.replace(file)

    def resume(self, file: Path) -> None:
        """Go on where ``save`` wrote ``file``. Raises ValueError if that run was to have another number of steps."""
        state = torch.load(file, map_location=self._model.base.embed_tokens.weight.device)
        if state["num_steps"] != self._num_steps:
            raise ValueError(f"{file} belongs to a run of {state['num_steps']} steps; delete it to start anew")
        for name, part in self._parts().items():
            part.load_state_dict(state[name])
        self.step = state["step"]

    def _parts(self) -> dict[str, Any]:
        return {"trained": self._trained, "optimizer": self._optimizer, "schedule": self._schedule}


def losses(model: Model, tokens_bt: Tensor) -> Tensor:
    """[1 + N] cross-entropy of the base and of each module, in nats. The rows end with N or more END tokens, of which
    the first counts."""
    base, chain = model.base, model.chain
    with torch.autocast(tokens_bt.device.type, torch.bfloat16, enabled=tokens_bt.device.type == "cuda"):
        hidden_bte = base(tokens_bt)
        outputs = [hidden_bte, *chain(hidden_bte, base.embed_tokens(tokens_bt), len(chain))]
        ended_bt = tokens_bt.eq(_id(model.tokenizer, END)).cumsum(1)
        result = []
        for shift, g_bre in enumerate(outputs, 1):
            targets = tokens_bt[:, shift:].masked_fill(ended_bt[:, shift:] > 1, -100)
            num = min(targets.shape[1], g_bre.shape[1])
            logits = functional.linear(g_bre[:, :num], base.embed_tokens.weight).float()
            result.append(functional.cross_entropy(logits.flatten(0, 1), targets[:, :num].flatten()))
    return torch.stack(result)


def story_batch(model: Model, rng: random.Random, size: int) -> Tensor:
    """[size, T] token ids of new stories, padded with END."""
    end = _id(model.tokenizer, END)
    rows = []
    for _ in range(size):
        request, text = grammar.story(rng)
        start = STORY if rng.random() < _PLAIN_SHARE else f"{REQUEST}{request}{STORY}"
        ids = model.tokenizer.encode(f"{start}{text}{END}").ids
        rows.append(torch.tensor(ids + [end] * len(model.chain)))
    device = model.base.embed_tokens.weight.device
    return pad_sequence(rows, batch_first=True, padding_value=end).to(device)


def judge(model: Model, num_stories: int) -> tuple[dict[str, Acceptance], dict[str, int]]:
    """The acceptance on stories that the model writes, and the grammar's verdicts on them, greedy and at 0.8."""
    measured: dict[str, Acceptance] = {}
    verdicts: Counter[str] = Counter()
    embedding = model.base.embed_tokens.weight.detach()
    frozen = Frozen.of(embedding, torch.arange(len(embedding), device=embedding.device))
    for name, temperature in (("greedy", 0.0), ("temperature 0.8", 0.8)):
        texts = stories(model, num_stories, temperature)
        hidden = hidden_states(model.base, texts)
        examples = [Example(text=text, hidden_te=h_te) for text, h_te in zip(texts, hidden, strict=True)]
        measured[f"modules, {name}"] = measure_modules(model.chain, frozen, examples)
        measured[f"prompt lookup, {name}"] = measure_lookup(examples, len(model.chain))
        verdicts.update(f"{verdict(model, text).value} ({name})" for text in texts)
    return measured, dict(verdicts)


def stories(model: Model, num_stories: int, temperature: float) -> list[Text]:
    """The model's answers to requests that come from a seed of their own."""
    rng = random.Random(f"requests {temperature}")
    prompts = [model.tokenizer.encode(f"{REQUEST}{grammar.story(rng)[0]}{STORY}").ids for _ in range(num_stories)]
    return write(model.base, prompts, temperature, _id(model.tokenizer, END), _MAX_TOKENS)


def verdict(model: Model, text: Text) -> grammar.Verdict:
    request, story = (
        model.tokenizer.decode(part, skip_special_tokens=True) for part in (text.tokens[: text.num_prompt], text.answer)
    )
    return grammar.check(request, story)


# --- the folder ---


def save(model: Model, out: Path) -> None:
    """Write config, generation config, tokenizer and bfloat16 weights."""
    out.mkdir(parents=True, exist_ok=True)
    modules = model.chain.named_for_export(model.base.architecture.num_layers)
    save_weights(out / "model.safetensors", model.base.named_for_export() | modules)
    mtp = mtp_config(model.chain)
    mtp["mtp"] = {**mtp["mtp"], "layer_types": list(_MODULES)}
    write_json(out / "config.json", {**model.config, **mtp})
    write_json(out / "generation_config.json", {"eos_token_id": model.config["eos_token_id"]})
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": END,
        "additional_special_tokens": [REQUEST, STORY],
        "clean_up_tokenization_spaces": False,
        "model_max_length": model.config["max_position_embeddings"],
        "chat_template": _TEMPLATE,
    }
    write_json(out / "tokenizer_config.json", tokenizer_config)
    model.tokenizer.save(str(out / "tokenizer.json"), pretty=False)


def load(folder: Path) -> Model:
    """The model that ``save`` wrote, to be looked at on the CPU."""
    config = json.loads((folder / "config.json").read_text())
    architecture = parse_architecture(config)
    chain = Chain(architecture, _windows(_MODULES))
    chain.load_exported(load_file(folder / "model.safetensors"), architecture.num_layers)
    return Model(
        tokenizer=Tokenizer.from_file(str(folder / "tokenizer.json")),
        config=config,
        base=Base.load(folder, torch.float32, torch.device("cpu")),
        chain=chain,
    )


def model_config(tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "vocab_size": tokenizer.get_vocab_size(),
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": len(_LAYERS),
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 512,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "eos_token_id": _id(tokenizer, END),
        "pad_token_id": _id(tokenizer, END),
        "sliding_window": _WINDOW,
        "layer_types": list(_LAYERS),
    }


def build_tokenizer() -> Tokenizer:
    """Byte-level BPE in which each word of the grammar ends up as one token or a few."""
    rng = random.Random(0)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1024,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[AddedToken(token, normalized=False) for token in (END, REQUEST, STORY)],
    )
    tokenizer.train_from_iterator((" ".join(grammar.story(rng)) for _ in range(2000)), trainer)
    return tokenizer


def _id(tokenizer: Tokenizer, token: str) -> int:
    token_id = tokenizer.token_to_id(token)
    assert token_id is not None
    return token_id


def _windows(layer_types: tuple[str, ...]) -> tuple[int | None, ...]:
    return tuple(_WINDOW if kind == "sliding_attention" else None for kind in layer_types)

"""The base answers prompts, many at once, on the worker's own engine."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from tokenizers import Tokenizer
from tqdm import tqdm

from augury.types import NewRequest, Row, SamplingParams, Step, StopParams
from worker_svc.engine import EngineOptions
from worker_svc.training import corpus
from worker_svc.training.corpus import Text
from worker_svc.training.distill import Example
from worker_svc.training.hidden import Kept
from worker_svc.training.prompts import Part, chat
from worker_svc.training.recorder import Recorder

MAX_ANSWER = 320
_MAX_TOKENS = 512
_BLOCK_SIZE = 16
_BLOCKS_EACH = _MAX_TOKENS // _BLOCK_SIZE
_LOOP_CHECK = 32
"""Tokens between two looks at whether an answer loops."""
_SAVE_EVERY = 64
SAMPLED_TEMPERATURE = 0.8
_GREEDY_EVERY = {Part.TRAIN: 2, Part.VARIED: 3, Part.DIVERSE: 3, Part.EVALUATION: 2}
"""One answer in so many is greedy, the others are drawn at temperature 0.8. Drawn ones vary more."""
EOS = "<|im_end|>"


@dataclass(kw_only=True)
class _Running:
    """A request in the engine. Its blocks are those of its place for as long as it runs."""

    index: int
    place: int
    prompt: tuple[int, ...]
    sampling: SamplingParams
    answer: list[int] = field(default_factory=list)

    @property
    def handle(self) -> int:
        return self.index + 1

    def text(self) -> Text:
        return Text(
            index=self.index,
            tokens=(*self.prompt, *self.answer),
            num_prompt=len(self.prompt),
            temperature=self.sampling.temperature,
            seed=self.sampling.seed,
        )


class Answers:
    """Iterates over the answers to the prompts of a part as they end."""

    def __init__(self, engine: Recorder, tokenizer: Tokenizer, num_places: int) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._eos = tokenizer.token_to_id(EOS)
        self._num_places = num_places
        self._seq = 0

    def of(self, part: Part, indices: Iterator[int]) -> Iterator[Example]:
        """Answers to the prompts ``indices``, with their hidden states."""
        running: dict[int, _Running] = {}
        free = list(range(self._num_places))
        released: list[int] = []
        while True:
            fresh = [self._request(part, index, free.pop()) for index in list(islice(indices, len(free)))]
            running |= {request.handle: request for request in fresh}
            if not running:
                return
            for handle, token in self._step(running, fresh, released).items():
                running[handle].answer.append(token)
            released = [handle for handle, request in running.items() if self._ended(request)]
            for request in map(running.pop, released):
                free.append(request.place)
                yield Example(text=request.text(), hidden_te=self._engine.take(request.handle))

    def _request(self, part: Part, index: int, place: int) -> _Running:
        prompt = tuple(self._tokenizer.encode(chat(part, index)).ids)
        if len(prompt) + MAX_ANSWER > _MAX_TOKENS:
            raise ValueError(f"prompt {index} has {len(prompt)} tokens, too many for {_MAX_TOKENS} with its answer")
        temperature = SAMPLED_TEMPERATURE if index % _GREEDY_EVERY[part] else 0.0
        sampling = SamplingParams(temperature=temperature, top_k=64, seed=index)
        return _Running(index=index, place=place, prompt=prompt, sampling=sampling)

    def _step(self, running: dict[int, _Running], fresh: list[_Running], released: list[int]) -> dict[int, int]:
        """Every running request's next token, by handle."""
        self._seq += 1
        rows = [Row(handle=handle, num_new=1 if r.answer else len(r.prompt)) for handle, r in running.items()]
        step = Step(
            epoch=1, seq=self._seq, released=tuple(released), fresh=tuple(map(_new_request, fresh)), rows=tuple(rows)
        )
        emitted = self._engine.execute(step).emitted
        return {row.handle: tokens[0] for row, tokens in zip(rows, emitted, strict=True)}

    def _ended(self, request: _Running) -> bool:
        answer = request.answer
        if answer[-1] == self._eos or len(answer) == MAX_ANSWER:
            return True
        return len(answer) % _LOOP_CHECK == 0 and corpus.loops(answer)


def generate(folder: Path, part: Part, files: tuple[Path, Kept], num_prompts: int, num_places: int) -> None:
    """Let the model in ``folder`` answer the first ``num_prompts`` prompts of ``part``, ``num_places`` at once.

    ``files`` collect the texts and their hidden states. Leaves out the prompts whose answers are there already. Draws a
    progress bar.
    """
    file, kept = files
    texts = corpus.load(file)
    missing = sorted(set(range(num_prompts)) - {text.index for text in texts})
    num_blocks = 1 + num_places * _BLOCKS_EACH
    options = EngineOptions(block_size=_BLOCK_SIZE, num_blocks=num_blocks, max_len=_MAX_TOKENS, depth=0)
    engine = Recorder.load(folder, options)
    assert isinstance(engine, Recorder)
    answers = Answers(engine, Tokenizer.from_file(str(folder / "tokenizer.json")), num_places)
    bar = iter(tqdm(answers.of(part, iter(missing)), total=len(missing), unit="answer", desc=f"{part.value} text"))
    while examples := list(islice(bar, _SAVE_EVERY)):
        kept.add({example.text.index: example.hidden_te for example in examples})
        texts += [example.text for example in examples]
        corpus.save(file, texts)


def _new_request(request: _Running) -> NewRequest:
    first = 1 + request.place * _BLOCKS_EACH
    return NewRequest(
        handle=request.handle,
        tokens=request.prompt,
        num_prompt=len(request.prompt),
        num_computed=0,
        blocks=(tuple(range(first, first + _BLOCKS_EACH)),),
        hits=(),
        sampling=request.sampling,
        stopping=StopParams(max_tokens=MAX_ANSWER),
    )

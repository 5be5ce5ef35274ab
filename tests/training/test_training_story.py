"""The story grammar and its checker, the story model's training, and the committed story model."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from augury.types import SamplingParams
from gateway.model import ServedModel
from tests.worker.driver import Driver
from worker_svc.engine import Engine, EngineOptions
from worker_svc.model.description import read_architecture
from worker_svc.training import grammar, story
from worker_svc.training.corpus import Text
from worker_svc.training.distill import Example, Frozen
from worker_svc.training.evaluate import module_drafts, starts
from worker_svc.training.grammar import Verdict

torch.set_num_threads(1)

FOLDER = Path(story.__file__).parent.parent / "model" / "demo" / "story"


@given(seed=st.integers(), asked=st.booleans())
def test_the_grammars_own_stories_are_sound(seed: int, asked: bool) -> None:
    request, text = grammar.story(random.Random(seed))
    assert grammar.check(request if asked else "", text) is Verdict.SOUND


@given(seed=st.integers())
def test_a_story_whose_hero_changes_name_is_mixed_up(seed: int) -> None:
    request, text = grammar.story(random.Random(seed))
    hero = request.split()[5]
    first, rest = text.split(". ", 1)
    changed = f"{first}. {rest.replace(hero, 'Zoe')}" if hero in rest else text.replace(hero, "Zoe")
    with_known_name = changed.replace("Zoe", "Anna" if hero != "Anna" else "Ben")
    assert grammar.check(request, with_known_name) is Verdict.MIXED_UP
    assert grammar.check(request, changed) is Verdict.BROKEN


@given(seed=st.integers(), data=st.data())
def test_a_story_that_lacks_or_repeats_a_part_is_broken(seed: int, data: st.DataObject) -> None:
    request, text = grammar.story(random.Random(seed))
    words = text.split(" ")
    at = data.draw(st.integers(0, len(words) - 1))
    for damaged in (words[:at] + words[at + 1 :], words[: at + 1] + words[at:]):
        assert grammar.check(request, " ".join(damaged)) is Verdict.BROKEN


def test_no_sentence_names_a_slot_twice() -> None:
    """The checker's patterns rest on it."""
    for template in (grammar.REQUEST, *(sentence for stage in grammar.STAGES for sentence in stage)):
        slots = [part.split("}")[0] for part in template.split("{")[1:]]
        assert len(slots) == len(set(slots)) and set(slots) <= set(grammar.SLOTS)


def test_base_and_modules_learn_together_and_the_seed_decides_how() -> None:
    results = []
    for _ in range(2):
        torch.manual_seed(0)
        model = story.new_model(torch.device("cpu"))
        results.append(story.Run(model, 8, batch_size=2).train(8))
    assert results[0] == results[1]
    assert results[0][-1] < results[0][0] - 1.0


def new_run(num_steps: int) -> story.Run:
    torch.manual_seed(0)
    return story.Run(story.new_model(torch.device("cpu")), num_steps, batch_size=1)


def test_a_run_that_was_cut_ends_as_one_that_was_not(tmp_path: Path) -> None:
    whole, cut, resumed = (new_run(5) for _ in range(3))
    expected = whole.train(5)
    first = cut.train(2)
    cut.save(tmp_path / "story.pt")
    resumed.resume(tmp_path / "story.pt")
    assert resumed.step == 2
    assert first + resumed.train(3) == expected


def test_a_checkpoint_of_a_run_of_another_length_is_refused(tmp_path: Path) -> None:
    new_run(5).save(tmp_path / "story.pt")
    with pytest.raises(ValueError, match="5 steps"):
        new_run(6).resume(tmp_path / "story.pt")


def test_every_loss_reads_the_token_that_its_module_predicts() -> None:
    """A batch in which one late token changes: only losses whose target or input it is may change, and all do."""
    torch.manual_seed(0)
    model = story.new_model(torch.device("cpu"))
    tokens = story.story_batch(model, random.Random(0), 1)
    padded = torch.cat([tokens, torch.full((1, 20), int(tokens[0, -1]))], 1)
    with torch.no_grad():
        losses, padded_losses = story.losses(model, tokens), story.losses(model, padded)
        tokens[0, -6] = 5
        assert (story.losses(model, tokens) != losses).all()
    torch.testing.assert_close(losses, padded_losses)


# --- the committed model ---


@pytest.fixture(scope="module")
def served() -> ServedModel:
    return ServedModel.load(FOLDER, "story")


def test_the_committed_folder_is_small_and_whole(served: ServedModel) -> None:
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 5 << 20
    assert served.eos_token_ids == {served.tokenizer.token_to_id(story.END)}
    architecture = read_architecture(FOLDER)
    assert architecture.windows == {0: 32, 2: 32}
    assert architecture.mtp is not None
    assert (architecture.mtp.num_modules, architecture.mtp.windows) == (4, {1: 32, 3: 32})


@given(seed=st.integers())
def test_the_tokenizer_gives_stories_back(served: ServedModel, seed: int) -> None:
    _, text = grammar.story(random.Random(seed))
    (tokens,) = served.encode([text], add_special_tokens=False)
    assert served.decode(tokens) == text
    assert len(tokens) < 1.3 * len(text.split(" ")) + 30


def test_the_chat_template_asks_as_in_training(served: ServedModel) -> None:
    messages = [{"role": "user", "content": "Tell me a story about Anna the fox."}]
    text = served.chat_template().render(messages, open_reply=True, continue_last=False, extra={})
    assert text == f"{story.REQUEST}Tell me a story about Anna the fox.{story.STORY}"


def test_the_committed_model_writes_sound_stories_and_its_modules_accept_deep() -> None:
    model = story.load(FOLDER)
    measured, verdicts = story.judge(model, 16)
    assert verdicts[f"{Verdict.SOUND.value} (greedy)"] >= 12
    assert measured["modules, greedy"].mean_accepted > 3.0
    assert measured["modules, temperature 0.8"].mean_accepted > 2.0


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_an_engine_drafts_what_the_evaluation_says(temperature: float) -> None:
    model = story.load(FOLDER)
    options = EngineOptions(dtype="float32", block_size=16, num_blocks=99, attention="reference", depth=4)
    driver = Driver(Engine.load(FOLDER, options), epoch=1)
    rng = random.Random(5)
    for seed in range(3):
        prompt = model.tokenizer.encode(f"{story.REQUEST}{grammar.story(rng)[0]}{story.STORY}").ids
        driver.add(tuple(prompt), 80, SamplingParams(temperature=temperature, seed=seed))
    driver.finish()
    embedding = model.base.embed_tokens.weight
    frozen = Frozen.of(embedding, torch.arange(len(embedding)))
    for seed, request in enumerate(driver.requests):
        text = Text(
            index=seed, tokens=request.tokens, num_prompt=len(request.prompt), temperature=temperature, seed=seed
        )
        with torch.no_grad():
            hidden_te = model.base(torch.tensor([text.tokens[:-1]]))[0]
        drafts = module_drafts(model.chain, frozen, Example(text=text, hidden_te=hidden_te)).tolist()
        begin = starts(text, 4)
        held = {at: proposed for at, proposed in request.drafted.items() if at in begin}
        assert len(held) > 10
        for at, proposed in held.items():
            right = [draft == token for draft, token in zip(proposed, text.tokens[at:], strict=False)]
            # Behind a wrong draft the modules read it, in the evaluation the text's own token.
            num_alike = min((*right, False).index(False) + 1, len(proposed))
            assert proposed[:num_alike] == drafts[at - begin.start][:num_alike]


def test_a_saved_model_comes_back(tmp_path: Path) -> None:
    torch.manual_seed(3)
    model = story.new_model(torch.device("cpu"))
    story.save(model, tmp_path)
    loaded = story.load(tmp_path)
    again = tmp_path / "again"
    story.save(replace(loaded, config=model.config), again)
    for file in sorted(entry for entry in tmp_path.iterdir() if entry.is_file()):
        assert file.read_bytes() == (again / file.name).read_bytes()

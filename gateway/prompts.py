"""What clients send as a prompt, as token ids."""

from typing import Any

from augury import limits
from augury.errors import InvalidRequestError
from gateway.model import ServedModel
from gateway.schema import ChatRequest

Tokens = tuple[int, ...]


def chat_prompt(request: ChatRequest, model: ServedModel) -> Tokens:
    """The conversation through the model's chat template. Raises InvalidRequestError where the template refuses it."""
    text = model.chat_template().render(
        [message.for_template() for message in request.messages],
        open_reply=request.open_reply,
        continue_last=request.continue_final_message,
        extra=request.chat_template_kwargs,
    )
    (tokens,) = model.encode([text], add_special_tokens=False)
    return tokens


def completion_prompts(prompt: Any, model: ServedModel) -> list[Tokens]:
    """One prompt for each text or token list. Raises InvalidRequestError for anything else, and for empty prompts."""
    if isinstance(prompt, str) or _is_tokens(prompt):
        prompt = [prompt]
    if not isinstance(prompt, list) or not prompt:
        raise InvalidRequestError("prompt must be a text, a list of texts, token ids or a list of those", "prompt")
    if len(prompt) > limits.MAX_PROMPTS:
        raise InvalidRequestError(f"more than {limits.MAX_PROMPTS} prompts", "prompt")
    if not all(prompt):
        raise InvalidRequestError("prompt is empty", "prompt")
    if all(isinstance(text, str) for text in prompt):
        return model.encode(prompt, add_special_tokens=True)
    if all(_is_tokens(tokens) for tokens in prompt):
        return [tuple(tokens) for tokens in prompt]
    raise InvalidRequestError("prompt mixes texts, token ids and other things", "prompt")


def _is_tokens(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(token) is int for token in value)

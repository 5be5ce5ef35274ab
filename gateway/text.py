"""Token ids to text, token by token: characters are never split, stop strings never shown."""

import codecs
from collections.abc import Iterable, Mapping, Sequence

from augury.types import StopParams


class TextStream:
    """The text of one choice as its tokens come.

    ``feed`` and ``finish`` return what can be shown; joined, that is the whole text, however the tokens were grouped.
    Bytes that are no UTF-8 become U+FFFD. Of several stop strings the one that completes earliest in the text ends it;
    of those that complete together, the longest. Stop strings are looked for after the first ``min_tokens`` tokens.
    """

    def __init__(self, token_bytes: Mapping[int, bytes], stopping: StopParams, stops: Sequence[str]) -> None:
        self.num_tokens = 0
        self.stopped = False
        self._token_bytes = token_bytes
        self._stopping = stopping
        self._stops = stops
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""

    def feed(self, tokens: Iterable[int]) -> str:
        """Take tokens up to the one that completes a stop string; ``num_tokens`` counts those taken."""
        return "".join(self._feed_one(token) for token in tokens if not self.stopped)

    def finish(self) -> str:
        """The text that was held back, at the end of the tokens."""
        if self.stopped:
            return ""
        shown = self._scan(self._utf8.decode(b"", final=True))
        return shown if self.stopped else shown + self._held

    def _feed_one(self, token: int) -> str:
        self.num_tokens += 1
        silent = token in self._stopping.stop_token_ids
        text = self._utf8.decode(b"" if silent else self._token_bytes.get(token, b""))
        return self._scan(text) if self._stops and self.num_tokens > self._stopping.min_tokens else text

    def _scan(self, text: str) -> str:
        text = self._held + text
        found = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        if found:
            self.stopped = True
            return text[: min(found)[1]]
        kept = len(text) - self._num_undecided(text)
        self._held = text[kept:]
        return text[:kept]

    def _num_undecided(self, text: str) -> int:
        """Characters at the end of ``text`` that may begin a stop string."""
        longest = max(map(len, self._stops), default=1) - 1
        tails = range(min(longest, len(text)), 0, -1)
        return next((size for size in tails if any(stop.startswith(text[-size:]) for stop in self._stops)), 0)

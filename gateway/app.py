"""The ASGI application: routes, and what is not worth a file of its own."""

import asyncio
import time
from importlib.metadata import version

import msgspec
from fastapi import Depends, FastAPI, Request, Response

from augury.errors import NoWorkerError
from gateway import failures
from gateway.backend import Backend, flaws, num_ready_workers
from gateway.body import read_body
from gateway.door import Door
from gateway.endpoints import Endpoints, check_model
from gateway.metrics import Metrics
from gateway.middleware import Envelope
from gateway.model import ServedModel
from gateway.schema import DetokenizeRequest, TokenizeRequest, parse

_PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"


def create_app(
    backend: Backend,
    model: ServedModel,
    door: Door | None = None,
    shared_salt: str | None = None,
    log_prompts: bool = False,
) -> FastAPI:
    """The gateway of one model. It may be made outside an event loop, unlike its backend.

    Without a ``door`` of its caller's, everybody is let in. ``shared_salt``: see gateway.isolation; ``log_prompts``:
    see Endpoints.
    """
    metrics, door = Metrics(model.name), door or Door()
    app = FastAPI(title="Augury", openapi_url=None)
    app.add_middleware(Envelope, metrics=metrics, door=door)
    failures.install(app)
    endpoints = Endpoints(model, backend, metrics, shared_salt, log_prompts)
    side = _Side(model, backend, metrics, door)
    posts = {
        "/v1/chat/completions": endpoints.chat,
        "/v1/completions": endpoints.completions,
        "/tokenize": side.tokenize,
        "/detokenize": side.detokenize,
    }
    gets = {
        "/v1/models": side.models,
        "/v1/models/{model_id:path}": side.one_model,
        "/version": side.version,
    }
    open_gets = {
        "/health": side.ready,
        "/health/ready": side.ready,
        "/health/live": side.live,
        "/metrics": side.metrics,
    }
    for path, handler in posts.items():
        app.add_api_route(path, handler, methods=["POST"], response_model=None, dependencies=[Depends(door.enter)])
    for path, handler in gets.items():
        app.add_api_route(path, handler, methods=["GET"], response_model=None, dependencies=[Depends(door.enter)])
    for path, handler in open_gets.items():
        app.add_api_route(path, handler, methods=["GET"], response_model=None)
    return app


class _Side:
    """Everything that does not generate."""

    def __init__(self, model: ServedModel, backend: Backend, metrics: Metrics, door: Door) -> None:
        self._model = model
        self._backend = backend
        self._metrics = metrics
        self._door = door
        self._created = int(time.time())

    async def models(self, request: Request) -> Response:
        return _json({"object": "list", "data": [self._card()]})

    async def one_model(self, request: Request) -> Response:
        check_model(request.path_params["model_id"], self._model)
        return _json(self._card())

    async def live(self, request: Request) -> Response:
        """The event loop turns."""
        return _json({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """The gateway and at least one worker take requests; what is amiss nevertheless is told."""
        self._door.check_open()
        description = await self._backend.describe()
        if not num_ready_workers(description):
            raise NoWorkerError("no worker is ready")
        amiss = flaws(description)
        return _json({"status": "degraded", "reasons": amiss} if amiss else {"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        try:
            description = await self._backend.describe()
        except NoWorkerError:
            description = None
        return Response(self._metrics.render(description), media_type=_PROMETHEUS_TEXT)

    async def version(self, request: Request) -> Response:
        return _json({"version": version("augury")})

    async def tokenize(self, request: Request) -> Response:
        asked, _ = parse(TokenizeRequest, await read_body(request))
        check_model(asked.model, self._model)
        (tokens,) = await asyncio.to_thread(
            self._model.encode, [asked.prompt], add_special_tokens=asked.add_special_tokens
        )
        return _json({"count": len(tokens), "tokens": tokens})

    async def detokenize(self, request: Request) -> Response:
        asked, _ = parse(DetokenizeRequest, await read_body(request))
        check_model(asked.model, self._model)
        return _json({"prompt": self._model.decode(asked.tokens)})

    def _card(self) -> dict[str, object]:
        return {"id": self._model.name, "object": "model", "created": self._created, "owned_by": "augury"}


def _json(content: object) -> Response:
    return Response(msgspec.json.encode(content), media_type="application/json")

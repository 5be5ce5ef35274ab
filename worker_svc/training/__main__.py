"""``python -m worker_svc.training generate|train|evaluate|story``: makes the demo modules and the story model."""

import argparse
import os
from pathlib import Path

import torch

from augury.models import cache_folder
from worker_svc.model.smollm2 import prepare
from worker_svc.training import smollm2, story
from worker_svc.training.distill import Recipe
from worker_svc.training.prompts import Part
from worker_svc.training.smollm2 import TRAINING_PARTS, Places

_DEMO = Path(__file__).parent.parent / "model" / "demo"


def main() -> None:
    args = _parser().parse_args()
    device = torch.device(args.device)
    cache = cache_folder(os.environ)
    work = args.work or cache / "training"
    if args.command == "story":
        story.make(args.out or _DEMO / "story", args.steps, device, work / "story.pt")
        return
    places = Places(model=prepare(cache, progress=True), work=work, out=args.out or _DEMO / "smollm2")
    match args.command:
        case "generate":
            smollm2.write_texts(places, Part(args.part), args.prompts, args.at_once)
        case "train":
            smollm2.train(places, [Part(part) for part in args.parts], _recipe(args), device, args.start_from)
        case "evaluate":
            smollm2.evaluate(places, device)


def _recipe(args: argparse.Namespace) -> Recipe:
    return Recipe(solo_epochs=args.solo_epochs, epochs=args.epochs, learning_rate=args.learning_rate)


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--device", default="cpu", help="cpu or cuda")
    common.add_argument("--out", type=Path, help="folder of the result; default: worker_svc/model/demo/…")
    common.add_argument("--work", type=Path, help="folder for texts and checkpoints; default: in the cache folder")
    parser = argparse.ArgumentParser(prog="python -m worker_svc.training", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    generate = commands.add_parser("generate", parents=[common], help="let SmolLM2 answer prompts (on the CPU)")
    generate.add_argument("--part", choices=[part.value for part in Part], default=Part.TRAIN.value)
    generate.add_argument("--prompts", type=int, default=3000, help="how many prompts in all")
    generate.add_argument("--at-once", type=int, default=128, help="prompts that are answered at the same time")
    train = commands.add_parser("train", parents=[common], help="train modules on the answers")
    parts = [part.value for part in TRAINING_PARTS]
    train.add_argument("--parts", nargs="+", choices=parts, default=parts, help="whose answers; default: all")
    train.add_argument("--epochs", type=int, default=Recipe().epochs, help="passes over the texts in all")
    train.add_argument("--solo-epochs", type=int, default=Recipe().solo_epochs, help="the first module's own, of these")
    train.add_argument("--learning-rate", type=float, default=Recipe().learning_rate, help="its highest value")
    train.add_argument("--start-from", type=Path, help="folder of exported modules to go on with (--solo-epochs 0)")
    commands.add_parser("evaluate", parents=[common], help="measure the modules on new prompts")
    story_parser = commands.add_parser("story", parents=[common], help="make the story model from scratch")
    story_parser.add_argument("--steps", type=int, default=2000)
    return parser


main()

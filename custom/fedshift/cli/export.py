"""``fedshift export``."""

from __future__ import annotations

import argparse
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

from fedshift.cli.model_choice import add_choice, choice, describe, print_statistics
from fedshift.schema.errors import ConfigError


def add_arguments(parser: Any) -> None:
    parser.add_argument("model", type=Path, metavar="MODEL")
    parser.add_argument("--bundle", type=Path, metavar="DIR", help="a MONAI bundle; the folder must not exist yet")
    parser.add_argument("--onnx", type=Path, metavar="FILE", help="the network with its normalisation, as ONNX")
    parser.add_argument("--torch-export", type=Path, metavar="FILE", help="the same, as torch.export writes it (.pt2)")
    parser.add_argument(
        "--nnunet", type=Path, metavar="DIR", help="a results folder of nnU-Net below DIR, which nnUNetv2_predict runs"
    )
    parser.add_argument(
        "--dataset", metavar="NAME", help="with --nnunet: its data set, as Dataset004_Hippocampus (default: the task's)"
    )
    parser.add_argument(
        "--images",
        type=Path,
        nargs="+",
        default=[],
        metavar="IMAGE",
        help="with --statistics own: estimate statistics from these images; they become part of the export",
    )
    add_choice(parser)
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    from fedshift.inference import bundle_export, classify, export, nnunet_export, segment
    from fedshift.inference.model import open_model
    from fedshift.inference.sequences import find_cases

    if not (args.bundle or args.onnx or args.torch_export or args.nnunet):
        message = "name what to write: --bundle DIR, --nnunet DIR, --onnx FILE or --torch-export FILE"
        raise ConfigError("option-missing", message)
    if args.dataset and not args.nnunet:
        raise ConfigError("no-effect", "--dataset is for --nnunet: leave it out")
    model, chosen = open_model(args.model), choice(args)
    if chosen.estimate and not args.images:
        message = "--statistics own needs images to estimate them from: name some with --images"
        raise ConfigError("option-missing", message)
    if args.images and not chosen.estimate:
        raise ConfigError("no-effect", "--images is for --statistics own: add it, or leave out --images")
    if args.true_spacing and not model.uses_spacing:
        raise ConfigError("no-effect", f"{model.path} does not resample by voxel sizes: leave out --true-spacing")
    if args.true_spacing and not (args.bundle or args.images):
        raise ConfigError("no-effect", "--true-spacing is for --bundle and --images: leave it out")
    images = args.images
    if model.is_segmentation:
        cases = find_cases(images, model.sequences)
        ready = segment.ready_for(model, cases, chosen, device=args.device, true_spacing=args.true_spacing)
    else:
        if model.classifies_volumes:
            cases = find_cases(images, model.sequences)
            inputs = classify.of_volumes(model, cases, true_spacing=args.true_spacing)
        else:
            inputs = classify.of_pictures(model, images, classify.depth_of(images))
        ready = classify.ready_for(model, inputs, chosen, device=args.device)
    outputs: list[Path] = []
    if args.bundle:
        bundle_export.check_bundle(ready, args.bundle)
        outputs.append(args.bundle)
    if args.nnunet:
        outputs.append(nnunet_export.results_folder(ready, args.nnunet, dataset=args.dataset))
    if args.onnx:
        export.check_onnx(args.onnx)
        outputs.append(args.onnx)
    if args.torch_export:
        export.check_file(args.torch_export)
        outputs.append(args.torch_export)
    if twice := [path for path, times in Counter(map(Path.resolve, outputs)).items() if times > 1]:
        raise ConfigError("options-clash", f"{twice[0]} is named for two outputs: name another place for one of them")
    for line in describe(model):
        print(line)
    print_statistics(ready)
    if args.bundle:
        bundle_export.write_bundle(ready, args.bundle, true_spacing=args.true_spacing)
        print(f"{args.bundle}: run it there with 'python -m monai.bundle run --config_file configs/inference.json'")
    if args.nnunet:
        written = nnunet_export.write_results_folder(ready, args.nnunet, dataset=args.dataset)
        for note in written.notes:
            print(f"  note: {note}")
        print(f"nnUNetv2_predict_from_modelfolder -m {shlex.quote(str(written.folder))} {written.options} -i IN -o OUT")
    for path, write in ((args.onnx, export.write_onnx), (args.torch_export, export.write_torch_export)):
        if path:
            print(f"{path}: differs by at most {write(ready, path):.2g} from the model")
    return 0

"""What nnU-Net does, run by a Python that has it (`make nnunet`), without fedshift.

``nnunet_program.py prepare RAW PREPARED PLANS``: cases of a data set, as ``nnUNetv2_preprocess`` prepares them.
``nnunet_program.py predict MODEL IMAGES OUT``: masks, as ``nnUNetv2_predict_from_modelfolder`` predicts them; in one
process, which the commands' pools of workers take long to start in place of.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def prepare(raw: Path, prepared: Path, plans_file: Path) -> None:
    from nnunetv2.preprocessing.preprocessors.default_preprocessor import DefaultPreprocessor
    from nnunetv2.utilities.plans_handling.plans_handler import PlansManager

    described = json.loads((raw / "dataset.json").read_text())
    plans = PlansManager(str(plans_file))
    configuration = plans.get_configuration("3d_fullres")
    folder = prepared / configuration.data_identifier
    folder.mkdir(parents=True)
    for mask in sorted((raw / "labelsTr").glob("*.nii.gz")):
        case = mask.name.removesuffix(".nii.gz")
        images = [str(image) for image in sorted((raw / "imagesTr").glob(f"{case}_????.nii.gz"))]
        DefaultPreprocessor(verbose=False).run_case_save(
            str(folder / case), images, str(mask), plans, configuration, described
        )


def predict(model: Path, images: Path, out: Path) -> None:
    import torch
    from nnunetv2.inference.predict_from_raw_data import nnUNetPredictor

    torch.set_num_threads(1)
    predictor = nnUNetPredictor(device=torch.device("cpu"), allow_tqdm=False)
    predictor.initialize_from_trained_model_folder(str(model), (0,))
    out.mkdir()
    predictor.predict_from_files_sequential(str(images), str(out))


if __name__ == "__main__":
    for place in ("nnUNet_raw", "nnUNet_preprocessed", "nnUNet_results"):
        os.environ.setdefault(place, "nowhere")  # or nnU-Net warns
    {"prepare": prepare, "predict": predict}[sys.argv[1]](*map(Path, sys.argv[2:]))

#!/bin/sh
# NIfTI has two intent codes for fields of vectors: 1006, displacements, and 1007, other vectors. Displacements are in the
# axes of NIfTI, which grow to the right and to the front (RAS); SimpleITK's grow to the left and to the back (LPS).
#
# Expected: a field of displacements that SimpleITK reads, crops or resamples, and saves moves tissue as before.
# Seen: it moves it to the other side. SimpleITK turns what it reads with code 1006, and not what has 1007; what it saves
# has 1007, and is not turned back. So for all who read NIfTI the first two components have the other sign afterwards, and
# so have those of the same field when it is read with either code. Nothing is said.
# Versions: SimpleITK 2.5.7, nibabel 5.4.2.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q SimpleITK==2.5.7 nibabel==5.4.2 numpy==2.2.6
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

import nibabel
import numpy as np
import SimpleITK as sitk

print("SimpleITK", version("SimpleITK"), "nibabel", version("nibabel"))
moves = np.broadcast_to(np.float32([1, 2, 3]), (6, 6, 6, 1, 3))  # mm to the right, to the front and to the head
seen = {}
for code in (1006, 1007):
    field = nibabel.Nifti1Image(moves, np.eye(4))
    field.set_qform(np.eye(4), 1)
    field.set_sform(np.eye(4), 1)
    field.header.set_intent(code)
    nibabel.save(field, "field.nii")
    image = sitk.ReadImage("field.nii")
    print(f"intent {code}: nibabel reads {moves[0, 0, 0, 0].tolist()} (RAS), SimpleITK {list(image[2, 2, 2])} (LPS)")
    for name, made in (("cropped", image[1:5, 1:5, 1:5]), ("resampled", sitk.Resample(image, image))):
        sitk.WriteImage(made, "saved.nii")
        again = nibabel.load("saved.nii")
        seen[code, name] = int(again.header["intent_code"]), again.get_fdata()[2, 2, 2, 0].tolist()
        print(f"  {name} by SimpleITK: intent {seen[code, name][0]}, nibabel reads {seen[code, name][1]}")
here, turned = (1007, [1, 2, 3]), (1007, [-1, -2, 3])
assert seen[1006, "cropped"] == seen[1006, "resampled"] == turned, "displacements keep their direction by now"
assert seen[1007, "cropped"] == seen[1007, "resampled"] == here, "other vectors are turned by now"
PYTHON

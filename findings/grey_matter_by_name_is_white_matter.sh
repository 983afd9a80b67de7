#!/bin/sh
# intensity-normalization's FCMNormalizer divides a brain scan by the mean of one tissue, whose name is given: its
# description has FCMNormalizer(tissue_type="wm"), and normalize_image() and the command line take "wm", "gm" and "csf".
# KDENormalizer and WhiteStripeNormalizer are told the modality, for which normalize_image() takes "t1", "t2" and others.
#
# Expected: with tissue_type="gm" grey matter has about 1 afterwards, with "csf" fluid; with modality="t2" that peak of the
# histogram is taken which the package has for T2. A name that is not understood is refused.
# Seen: the classes take names of any kind, compare them with members of an enumeration, which equal no name, and fall back
# to white matter, and to the peak of T1. So "wm" is right by chance, and with "gm" and "csf" white matter has 1 and grey
# matter 0.67. On a T2 scan modality="t2" gives fluid 1, and white matter 0.39, where the peak of T2 gives white matter 1,
# and WhiteStripe lays its stripe around fluid. NormalizationService.create_normalizer() does the same. Nothing is said.
# With TissueType.GM and Modality.T2, and by normalize_image(), it is as expected.
# Versions: intensity-normalization 3.0.1, scikit-fuzzy 0.5.0, scipy 1.17.1, numpy 2.2.6.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q intensity-normalization==3.0.1 scikit-fuzzy==0.5.0 scipy==1.17.1 numpy==2.2.6
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import warnings
from importlib.metadata import version

import numpy as np
from intensity_normalization import (
    FCMNormalizer,
    KDENormalizer,
    Modality,
    NormalizationService,
    TissueType,
    WhiteStripeNormalizer,
    create_image,
    normalize_image,
)

warnings.simplefilter("error", UserWarning)
print(*(f"{name} {version(name)}" for name in ("intensity-normalization", "scikit-fuzzy", "scipy", "numpy")))
TISSUES = {"fluid": 1500, "grey matter": 3500, "white matter": 4500}
places = np.split(np.arange(9500), np.cumsum(list(TISSUES.values()))[:-1])


def scan(*means):
    """A brain whose tissues have these mean intensities."""
    random = np.random.default_rng(0)
    brain = np.zeros((22, 22, 22))
    for mean, place in zip(means, places, strict=True):
        brain.ravel()[place] = random.normal(mean, 0.04, len(place))
    return brain


def medians(normalized):
    return [round(float(np.median(normalized.get_data().ravel()[place])), 2) for place in places]


def show(what, normalized):
    found = medians(normalized)
    print(f"{what}:", ", ".join(f"{name} {value}" for name, value in zip(TISSUES, found, strict=True)))
    return found


def same(one, other):
    return np.allclose(seen[one], seen[other], rtol=0.05, atol=0.02)


t1, t2 = scan(0.3, 0.6, 0.9), scan(0.9, 0.55, 0.35)
service = NormalizationService.create_normalizer
seen = {}
for name in ("wm", "gm", "csf"):
    for way, normal in (
        ("name", FCMNormalizer(tissue_type=name).fit_transform(create_image(t1))),
        ("service", service("fcm", tissue_type=name).fit_transform(create_image(t1))),
        ("member", FCMNormalizer(tissue_type=TissueType(name)).fit_transform(create_image(t1))),
        ("function", normalize_image(t1, method="fcm", tissue_type=name)),
    ):
        seen[name, way] = show(f"T1, FCM, {name} by {way}", normal)
for method, kind in (("kde", KDENormalizer), ("whitestripe", WhiteStripeNormalizer)):
    for way, normal in (
        ("name", kind(modality="t2").fit_transform(create_image(t2))),
        ("another name", kind(modality="t1").fit_transform(create_image(t2))),
        ("member", kind(modality=Modality.T2).fit_transform(create_image(t2))),
        ("function", normalize_image(t2, method=method, modality="t2")),
    ):
        seen[method, way] = show(f"T2, {method} by {way}", normal)

for number, name in enumerate(("csf", "gm", "wm")):
    assert same((name, "member"), (name, "function")) and 0.9 < seen[name, "member"][number] < 1.1, f"{name}: {seen}"
    for way in ("name", "service"):
        assert same((name, way), ("wm", "member")), f"{name} by {way} is no longer white matter: {seen[name, way]}"
for method in ("kde", "whitestripe"):
    assert same((method, "name"), (method, "another name")), f"{method} minds the name of the modality now: {seen}"
    assert same((method, "member"), (method, "function")), f"{method}: {seen}"
    assert not same((method, "name"), (method, "member")), f"{method} understands the name of the modality now: {seen}"
assert abs(seen["kde", "name"][0] - 1) < 0.05 and abs(seen["kde", "member"][2] - 1) < 0.05, f"it is otherwise now: {seen}"
PYTHON

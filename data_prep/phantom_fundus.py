"""The fundus phantom: simulated photographs of the optic disc, with its cup, under six cameras.

Nothing here comes from a patient. Four cameras have the names of the sites of the task ``fundus``; two, ``NEW_A`` and
``NEW_B``, are for what a model does at a site that took no part. A drawing has a retina with its choroid, a macula,
vessels that leave through the disc, and a disc of which the cup is the paler middle. A camera then has its own field of
view, exposure, colours, vignette, haze, blur, noise and JPEG quality. Numbers are invented so that pictures differ
as much between cameras as real ones do; they are measurements of no real camera.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from data_prep.fundus import LABELS
from data_prep.phantom import begin, check_numbers, chosen_sites
from data_prep.volumes import CaseFiles, SitePlan, write_site
from fedshift.data.picture_scan import COLOURS
from fedshift.schema.manifest import PHANTOM, PhantomOptions

Plane = NDArray[np.float32]
Picture = NDArray[np.uint8]
SIDE = 256
"""Pixels along each side."""
FINE = 2
"""By how much vessels are drawn larger, for smooth edges."""
BACKGROUND, RIM, CUP = range(3)
DATASET = "fundus"
CASES = 20  # per site


@dataclass(frozen=True)
class Camera:
    """What a camera does to a drawing.

    ``tint``: a factor for red, green and blue; ``gamma``; ``field``: radius of the round field of view, as a part of
    the picture's side; ``vignette``: how much darker its edge is; ``slope``: how uneven the light is; ``haze``: part of
    grey light from the lens; ``blur`` in pixels; ``noise`` as a part of white; ``quality`` of JPEG, 0 for none;
    ``zoom``: size of the eye in the picture.
    """

    tint: tuple[float, float, float]
    gamma: float
    field: float
    vignette: float
    slope: float
    haze: float
    blur: float
    noise: float
    quality: int
    zoom: float


CAMERAS: dict[str, Camera] = {
    "DRISHTI": Camera((1.0, 1.0, 1.0), 1.0, 0.62, 0.25, 0.10, 0.02, 0.5, 0.010, 95, 1.00),
    "RIMONE": Camera((0.92, 1.22, 1.05), 0.80, 0.50, 0.45, 0.20, 0.04, 0.9, 0.020, 85, 0.85),
    "REFUGE_TRAIN": Camera((1.10, 0.72, 0.55), 1.35, 0.75, 0.15, 0.10, 0.00, 0.4, 0.008, 0, 1.15),
    "REFUGE_VAL": Camera((0.70, 0.82, 0.95), 1.10, 0.49, 0.55, 0.35, 0.12, 1.3, 0.030, 60, 0.90),
    "NEW_A": Camera((1.05, 0.95, 0.60), 0.70, 0.90, 0.10, 0.30, 0.08, 0.7, 0.015, 90, 1.05),
    "NEW_B": Camera((0.80, 0.66, 0.70), 1.55, 0.55, 0.35, 0.15, 0.03, 1.7, 0.022, 45, 0.95),
}


def make_fundus(
    root: Path,
    *,
    seed: int = 0,
    sites: Sequence[str] | None = None,
    cases: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> Path:
    """Write the phantom's sites to ``root/fundus/<site>`` and return ``root``.

    All random numbers are derived from (seed, site, case), so that a picture does not depend on which others are made.

    Args:
        root: the phantom's own folder; it must not contain prepared sites of patients.
        seed: seed of all random numbers.
        sites: names of the cameras; default all six.
        cases: pictures per site, default `CASES`.
        progress: called with ``SITE EyeXX`` before each picture is made.

    Raises:
        ConfigError: an unknown site, a negative seed, or fewer than one case.
        DataError: ``root`` contains sites that are not a phantom, or cannot be written.
    """
    chosen, count = chosen_sites(sites, tuple(CAMERAS)), CASES if cases is None else cases
    check_numbers(cases=count, seed=seed)
    begin(root, DATASET, seed=seed)
    made_with = PhantomOptions(cases=count, seed=seed, task="fundus")
    for site in chosen:
        with TemporaryDirectory(prefix="fedshift-phantom-") as scratch:
            plan = SitePlan(
                site=site,
                cases=tuple(_write_pictures(Path(scratch), site=site, seed=seed, cases=count, progress=progress)),
                source=f"simulated by fedshift data phantom --task fundus, seed {seed}",
                licence="Apache-2.0 (simulated, not patients)",
                citation=f"fedshift fundus phantom, seed {seed}",
                preparation={PHANTOM: made_with.model_dump(mode="json")},
            )
            write_site(plan, root, dataset=DATASET, kind="phantom", labels=LABELS, sequences=COLOURS)
    return root


def _write_pictures(
    folder: Path, *, site: str, seed: int, cases: int, progress: Callable[[str], None] | None
) -> list[CaseFiles]:
    written = []
    for number in range(cases):
        name = f"Eye{number:02d}"
        if progress:
            progress(f"{site} {name}")
        picture, classes = draw(CAMERAS[site], np.random.default_rng([seed, zlib.crc32(site.encode()), number]))
        image, mask = folder / f"{name}.png", folder / f"{name}_mask.png"
        Image.fromarray(picture).save(image)
        Image.fromarray(classes).save(mask)
        written.append(CaseFiles(id=name, images=(image,) * 3, channels=(0, 1, 2), sequences=COLOURS, mask=mask))
    return written


def draw(camera: Camera, rng: np.random.Generator) -> tuple[Picture, Picture]:
    """A photograph (SIDE, SIDE, 3) uint8 and its classes (SIDE, SIDE): 0 background, 1 rim of the disc, 2 cup."""
    scene, classes = _eye(rng, zoom=camera.zoom)
    return photographed(scene, camera, rng), classes


def _eye(rng: np.random.Generator, *, zoom: float) -> tuple[Plane, Picture]:
    """Colours (SIDE, SIDE, 3) from 0 to 1, without a camera, and classes."""
    y, x = (plane.astype(np.float32) for plane in np.mgrid[:SIDE, :SIDE])
    is_left = bool(rng.random() < 0.5)
    centre = SIDE / 2 + rng.uniform(-22, 22, 2)
    radius = rng.uniform(30, 38) * zoom
    stretch, turn = rng.uniform(1.02, 1.2), rng.uniform(-0.35, 0.35)
    disc = _ellipse(y, x, centre, radius, stretch, turn)
    ratio = rng.uniform(0.32, 0.75)
    shift = (
        np.array([rng.uniform(-0.1, 0.1), (0.12 if is_left else -0.12) * rng.uniform(0.3, 1)]) * radius * (1 - ratio)
    )
    cup = _ellipse(y, x, centre + shift, ratio * radius, rng.uniform(0.95, 1.2), turn + rng.uniform(-0.3, 0.3))
    wobble = _cloud(rng, 26) * 0.035
    disc, cup = disc + wobble, np.maximum(cup + wobble * 1.5, disc + 0.04)

    pigment = rng.uniform(0, 1)
    retina = np.array([0.78, 0.36, 0.16]) * (1 - pigment) + np.array([0.55, 0.22, 0.09]) * pigment
    texture = 1 + 0.06 * _cloud(rng, 40) + 0.045 * _cloud(rng, 12) + 0.03 * _cloud(rng, 4)
    colours = retina.astype(np.float32) * texture[..., None]
    macula = centre + np.array([0.15 * radius, (4.6 if is_left else -4.6) * radius])
    dark = np.exp(-((y - macula[0]) ** 2 + (x - macula[1]) ** 2) / (2 * (1.1 * radius) ** 2))
    colours *= (1 - 0.35 * dark)[..., None]
    if rng.random() < 0.4:  # a pale crescent beside the disc, which is no part of it
        beside = centre + np.array([0.0, (0.35 if is_left else -0.35) * radius])
        crescent = _soft(_ellipse(y, x, beside, radius * 1.12, stretch, turn), 0.06)
        colours = _over(colours, np.array([0.86, 0.60, 0.38]), 0.55 * crescent)
    pale = np.array([0.92, 0.64, 0.36]) * rng.uniform(0.9, 1.05)
    nasal = 1 - 0.12 * np.clip((x - centre[1]) / radius * (-1 if is_left else 1), -1, 1)
    colours = _over(colours, pale * nasal[..., None], _soft(disc, 0.09))
    colours = _over(colours, np.array([1.0, 0.94, 0.74]) * rng.uniform(0.93, 1.03), _soft(cup, 0.16) * 0.95)
    for veins in (True, False):
        blood = np.array([0.42, 0.08, 0.05]) if veins else np.array([0.62, 0.18, 0.10])
        colours = _over(colours, blood, _vessels(rng, centre, radius, is_left=is_left, veins=veins) * 0.85)
    classes = np.where(disc < 1, RIM, BACKGROUND)
    classes[(cup < 1) & (disc < 1)] = CUP
    return np.clip(colours, 0, 1).astype(np.float32), classes.astype(np.uint8)


def _vessels(
    rng: np.random.Generator, centre: NDArray[np.float64], radius: float, *, is_left: bool, veins: bool
) -> Plane:
    """How much of each pixel is a vessel: four arcades that leave the disc's middle, and their branches."""
    sheet = Image.new("L", (SIDE * FINE, SIDE * FINE))
    pen = ImageDraw.Draw(sheet)
    root = centre + np.array([0.0, (-0.2 if is_left else 0.2) * radius])
    width = (4.2 if veins else 3.0) * radius / 34
    for up in (-1, 1):
        for side in (-1, 1):
            angle = up * (np.pi / 2 - side * rng.uniform(0.2, 0.85))
            bend = up * side * rng.uniform(0.0, 0.014)
            _branch(pen, rng, root + rng.normal(0, 2, 2), angle, width * rng.uniform(0.8, 1.1), bend, depth=3)
    small = sheet.resize((SIDE, SIDE), Image.Resampling.BOX)
    return np.asarray(small, np.float32) / np.float32(255)


def _branch(
    pen: ImageDraw.ImageDraw,
    rng: np.random.Generator,
    start: NDArray[np.float64],
    angle: float,
    width: float,
    bend: float,
    *,
    depth: int,
) -> None:
    """A vessel from (y, x) on, thinner as it goes, and its branches."""
    place, length = start.copy(), int(rng.integers(26, 48))
    for step in range(length):
        after = place + 3.0 * np.array([np.sin(angle), np.cos(angle)])
        thick = max(1, round(width * FINE * (1 - 0.5 * step / length)))
        pen.line([tuple(point[::-1] * FINE) for point in (place, after)], fill=255, width=thick)
        place, angle = after, angle + bend + rng.normal(0, 0.06)
        if not (0 <= place[0] < SIDE and 0 <= place[1] < SIDE):
            return
        if depth and rng.random() < 0.045:
            fork = rng.choice((-1, 1)) * rng.uniform(0.5, 0.9)
            _branch(pen, rng, place, angle + fork, width * 0.65, -bend / 2, depth=depth - 1)


def photographed(scene: Plane, camera: Camera, rng: np.random.Generator) -> Picture:
    """A picture (SIDE, SIDE, 3) uint8 of a scene."""
    y, x = np.mgrid[:SIDE, :SIDE].astype(np.float32) / SIDE - 0.5
    around = np.hypot(y, x) / camera.field
    toward = rng.uniform(0, 2 * np.pi)
    light = 1 - camera.vignette * np.clip(around, 0, 1) ** 2
    light += camera.slope * (y * np.sin(toward) + x * np.cos(toward))
    tint = np.asarray(camera.tint, np.float32) * np.exp(rng.normal(0, 0.05, 3)).astype(np.float32)
    image = scene * light[..., None].astype(np.float32) * tint * np.float32(rng.uniform(0.9, 1.1))
    image = np.clip(image, 0, None) ** np.float32(camera.gamma * rng.uniform(0.95, 1.05))
    image = image * (1 - camera.haze) + camera.haze * np.array([0.5, 0.55, 0.6], np.float32)
    image = _blurred(image, camera.blur * rng.uniform(0.8, 1.2))
    image *= np.clip((1 - around) * camera.field * SIDE / 2 + 0.5, 0, 1)[..., None].astype(np.float32)
    image += rng.normal(0, camera.noise, image.shape).astype(np.float32)
    picture = np.rint(np.clip(image, 0, 1) * 255).astype(np.uint8)
    if not camera.quality:
        return picture
    with io.BytesIO() as stream:
        Image.fromarray(picture).save(stream, "JPEG", quality=camera.quality)
        return np.array(Image.open(stream))


def _ellipse(y: Plane, x: Plane, centre: NDArray[np.float64], radius: float, stretch: float, turn: float) -> Plane:
    """Distance from the centre, 1 on an ellipse that is longer along y; ``turn`` in radians."""
    down, along = y - centre[0], x - centre[1]
    v, u = down * np.cos(turn) + along * np.sin(turn), along * np.cos(turn) - down * np.sin(turn)
    return np.asarray(np.hypot(v / (radius * np.sqrt(stretch)), u * np.sqrt(stretch) / radius), np.float32)


def _soft(distance: Plane, width: float) -> Plane:
    """1 inside, 0 outside, and between over a width."""
    return np.asarray(np.clip((1 - distance) / width + 0.5, 0, 1), np.float32)


def _over(below: Plane, colour: NDArray[np.floating], cover: Plane) -> Plane:
    return np.asarray(below + (colour - below) * cover[..., None], np.float32)


def _cloud(rng: np.random.Generator, scale: float) -> Plane:
    """Smooth noise of deviation 1 about, with structures of ``scale`` pixels."""
    coarse = rng.standard_normal((int(SIDE / scale) + 3,) * 2).astype(np.float32)
    large = Image.fromarray(coarse).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    return np.asarray(large, np.float32)


def _blurred(image: Plane, sigma: float) -> Plane:
    from scipy.ndimage import gaussian_filter

    return np.asarray(gaussian_filter(image, (sigma, sigma, 0)), np.float32)

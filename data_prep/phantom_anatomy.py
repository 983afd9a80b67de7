"""The phantom's male pelvis: parameters that differ between patients, and the tissues in space.

The pelvis is made of simple geometric shapes, not of anyone's scan. Coordinates are millimetres with the prostate's
centre near the origin: x to the patient's left, y posterior, z towards the head. Arrays are
``[slices, rows, columns]`` = (z, y, x).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Field = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Contrast:
    """Signal of each tissue before coil, blur and noise (arbitrary units, bladder of a T2w scan about 1)."""

    fat: float
    muscle: float
    marrow: float
    cortex: float
    bladder: float
    peripheral: float  # peripheral zone of the prostate
    transition: float  # transition zone
    stroma: float  # capsule, pseudo-capsule and anterior stroma
    vesicle: float  # seminal vesicles
    vein: float  # venous plexus
    wall: float  # wall of bladder and rectum
    stool: float
    gas: float = 0.02


@dataclass(frozen=True)
class Grid:
    """Voxel centres in millimetres, as three broadcastable axes."""

    z: Field  # [S, 1, 1]
    y: Field  # [1, H, 1]
    x: Field  # [1, 1, W]

    @classmethod
    def centred(cls, *, shape: tuple[int, int, int], spacing: tuple[float, float, float]) -> Grid:
        """A grid of ``shape`` (slices, rows, columns) and ``spacing`` (mm) around the origin."""
        axes = [
            ((np.arange(n) - (n - 1) / 2) * step).astype(np.float32) for n, step in zip(shape, spacing, strict=True)
        ]
        return cls(axes[0][:, None, None], axes[1][None, :, None], axes[2][None, None, :])


@dataclass(frozen=True)
class Patient:
    """Parameters that differ between patients; lengths in mm."""

    centre: tuple[float, float, float]  # of the prostate, z y x
    axes: tuple[float, float, float]  # half lengths of the prostate, z y x
    power: float  # 2 = ellipsoid, more = boxier
    taper: float  # how much narrower the apex is
    zone: float  # transition zone's size relative to the gland
    bladder: tuple[float, float, float]
    rectum: float  # radius of the bowel where there is no coil
    coil: tuple[float, float] | None  # half lengths of the endorectal balloon, y x
    build: float  # size of pelvis and muscles, 1 = average
    fatness: float  # width of the fat between the muscles, mm


def draw_patient(rng: np.random.Generator, *, endorectal: bool, headroom: float) -> Patient:
    """Draw a patient's parameters.

    ``headroom`` is the largest half height of the gland (mm) that leaves empty slices at both ends.
    """
    height = min(rng.uniform(14, 24), headroom)
    width = rng.uniform(21, 31)
    depth = rng.uniform(0.62, 0.86) * width * (0.85 if endorectal else 1.0)
    return Patient(
        centre=(rng.uniform(-2, 2), rng.uniform(-9, 5), rng.uniform(-6, 6)),
        axes=(height, depth, width),
        power=rng.uniform(1.9, 2.5),
        taper=rng.uniform(0.1, 0.35),
        zone=rng.uniform(0.45, 0.8),
        bladder=(rng.uniform(14, 30), rng.uniform(16, 32), rng.uniform(20, 40)),
        rectum=rng.uniform(9, 17),
        coil=(rng.uniform(14, 18), rng.uniform(19, 25)) if endorectal else None,
        build=rng.uniform(0.92, 1.1),
        fatness=rng.uniform(4, 12),
    )


def smooth_noise(rng: np.random.Generator, grid: Grid, *, scale: float) -> Field:
    """Gaussian noise with about unit variance, correlated over ``scale`` mm, in the grid's shape.

    Normal numbers on a coarse lattice are interpolated by quadratic B-splines along each axis.
    """
    plans = [_spline_plan(axis.ravel(), scale) for axis in (grid.z, grid.y, grid.x)]
    field: Field = rng.standard_normal([size for size, _, _ in plans], dtype=np.float32)
    for axis, (_, first, taps) in enumerate(plans):
        weights = [tap.reshape([-1 if k == axis else 1 for k in range(3)]) for tap in taps]
        parts = [np.take(field, first + k, axis=axis) * weight for k, weight in enumerate(weights)]
        field = parts[0] + parts[1] + parts[2]
    return np.asarray(field * np.float32(2.0), np.float32)


def _spline_plan(points: Field, scale: float) -> tuple[int, NDArray[np.intp], list[Field]]:
    """Lattice size, and the first lattice index and three weights of each point."""
    place = (points - points[0]) / np.float32(scale) + np.float32(0.5)
    first = np.floor(place).astype(np.intp)
    t = (place - first).astype(np.float32)
    taps = [0.5 * (1 - t) ** 2, 0.5 + t * (1 - t), 0.5 * t**2]
    return int(first.max()) + 3, first, [tap.astype(np.float32) for tap in taps]


def _radius(z: Field, y: Field, x: Field, axes: tuple[float, float, float], power: float = 2.0) -> Field:
    """Super-ellipsoid radius: 1 on the surface."""
    if power == 2.0:
        return np.asarray(np.sqrt((z / axes[0]) ** 2 + (y / axes[1]) ** 2 + (x / axes[2]) ** 2))
    terms = [np.abs(v / axis) ** power for v, axis in zip((z, y, x), axes, strict=True)]
    return np.asarray((terms[0] + terms[1] + terms[2]) ** (1 / power))


class Canvas:
    """A signal image that is painted from back to front with soft edges."""

    def __init__(self, shape: tuple[int, ...], *, soft: float) -> None:
        """``soft``: width of an edge in mm, about one voxel."""
        self.signal: Field = np.zeros(shape, np.float32)
        self.soft = soft

    def cover(self, depth: Field) -> Field:
        """Fraction of each voxel that lies inside, from its depth below the surface (mm)."""
        return np.asarray(np.clip(depth / self.soft + np.float32(0.5), 0, 1))

    def paint(self, depth: Field, value: float | Field) -> None:
        """Set the signal to ``value`` wherever ``depth`` > 0."""
        self.blend(self.cover(depth), value)

    def blend(self, share: Field, value: float | Field) -> None:
        """Like ``paint``, with the fraction of each voxel given."""
        self.signal += share * (value - self.signal)


def render(
    patient: Patient, grid: Grid, contrast: Contrast, rng: np.random.Generator, *, soft: float
) -> tuple[Field, NDArray[np.uint8]]:
    """Paint the patient: signal (float32, no noise yet) and zones of the prostate, both [S, H, W].

    Zones are 1 (peripheral, with the capsule and the stroma in front) and 2 (transition), 0 outside the gland.
    """
    bend = [smooth_noise(rng, grid, scale=30) * np.float32(a) for a in (1.0, 1.6, 1.6)]
    z = grid.z - np.float32(patient.centre[0]) + bend[0]
    y = grid.y - np.float32(patient.centre[1]) + bend[1]
    x = grid.x - np.float32(patient.centre[2]) + bend[2]
    fine = smooth_noise(rng, grid, scale=3.5)
    coarse = smooth_noise(rng, grid, scale=9)
    canvas = Canvas(z.shape, soft=soft)
    _pelvis(canvas, patient, contrast, z, y, x, fine, coarse)
    _bladder_and_bowel(canvas, patient, contrast, z, y, x, coarse)
    zones = _gland(canvas, patient, contrast, z, y, x, fine, coarse, rng)
    return canvas.signal, zones


def _pelvis(canvas: Canvas, p: Patient, c: Contrast, z: Field, y: Field, x: Field, fine: Field, coarse: Field) -> None:
    """Skin, fat, muscles and bones."""
    b = p.build
    outline = _radius(0 * z, y - 4 * b, x, (1, 92 * b, 165 * b), 2.6)
    canvas.paint((1 - outline) * 92 * b, c.fat * (1 + 0.05 * fine + 0.04 * coarse))
    side = np.abs(x)  # the pelvis is drawn mirrored; the bend makes it unequal
    muscle = c.muscle * (1 + 0.10 * fine)
    marrow = c.marrow * (1 + 0.10 * coarse)
    # Gluteus maximus posterior, rectus and adductors anterior, obturator internus at the side wall.
    strands = np.float32(0.8) * fine
    canvas.paint((1 - _radius(z / 9, y - 68 * b, side - 62 * b, (9, 22, 58), 2.3)) * 22 + strands, muscle)
    canvas.paint((1 - _radius(z / 9, y + 66 * b, side - 24 * b, (9, 12, 30), 2.2)) * 12 + strands, muscle)
    canvas.paint((1 - _radius((z + 12) / 3, y + 40, side - 56 * b, (10, 17, 19), 2.2)) * 17 + strands, muscle)
    lean = side - (50 + p.fatness) * b + 0.25 * y
    canvas.paint((1 - _radius(z / 9, y - 4, lean, (9, 40, 12), 2.2)) * 12 + 0.6 * strands, muscle)
    # Bones: dark rim, fatty marrow.
    for centre, axes in (
        ((10.0, -2.0, 95 * b), (40.0, 31.0, 29.0)),  # femoral head and acetabulum
        ((-14.0, -48.0 * b, 21.0), (26.0, 13.0, 19.0)),  # pubic body
        ((-30.0, 22.0, 74 * b), (26.0, 22.0, 15.0)),  # ischium
        ((22.0, 70.0 * b, 0.0), (34.0, 9.0, 17.0)),  # sacrum and coccyx
    ):
        depth = (1 - _radius(z - centre[0], y - centre[1], side - centre[2], axes)) * min(axes[1:])
        canvas.paint(depth, c.cortex)
        canvas.paint(depth - 2.2, marrow)
    # Levator ani: a thin sling around gland and bowel.
    sling = _radius(0 * z, y - 16, x, (1, 44, p.axes[2] + 7 + 0.2 * p.fatness), 2.4)
    canvas.paint(2.0 - np.abs(1 - sling) * 38 - np.maximum(-y - 12, 0) - np.maximum(z - 16, 0), muscle)
    # Vessels in the fat lateral to the gland.
    lateral = np.exp(-(((side - p.axes[2] - 7) / 6) ** 2) - ((y + 2) / 20) ** 2)
    canvas.blend(np.clip((fine - 0.8) * 1.5, 0, 1) * lateral, c.vein)


def _bladder_and_bowel(canvas: Canvas, p: Patient, c: Contrast, z: Field, y: Field, x: Field, coarse: Field) -> None:
    """Bladder above the gland; posterior to it the rectum or the balloon of an endorectal coil."""
    middle = p.axes[0] * 0.75 + p.bladder[0]
    depth = (1 - _radius(z - middle, y + 12, x, p.bladder, 2.2)) * min(p.bladder)
    canvas.paint(depth + 3.5, c.wall)
    canvas.paint(depth, c.bladder)
    if p.coil is None:
        r = p.rectum
        down = y - p.axes[1] - r - 4 - 0.012 * z * z - 0.15 * z
        sway = x - 2.5 * np.sin(z / 14)
        depth = (1 - _radius(0 * z, down, sway, (1, r, 1.15 * r))) * r + 1.2 * coarse
        canvas.paint(depth + 3, c.wall)
        level = np.clip((down - 1.5 * coarse) / 3 + 0.5, 0, 1)  # gas is anterior to stool
        canvas.paint(depth, c.gas + level * (c.stool * (1 + 0.35 * coarse) - c.gas))
    else:
        high, wide = p.coil
        depth = (1 - _radius(z / 5, y - p.axes[1] - high - 3, x, (9, high, wide), 2.2)) * high
        canvas.paint(depth + 3, c.wall)
        canvas.paint(depth, c.gas)


def gland_radius(p: Patient, z: Field, y: Field, x: Field) -> Field:
    """Radius in the gland's own shape, 1 on its surface: tapered towards the apex, flat or dented posteriorly."""
    taper = 1 - p.taper * np.clip(-z / p.axes[0], -0.3, 1)
    u = x / taper
    v = y / taper
    dent = (3.0 if p.coil else 1.5) * np.exp(-((x / 9) ** 2))
    v = np.where(v > 0, v * 1.1 + dent * np.clip(v / p.axes[1], 0, 1), v)
    return _radius(z, v, u, p.axes, p.power)


def _gland(
    canvas: Canvas,
    p: Patient,
    c: Contrast,
    z: Field,
    y: Field,
    x: Field,
    fine: Field,
    coarse: Field,
    rng: np.random.Generator,
) -> NDArray[np.uint8]:
    """Paint the seminal vesicles and the prostate's zones; returns the zones."""
    az, ay, ax = p.axes
    wings = _radius(z - az - 2, y - 0.55 * ay - 0.15 * np.abs(x), np.abs(x) - 15, (7.0, 6.0, 15.0))
    canvas.paint((1 - wings) * 6 + 1.5 * fine, c.vesicle * (1 - 0.35 * np.clip(fine, 0, 1)))
    front = _radius(z, y + ay + 4, x, (az, 4.5, 0.6 * ax))
    canvas.paint((1 - front) * 4.5 + fine, c.vein)

    radius = gland_radius(p, z, y, x) + np.float32(0.035) * coarse
    size = min(ay, ax)
    depth = (1 - radius) * size
    canvas.paint(depth, c.stroma)  # the capsule is what remains of this
    outer = c.peripheral * (1 + 0.10 * fine + 0.06 * coarse)
    if rng.random() < 0.5:  # a dark focus in the peripheral zone
        angle = rng.uniform(0.15, 0.85) * np.pi
        spot = _radius(
            z - rng.uniform(-0.4, 0.4) * az,
            y - 0.75 * ay * np.sin(angle),
            x - 0.75 * ax * np.cos(angle),
            (7.0, rng.uniform(3, 5), rng.uniform(4, 7)),
        )
        outer = outer + canvas.cover((1 - spot) * 4) * (c.transition * 0.8 - outer)
    canvas.paint(depth - 1.2, outer)

    inner_axes = (0.9 * p.zone * az + 2, p.zone * ay, (0.25 + 0.7 * p.zone) * ax)
    inner = (1 - _radius(z - 0.15 * az, y + 0.25 * ay, x, inner_axes, 2.2)) * min(inner_axes[1:])
    inner = np.minimum(inner + 0.6 * coarse, depth - 1.6)
    tissue = c.transition * (1 + 0.16 * fine + 0.12 * coarse)
    for _ in range(rng.integers(3, 7)):  # nodules, bright or dark
        offset = rng.uniform(-0.65, 0.65, 3).tolist()
        r = rng.uniform(3, 0.3 * size)
        ball = _radius(
            z - offset[0] * inner_axes[0],
            y + 0.25 * ay - offset[1] * inner_axes[1],
            x - offset[2] * inner_axes[2],
            (r, r, r),
        )
        glow = c.transition + rng.uniform(-0.35, 0.75) * (c.peripheral - c.transition)
        tissue = tissue + canvas.cover((1 - ball) * r) * (glow * (1 + 0.12 * fine) - tissue)
    canvas.paint(inner + 1.2, c.stroma)
    canvas.paint(inner, tissue)
    canvas.paint(2.2 - np.hypot(x, y + 0.1 * ay) + np.minimum(inner, 0), c.peripheral)  # urethra
    cap = (1 - _radius(z, y + 0.92 * ay, x, (0.8 * az, 4.0, 0.45 * ax))) * 4
    canvas.paint(np.minimum(cap, depth), c.stroma)
    return np.asarray((depth > 0).astype(np.uint8) + ((inner > 0) & (depth > 0)), np.uint8)

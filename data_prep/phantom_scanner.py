"""The phantom's six scanners: each site's geometry, contrast, coil, blur, noise and intensity scale.

The names are those of the six prostate sites in the papers. The settings are invented so that images differ as much
between sites as real ones do; they are not measurements of the real hospitals.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from data_prep.phantom_anatomy import Contrast, Field, Grid, Patient, smooth_noise


@dataclass(frozen=True)
class Scanner:
    """Scanner and protocol of one site."""

    matrix: int
    spacing: float  # mm in plane
    thickness: float  # mm between slices
    slices: int
    contrast: Contrast
    coil: Literal["body", "surface", "endorectal"]
    strength: float  # of the coil's brightness gradient
    gamma: float
    blur: float  # mm, standard deviation in plane
    noise: float  # standard deviation in each channel, relative to the 99th percentile of signal
    top: float  # typical maximum intensity in the file
    dtype: Literal["int16", "float32"]
    tilt: tuple[float, float, float]  # obliquity of the stack in degrees about x, y, z
    head_first: bool = False  # slices stored from head to foot
    balloon: bool = False  # an endorectal coil is in place, although it does not receive

    @property
    def endorectal(self) -> bool:
        """Whether the patient has an endorectal coil."""
        return self.balloon or self.coil == "endorectal"


# Long echo time, bright fat: the usual fast spin echo.
_PLAIN = Contrast(
    fat=0.68, muscle=0.21, marrow=0.48, cortex=0.04, bladder=0.92, peripheral=0.74, transition=0.42,
    stroma=0.18, vesicle=0.78, vein=0.74, wall=0.29, stool=0.38,
)  # fmt: skip
# Fat suppressed: bright gland in a dark pelvis.
_SUPPRESSED = Contrast(
    fat=0.33, muscle=0.26, marrow=0.25, cortex=0.04, bladder=0.92, peripheral=0.77, transition=0.47,
    stroma=0.21, vesicle=0.80, vein=0.70, wall=0.35, stool=0.28,
)  # fmt: skip
# Short echo time: low contrast in the gland, grey urine, bright fat and grey muscle.
_SHORT = Contrast(
    fat=0.78, muscle=0.34, marrow=0.60, cortex=0.05, bladder=0.52, peripheral=0.58, transition=0.50,
    stroma=0.29, vesicle=0.58, vein=0.42, wall=0.42, stool=0.50,
)  # fmt: skip
# Very long echo time: mostly fluid is bright.
_LONG = Contrast(
    fat=0.46, muscle=0.16, marrow=0.31, cortex=0.03, bladder=0.90, peripheral=0.66, transition=0.34,
    stroma=0.14, vesicle=0.78, vein=0.64, wall=0.22, stool=0.25,
)  # fmt: skip
# Intermediate echo time: fat is brightest, the gland is dark.
_DARK_GLAND = Contrast(
    fat=0.80, muscle=0.28, marrow=0.64, cortex=0.05, bladder=0.75, peripheral=0.56, transition=0.36,
    stroma=0.19, vesicle=0.60, vein=0.64, wall=0.34, stool=0.48,
)  # fmt: skip
# Fat partly suppressed: fat, muscle and transition zone have similar signal.
_FLAT = Contrast(
    fat=0.53, muscle=0.36, marrow=0.38, cortex=0.07, bladder=0.82, peripheral=0.70, transition=0.44,
    stroma=0.25, vesicle=0.70, vein=0.60, wall=0.44, stool=0.40,
)  # fmt: skip

# An apparent diffusion coefficient instead of T2: free water is bright, fat and cortex are black.
_DIFFUSION = Contrast(
    fat=0.06, muscle=0.36, marrow=0.10, cortex=0.03, bladder=0.95, peripheral=0.74, transition=0.44,
    stroma=0.30, vesicle=0.62, vein=0.50, wall=0.42, stool=0.22,
)  # fmt: skip

SCANNERS: dict[str, Scanner] = {
    "BIDMC": Scanner(
        matrix=192, spacing=0.72, thickness=2.2, slices=18, contrast=_LONG, coil="endorectal",
        strength=2.0, gamma=0.82, blur=0.5, noise=0.015, top=11900, dtype="float32", tilt=(8, 0, 1),
    ),
    "HK": Scanner(
        matrix=160, spacing=0.90, thickness=3.0, slices=16, contrast=_FLAT, coil="endorectal",
        strength=1.5, gamma=1.0, blur=0.6, noise=0.03, top=4095, dtype="int16", tilt=(0, 0, 0),
    ),
    "I2CVB": Scanner(
        matrix=176, spacing=1.05, thickness=2.5, slices=18, contrast=_SHORT, coil="body",
        strength=0.12, gamma=1.17, blur=0.7, noise=0.02, top=390, dtype="int16", tilt=(5, 2, 0),
        head_first=True,
    ),
    "BMC": Scanner(
        matrix=144, spacing=1.20, thickness=4.0, slices=14, contrast=_SUPPRESSED, coil="surface",
        strength=0.8, gamma=0.93, blur=0.8, noise=0.04, top=1720, dtype="int16", tilt=(3, 0, 2),
    ),
    "RUNMC": Scanner(
        matrix=160, spacing=1.00, thickness=3.6, slices=15, contrast=_PLAIN, coil="body",
        strength=0.10, gamma=1.0, blur=0.5, noise=0.018, top=1100, dtype="float32", tilt=(-4, 1, 0),
    ),
    "UCL": Scanner(
        matrix=128, spacing=1.45, thickness=3.3, slices=15, contrast=_DARK_GLAND, coil="surface",
        strength=0.6, gamma=0.82, blur=1.1, noise=0.035, top=30000, dtype="int16", tilt=(-9, 0, -3),
    ),
}  # fmt: skip


def diffusion(scanner: Scanner) -> Scanner:
    """The same scanner's second sequence: another contrast on the same grid, with more blur and noise, less shading."""
    return replace(
        scanner,
        contrast=_DIFFUSION,
        balloon=scanner.endorectal,
        coil="body",
        strength=0.05,
        gamma=1.0,
        blur=2.2 * scanner.blur,
        noise=1.5 * scanner.noise,
        top=3000,
        dtype="int16",
    )


def vary(contrast: Contrast, rng: np.random.Generator, *, spread: float = 0.12) -> Contrast:
    """A random variation of the protocol: each tissue's signal is scaled by exp(spread * N(0, 1))."""
    values = {name: value * float(np.exp(spread * rng.standard_normal())) for name, value in vars(contrast).items()}
    return Contrast(**values)


def acquire(
    signal: Field, patient: Patient, grid: Grid, scanner: Scanner, rng: np.random.Generator
) -> NDArray[np.float32] | NDArray[np.int16]:
    """Simulate the scanner: coil, blur, Rician noise, gamma and intensity scale."""
    image: Field = signal * _sensitivity(patient, grid, scanner, rng)
    image = _blur(image, width=scanner.blur / scanner.spacing)
    image /= np.percentile(image[:, ::2, ::2], 99)
    level = np.float32(scanner.noise * rng.uniform(0.9, 1.12))
    real = image + level * rng.standard_normal(image.shape, dtype=np.float32)
    other = level * rng.standard_normal(image.shape, dtype=np.float32)
    image = np.sqrt(real * real + other * other)
    image = image ** np.float32(scanner.gamma * rng.uniform(0.9, 1.12))
    image = image * (scanner.top * rng.uniform(0.8, 1.0) / float(image.max()))
    if scanner.dtype == "int16":
        return np.rint(image).astype(np.int16)
    return (np.rint(4 * image) / 4).astype(np.float32)  # rounded to quarters so that files compress well


def _blur(image: Field, *, width: float) -> Field:
    """Gaussian blur with standard deviation ``width`` pixels along rows and columns."""
    reach = int(np.ceil(3 * width))
    taps = np.exp(-0.5 * (np.arange(-reach, reach + 1) / width) ** 2)
    taps = (taps / taps.sum()).astype(np.float32)
    for axis in (1, 2):
        padded = np.pad(image, [(reach, reach) if k == axis else (0, 0) for k in range(3)], mode="edge")
        length = image.shape[axis]
        image = np.zeros_like(image)
        for k, tap in enumerate(taps):
            image += tap * (padded[:, k : k + length] if axis == 1 else padded[:, :, k : k + length])
    return image


def _sensitivity(patient: Patient, grid: Grid, scanner: Scanner, rng: np.random.Generator) -> Field:
    """Brightness field of the receive coil."""
    if scanner.coil == "body":
        return np.asarray(np.exp(scanner.strength * smooth_noise(rng, grid, scale=70)))
    cz, cy, cx = patient.centre
    if scanner.coil == "surface":  # anterior and posterior pads, the anterior one off-centre
        front = np.exp(-(np.hypot(grid.y + 90, 0.7 * (grid.x - rng.uniform(-50, 50)))) / 45)
        back = np.exp(-(np.hypot(grid.y - 90, 0.7 * grid.x)) / 45)
        pads = 0.35 + 2 * scanner.strength * (front + 0.6 * back)
        return np.asarray(pads + 0 * grid.z)
    assert patient.coil is not None
    y = (grid.y - cy - patient.axes[1] - patient.coil[0] - 3) / patient.coil[0]
    x = (grid.x - cx) / patient.coil[1]
    z = (grid.z - cz) / 40
    distance = np.maximum(np.sqrt(x * x + y * y + z * z), 0.9)
    return np.asarray(0.3 + scanner.strength / (1 + distance**2.5))

"""A small download of every public data set that ``fedshift data prepare`` knows, and what must come out of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cifarfiles import write_cifar
from digitfiles import write_mnist, write_mnistm, write_svhn, write_usps
from heartfiles import write_hearts
from letterfiles import write_idx, write_leaf
from maskedpictures import (
    write_breasts,
    write_chests,
    write_domains,
    write_eyelids,
    write_nuclei,
    write_polyps,
    write_sections,
    write_vessels,
)
from picturefiles import write_domainnet, write_office, write_officehome, write_tree
from scanfiles import write_described, write_liu

from data_prep.pacs import PACS

Counts = tuple[int, int, int]
"""Pictures or cases for training, validation and testing."""


@dataclass(frozen=True, kw_only=True)
class Download:
    """One data set."""

    write: Callable[[Path], Path]
    """Writes the download below an empty folder; returns the ``--source``."""
    cut: str
    """A file of the download, relative to the source, that is unusable when its second half is missing."""
    name: str = ""
    """Of the task and of what ``fedshift data prepare`` prepares, if it is not the key in `DOWNLOADS`."""
    options: tuple[str, ...] = ()
    """Of ``fedshift data prepare``, besides the source, the target and the size."""
    seeded: tuple[str, ...] | None = ()
    """Options with which ``--seed`` may be given; None where it may not."""
    size: int | None = None
    """``--size``; None for the default."""
    dataset: str = ""
    """Name of what is prepared, if it is not that of the task."""
    counts: dict[str, Counts] | None = None
    """By site; None where sites are drawn at random."""
    total: tuple[int, int, int] = (0, 0, 0)
    """Sites, pictures and test pictures, where sites are drawn at random."""
    protocol: str | None = None
    task: tuple[str, ...] = ()
    """Options with which the task opens what was prepared."""
    shape: tuple[int, ...] = ()
    """Of one image as a network gets it."""


def write_digits(root: Path) -> Path:
    """All four sets, each as published."""
    write_mnist(root / "MNIST" / "raw")
    write_mnistm(root / "mnist_m")
    write_svhn(root / "SVHN")
    return write_usps(root)


def femnist(root: Path) -> Path:
    """Six writers in two files."""
    write_leaf(root / "all_data_0_niid_05_keep_0.json", {"f0_00": 12, "f1_01": 15, "f2_02": 30})
    write_leaf(root / "all_data_1_niid_05_keep_0.json", {"f3_03": 10, "f4_04": 20, "f5_05": 11}, seed=1)
    return root


SMALL = ("data.patch=[32,32]", "network.options.features=[4,4,4,4,4,4]", "schedule.precision=fp32")

DOWNLOADS = {
    "prostate": Download(
        write=write_liu,
        options=("--matrix", "32"),
        cut="BIDMC/Case01.nii.gz",
        seeded=None,
        counts=dict.fromkeys(("BIDMC", "HK", "I2CVB", "BMC", "RUNMC", "UCL"), (1, 1, 1)),
        protocol="quick",
        task=("data.matrix=32", "network.options.features=4", "schedule.precision=fp32"),
        shape=(3, 32, 32),
    ),
    "hippocampus": Download(
        write=lambda root: write_described(root / "Task04", classes=("Anterior", "Posterior"), cases=12),
        options=("--simulate",),
        cut="imagesTr/case_1.nii.gz",
        dataset="hippocampus_simulated",
        counts=dict.fromkeys(("sim_a", "sim_b", "sim_c", "sim_d"), (1, 1, 1)),
        task=("data.patch=[32,32,32]", "network.options.filters=[4,4,4,4]", "schedule.precision=fp32"),
        shape=(1, 32, 32, 32),
    ),
    "mms": Download(
        write=write_hearts,
        cut="Testing/A0A2A0/A0A2A0_sa.nii.gz",
        seeded=None,
        counts=dict.fromkeys((f"centre_{number}" for number in range(1, 6)), (2, 2, 2)),
        task=("data.patch=[4,32,32]", "network.options.filters=[4,4,4,4,4]", "schedule.precision=fp32"),
        shape=(1, 4, 32, 32),
    ),
    "retina_vessels": Download(
        write=write_vessels,
        cut="HRF/images/01_h.jpg",
        seeded=None,
        counts={"CHASE": (8, 2, 2), "HRF": (10, 4, 4), "DRIVE": (4, 2, 6), "STARE": (4, 1, 1)},
        task=SMALL,
        shape=(3, 32, 32),
    ),
    "fundus": Download(
        write=write_domains,
        cut="Domain1/train/ROIs/mask/train0.png",
        seeded=None,
        counts=dict.fromkeys(("DRISHTI", "RIMONE", "REFUGE_TRAIN", "REFUGE_VAL"), (3, 1, 2)),
        task=SMALL,
        shape=(3, 32, 32),
    ),
    "polyps": Download(
        write=write_polyps,
        cut="CVC-ClinicDB/Original/26.tif",
        seeded=None,
        counts={"CLINICDB": (3, 1, 2)} | dict.fromkeys(("KVASIR", "COLONDB", "ETIS"), (4, 1, 1)),
        task=SMALL,
        shape=(3, 32, 32),
    ),
    "histology": Download(
        write=write_sections,
        cut="task2/kfbio-400/image/1.png",
        seeded=None,
        counts=dict.fromkeys(("3DHISTECH", "KFBIO", "TEKSQRAY"), (1, 1, 1)),
        task=SMALL,
        shape=(3, 32, 32),
    ),
    "nuclei": Download(
        write=write_nuclei,
        cut="a0/masks/a0x.png",
        seeded=None,
        counts=dict.fromkeys(("FLUO256", "FLUO360", "FLUO520", "HE320"), (1, 1, 1)),
        task=SMALL,
        shape=(3, 32, 32),
    ),
    "breast_us": Download(
        write=write_breasts,
        options=("--empty",),
        cut="BUS/original/000002.png",
        seeded=None,
        counts={"BUSI": (5, 2, 2), "UDIAT": (3, 1, 1)},
        task=SMALL,
        shape=(1, 32, 32),
    ),
    "chest_lungs": Download(
        write=write_chests,
        cut="MontgomerySet/ManualMask/leftMask/MCUCXR_0001_1.png",
        seeded=None,
        counts=dict.fromkeys(("MONTGOMERY", "SHENZHEN"), (3, 1, 1)),
        task=SMALL,
        shape=(1, 32, 32),
    ),
    "meibomian": Download(
        write=write_eyelids,
        cut="CAMG/Original/2_Image.png",
        seeded=None,
        counts={"MGD1K": (6, 2, 2), "CAMG": (3, 1, 1)},
        task=SMALL,
        shape=(1, 32, 32),
    ),
    "pacs": Download(
        write=lambda root: write_tree(root, PACS.sites, PACS.classes, each=4),
        cut="photo/dog/frame_0001.png",
        seeded=("--subsites", "2"),
        size=32,
        counts=dict.fromkeys(PACS.sites, (14, 7, 7)),
        task=("data.size=32",),
        shape=(3, 32, 32),
    ),
    "officehome": Download(
        write=write_officehome,
        cut="Art/Alarm_Clock/00001.jpg",
        seeded=("--subsites", "2"),
        size=32,
        counts=dict.fromkeys(("Art", "Clipart", "Product", "Real_World"), (65, 65, 65)),
        task=("data.size=32",),
        shape=(3, 32, 32),
    ),
    "office_caltech": Download(
        write=write_office,
        cut="webcam/bike/frame_0001.jpg",
        seeded=None,
        size=64,
        counts=dict.fromkeys(("amazon", "caltech", "dslr", "webcam"), (30, 10, 10)),
        task=("data.size=64",),
        shape=(3, 64, 64),
    ),
    "domainnet": Download(
        write=write_domainnet,
        cut="clipart/bird/clipart_030_000001.jpg",
        seeded=("--split", "seeded"),
        size=64,
        counts=dict.fromkeys(("clipart", "infograph", "painting", "quickdraw", "real", "sketch"), (30, 10, 10)),
        task=("data.size=64",),
        shape=(3, 64, 64),
    ),
    "digits": Download(
        write=write_digits,
        cut="MNIST/raw/train-images-idx3-ubyte.gz",
        seeded=None,
        counts={"mnist": (40, 10, 20)} | dict.fromkeys(("mnistm", "svhn", "usps"), (20, 10, 20)),
        shape=(3, 32, 32),
    ),
    "rotated_mnist": Download(
        write=lambda root: write_mnist(root, train=245, test=60),
        cut="train-images-idx3-ubyte.gz",
        total=(6, 305, 95),
        shape=(1, 28, 28),
    ),
    "cifar10": Download(
        write=write_cifar,
        cut="cifar-10-batches-py/data_batch_3",
        options=("--sites-count", "5"),
        dataset="cifar10_dirichlet_0.6",
        total=(5, 240, 40),
        task=("sites.count=5", "federation.sites_per_round=2"),
        shape=(3, 32, 32),
    ),
    "emnist": Download(
        write=write_idx,
        cut="emnist-letters-train-images-idx3-ubyte.gz",
        options=("--sites-count", "5"),
        dataset="emnist_letters",
        total=(5, 416, 104),
        task=("sites.count=5", "federation.sites_per_round=2"),
        shape=(1, 28, 28),
    ),
    "femnist": Download(
        write=femnist,
        cut="all_data_1_niid_05_keep_0.json",
        name="emnist",
        options=("--writers", "6"),
        dataset="femnist_writers",
        total=(6, 98, 9),
        protocol="fedfa",
        task=("sites.count=6", "federation.sites_per_round=2"),
        shape=(1, 28, 28),
    ),
}

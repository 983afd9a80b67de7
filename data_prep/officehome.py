"""OfficeHome: 65 kinds of everyday objects as art, clip art, product pictures and photographs.

The source is ``OfficeHomeDataset_10072016.zip`` (1.1 GB), or its unpacked content: ``<domain>/<class>/00001.jpg`` with
the domains Art (2427 pictures), Clipart (4365), Product (4439) and ``Real World`` (4357), whose site is Real_World.
It is described at https://www.hemanthdv.org/officeHomeDataset.html, and in Venkateswara, Eusebio, Chakraborty,
Panchanathan, "Deep hashing network for unsupervised domain adaptation", CVPR 2017. Each class has at least 15 pictures
at Art and at least 38 at Product.

The split goes by content, see `data_prep.dealing`; the papers publish no lists to reproduce their splits. FRAug and
"Mitigating Data Heterogeneity in Federated Learning with Data Augmentation" use a random tenth of each domain for
validation. They have no separate test part, except that all pictures of a held-out domain are test pictures.

``--subsites 4`` makes the data set ``officehome_subsites`` of the second paper, with the same settings as for PACS:
each domain except Clipart becomes four sites, ``Art_1`` to ``Real_World_4``, see `data_prep.subsites`. Clipart, which
the paper holds out, stays one site and is split by content. ``--whole`` selects another domain to hold out.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from data_prep.pictures import PictureSet, Plan
from data_prep.subsites import SubSites, add_subsite_options, plan_domains
from data_prep.trees import Tree

OFFICEHOME = PictureSet(
    dataset="officehome",
    name="OfficeHome",
    sites=("Art", "Clipart", "Product", "Real_World"),
    classes=(
        *("Alarm_Clock", "Backpack", "Batteries", "Bed", "Bike", "Bottle", "Bucket", "Calculator", "Calendar"),
        *("Candles", "Chair", "Clipboards", "Computer", "Couch", "Curtains", "Desk_Lamp", "Drill", "Eraser"),
        *("Exit_Sign", "Fan", "File_Cabinet", "Flipflops", "Flowers", "Folder", "Fork", "Glasses", "Hammer"),
        *("Helmet", "Kettle", "Keyboard", "Knives", "Lamp_Shade", "Laptop", "Marker", "Monitor", "Mop", "Mouse"),
        *("Mug", "Notebook", "Oven", "Pan", "Paper_Clip", "Pen", "Pencil", "Postit_Notes", "Printer", "Push_Pin"),
        *("Radio", "Refrigerator", "Ruler", "Scissors", "Screwdriver", "Shelf", "Sink", "Sneakers", "Soda"),
        *("Speaker", "Spoon", "TV", "Table", "Telephone", "ToothBrush", "Toys", "Trash_Can", "Webcam"),
    ),
    described="the download is described at https://www.hemanthdv.org/officeHomeDataset.html",
    licence="non-commercial research and education; the pictures are their owners', not for redistribution",
    citation="Venkateswara H, Eusebio J, Chakraborty S, Panchanathan S. Deep hashing network for unsupervised domain "
    "adaptation. CVPR 2017",
)
FOLDERS = {"Real_World": ("Real World", "Real_World", "RealWorld")}
"""Names of the site's folder in the download and in copies of it."""
SIZES = (96, 224)  # 96: the task's default; 224: the papers
HELD_OUT = "Clipart"
"""The domain that the augmentation paper holds out."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of `plan` for the command line."""
    add_subsite_options(parser, OFFICEHOME, whole=HELD_OUT)


def plan(source: Path, *, subsites: int | None = None, whole: str | None = None, seed: int | None = None) -> Plan:
    """The pictures of a download, by domain or divided into sub-sites.

    Raises:
        DataError: an unknown layout, sub-sites that are not possible, or options for sub-sites without ``--subsites``.
    """
    asked = SubSites(count=subsites, whole=whole, seed=seed)
    domains = Tree(source, OFFICEHOME, folders=FOLDERS).pictures()
    return plan_domains(OFFICEHOME, domains, SIZES, asked, whole=HELD_OUT, source=source)

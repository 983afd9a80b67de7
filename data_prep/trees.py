"""Read downloads with the layout ``<site>/<class>/<picture>``, as folders or as zips that are not unpacked.

Pictures are read from a zip one at a time. A zip may contain all sites, possibly inside one or more folders, or a
single site; then it is named after the site and replaces the site's folder.
"""

from __future__ import annotations

import io
import logging
import lzma
import os
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Protocol, Self

from PIL import Image

from data_prep.pictures import PicturesBySite, PictureSet, Source
from fedshift.data.decode import decode_picture, read_picture
from fedshift.data.depth import DeepPicture
from fedshift.data.downloads import names_in, read_file, reason, unreadable
from fedshift.schema.errors import DataError
from fedshift.schema.strict import nearest

log = logging.getLogger(__name__)

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp")
SHOWN = 20
DEEPEST = 3
"""Maximum number of folders above the sites or classes in a zip."""
MOST_BYTES = 2**28
"""Upper limit in bytes; no picture or list is this large."""
DAMAGED = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, RuntimeError, EOFError, OSError, ValueError)
"""What `zipfile` raises for zips that are damaged, encrypted or compressed with an unknown method."""


class Place(Protocol):
    """A folder of a download, on disk or in a zip. ``str()`` gives its name for errors."""

    def folders(self) -> list[str]: ...

    def files(self) -> list[str]: ...

    def enter(self, name: str) -> Place:
        """The subfolder of that name."""
        ...

    def open(self, name: str) -> IO[bytes]:
        """Open a file; raises DataError if it cannot be read."""
        ...

    def picture(self, name: str) -> Image.Image | DeepPicture:
        """Read and decode a picture; raises DataError if that fails."""
        ...


class _DiskFolder:
    """A folder on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __str__(self) -> str:
        return str(self.path)

    def folders(self) -> list[str]:
        return self._names(Path.is_dir)

    def files(self) -> list[str]:
        return self._names(Path.is_file)

    def enter(self, name: str) -> _DiskFolder:
        return _DiskFolder(self.path / name)

    def open(self, name: str) -> IO[bytes]:
        return io.BytesIO(read_file(self.path / name))

    def picture(self, name: str) -> Image.Image | DeepPicture:
        return read_picture(self.path / name)

    def _names(self, kind: Callable[[Path], bool]) -> list[str]:
        try:
            if not self.path.is_dir():
                return []
            return [name for name in names_in(self.path) if _counts(name) and kind(self.path / name)]
        except OSError as error:
            raise unreadable(self.path, error) from None


class _ZipFolder:
    """A folder in a zip. The zip stays open while one of its folders is in use."""

    def __init__(self, archive: _Archive, inside: str = "") -> None:
        self._archive, self._inside = archive, inside

    @classmethod
    def top(cls, path: Path) -> Self:
        """The top folder of a zip.

        Raises:
            DataError: the file is not a zip, or is damaged.
        """
        return cls(_Archive(path))

    def __str__(self) -> str:
        return str(self._archive.path / self._inside)

    def folders(self) -> list[str]:
        return sorted(self._archive.folders[self._inside])

    def files(self) -> list[str]:
        return sorted(self._archive.files[self._inside])

    def enter(self, name: str) -> _ZipFolder:
        return _ZipFolder(self._archive, f"{self._inside}/{name}".lstrip("/"))

    def open(self, name: str) -> IO[bytes]:
        return io.BytesIO(self._archive.read(self._archive.files[self._inside][name]))

    def picture(self, name: str) -> Image.Image | DeepPicture:
        return decode_picture(self.open(name), f"{self}/{name}")


class _Archive:
    """An open zip with the names in each folder; the key of the top folder is the empty string."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.folders: dict[str, set[str]] = defaultdict(set)
        self.files: dict[str, dict[str, zipfile.ZipInfo]] = defaultdict(dict)
        try:
            self._zip = zipfile.ZipFile(path)
        except DAMAGED as error:
            raise DataError(
                "file-damaged", f"{path} is damaged or no zip ({reason(error)}): download it again"
            ) from None
        for info in self._zip.infolist():
            *above, name = _member(info).split("/")
            if not all(map(_counts, above)):
                continue
            for depth, folder in enumerate(above):
                self.folders["/".join(above[:depth])].add(folder)
            if _counts(name):
                self.files["/".join(above)][name] = info

    def read(self, info: zipfile.ZipInfo) -> bytes:
        name = self.path / _member(info)
        if info.file_size > MOST_BYTES:
            raise DataError("too-large", f"{name} claims to have {info.file_size} bytes: download {self.path} again")
        try:
            return self._zip.read(info)
        except DAMAGED as error:
            raise DataError(
                "file-damaged", f"{name} cannot be read ({reason(error)}): download {self.path} again"
            ) from None


class Tree:
    """A download in which the folders or zips of all sites were found.

    ``open`` also reads the ``files`` of the folder that contains the sites, and, for a zip, those of the folder that
    contains the zip.
    """

    def __init__(
        self, source: Path, picture_set: PictureSet, *, folders: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        """Find the sites.

        Args:
            source: a folder or a zip.
            picture_set: the data set that it should contain.
            folders: alternative folder names by site, where they differ from the site's name.

        Raises:
            DataError: the layout is not that of the data set.
        """
        self._picture_set = picture_set
        self._names = {site: (folders or {}).get(site, (site,)) for site in picture_set.sites}
        shown = ", ".join(names[0] for names in self._names.values())
        self._expected = (
            f"expected {picture_set.name} as folders {shown}, each with a folder for each class, or as zips; "
            f"{picture_set.described}"
        )
        if not source.exists():
            raise DataError("not-a-folder", f"{source} is not a folder: {self._expected}")
        self._beside = _DiskFolder(source if source.is_dir() else source.parent)
        top: Place = self._beside
        if not source.is_dir():
            top = self._unpacked(source)
        missing = self._missing(top)
        if missing:
            raise DataError(
                "file-missing",
                f"{top} has no folder {', '.join(missing)}, {_holds(top)}: {self._hint(top, source)}{self._expected}",
            )
        self.top = top
        self._sites = {site: self._site(top, site) for site in picture_set.sites}

    def files(self) -> set[str]:
        """Names of the files in the folder of the sites, and in the folder of the zip."""
        return {*self._beside.files(), *self.top.files()}

    def open(self, name: str) -> IO[bytes]:
        """Open one of ``files``."""
        return (self.top if name in self.top.files() else self._beside).open(name)

    def pictures(self, *, some_classes: bool = False) -> PicturesBySite:
        """All pictures by site, sorted by id.

        Folders that are not a class are skipped, with a warning unless the data set uses only ``some_classes`` of the
        download.

        Raises:
            DataError: a class has no picture at a site.
        """
        return {site: list(self._pictures(place, quiet=some_classes)) for site, place in self._sites.items()}

    def _missing(self, place: Place) -> list[str]:
        """Folder names of the sites that were not found."""
        present = {*place.folders(), *(name.removesuffix(".zip") for name in _zips(place))}
        return [names[0] for names in self._names.values() if not present.intersection(names)]

    def _site(self, top: Place, site: str) -> Place:
        """The folder that contains the classes; in a zip, or unpacked from one, it may be deeper."""
        folders = top.folders()
        folder = next((name for name in self._names[site] if name in folders), None)
        if folder is not None:
            place = top.enter(folder)
        else:
            packed = next(f"{name}.zip" for name in self._names[site] if f"{name}.zip" in _zips(top))
            place = _ZipFolder.top(self._beside.path / packed)
        return _down(place, lambda place: not {*self._picture_set.classes}.isdisjoint(place.folders()))

    def _hint(self, top: Place, source: Path) -> str:
        if isinstance(top, _ZipFolder):
            return ""
        inner = [name for name in top.folders() if not self._missing(top.enter(name))]
        inner += [name for name in _zips(top) if self._is_packed(source / name)]
        return f"did you mean {source / inner[0]}? " if inner else ""

    def _is_packed(self, path: Path) -> bool:
        """Whether the zip contains all sites."""
        try:
            return not self._missing(self._unpacked(path))
        except DataError:
            return False

    def _unpacked(self, path: Path) -> Place:
        """The folder in a zip that contains the sites."""
        return _down(_ZipFolder.top(path), lambda place: not self._missing(place))

    def _pictures(self, place: Place, *, quiet: bool) -> Iterator[Source]:
        folders = place.folders()
        for name in folders:
            if name not in self._picture_set.classes and not quiet:
                hint = nearest(name, self._picture_set.classes)
                log.warning("%s/%s is skipped because it is not a class%s", place, name, hint)
        for label in self._picture_set.classes:
            folder = place.enter(label)
            names = [name for name in folder.files() if name.lower().endswith(SUFFIXES)] if label in folders else []
            if not names:
                holds = "no picture in it" if label in folders else f"no such folder, but {_some(folders)}"
                raise DataError("class-missing", f"{folder}: the class has {holds}; {self._expected}")
            for name in names:
                yield Source(f"{label}/{_text(name)}", label, partial(folder.picture, name))


def find_pictures(source: Path, picture_set: PictureSet) -> PicturesBySite:
    """All pictures of a download that contains exactly the data set's classes; see `Tree`.

    Raises:
        DataError: the layout is not that of the data set, or a class has no picture at a site.
    """
    return Tree(source, picture_set).pictures()


def _down(place: Place, fits: Callable[[Place], bool]) -> Place:
    """The first folder for which ``fits`` is true, breadth first; ``place`` itself if there is none."""
    level = [place]
    for _ in range(DEEPEST + 1):
        for folder in level:
            if fits(folder):
                return folder
        level = [folder.enter(name) for folder in level for name in folder.folders()]
    return place


def _zips(place: Place) -> list[str]:
    """Names of the zips in a folder on disk; zips inside zips are not read."""
    return [name for name in place.files() if name.endswith(".zip")] if isinstance(place, _DiskFolder) else []


def _counts(name: str) -> bool:
    """Whether a name matters: False for hidden files and for the entries that macOS adds to zips."""
    return bool(name) and not name.startswith(".") and name != "__MACOSX"


def _member(info: zipfile.ZipInfo) -> str:
    """A member's path. `zipfile` decodes names without the UTF-8 flag as code page 437, which is rarely right."""
    try:
        return info.filename if info.flag_bits & 0x800 else os.fsdecode(info.filename.encode("cp437"))
    except UnicodeEncodeError:
        return info.filename


def _holds(place: Place) -> str:
    entries = [*place.folders(), *_zips(place)]
    return f"it holds {_some(entries)}" if entries else "it holds no folder"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "") or "nothing"


def _text(name: str) -> str:
    """A file name as printable text; bytes that are not UTF-8 appear in hexadecimal."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")

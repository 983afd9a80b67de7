"""The documentation: every command in it runs, or can be typed; the site is built from it and needs no network.

A page's commands are typed in their order, in a folder of its own, with a home and a checkout that are copies, and each
must end with 0. Data are the phantom and made-up scans; `RUN` has what is added to a command so that it ends in
seconds. What no test machine has is in `PARSED`, with the reason, and is only given to the command's own parser. A
command that is in neither fails. The runbook's commands are typed in tests/flare/test_runbook.py.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import SimpleITK
import torch
from conftest import make_image_site, small_image_job
from dicomstudies import draw_segmentation, write_slices
from nnunetfiles import write_plans
from nvflare import cli as nvflare_cli
from picturefiles import write_office, write_picture, write_tree
from scanfiles import other_sequence, volume, write_described, write_dicom, zones
from segmentpictures import TASK as PICTURE_TASK
from segmentpictures import write_discs

from data_prep.pacs import PACS
from fedshift import cli
from fedshift.cli import _parser
from fedshift.cli.arguments import Parser
from fedshift.federation.in_process import run_in_process
from fedshift.tasks import networks

ROOT = Path(__file__).resolve().parents[2]
PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
RUNBOOK = "deploy/RUNBOOK.md"
TEXT = {page: (ROOT / page).read_text(encoding="utf-8") for page in (*PAGES, RUNBOOK)}

MAKE_PHANTOM = ["fedshift", "data", "phantom"]
SMALL_DATA = ["--sites", "BIDMC,HK,UCL", "--cases", "3", "--matrix", "32"]
SMALL_JOB = [
    *("--sites", "BIDMC,HK,UCL", "--set", "data.matrix=32", "network.options.features=4", "schedule.rounds=2"),
    *("schedule.local_epochs=1", "schedule.batch_size=8", "schedule.precision=fp32"),
]
SMALL_RECIPE = [
    *("--sites", "BIDMC,HK,UCL", "--set", "data.patch=[32,32]", "data.spacing=[null,5.0,5.0]"),
    *("data.samples_per_case=2", "schedule.rounds=2"),
    *("network.options.features=[4,4,8,8,16,4]", "schedule.local_epochs=1", "schedule.precision=fp32"),
    "schedule.batch_size=4",
]
"""Of the task's default, for patients' scans, with a patch of its 160 mm; `SMALL_JOB` is of its protocols on slices."""
SMALL_PICTURES = ["--set", "data.size=64", "schedule.rounds=1", "schedule.local_epochs=1", "schedule.precision=fp32"]
SMALL_SHAPES = ["--set", "schedule.rounds=2", "schedule.local_epochs=1"]

RUN: dict[str, list[str]] = {
    r"cd \S+": [],
    r"python draw_shapes\.py": [],
    r"python -m monai\.bundle run .*": [],
    r"nvflare simulator .*": [],  # a job of that name that is cut down, see READY
    r"fedshift --version": [],
    r"fedshift (tasks|methods)\b.*": [],
    r"fedshift doctor": [],
    r"fedshift data phantom": SMALL_DATA,  # once: pages that repeat it get what it made
    r"fedshift data phantom --cases 20": ["--sites", "HK", "--cases", "3", "--matrix", "32"],  # as it was made
    r"fedshift data phantom --cases 6": ["--sites", "BIDMC,HK,UCL", "--matrix", "32"],
    r"fedshift survey prostate\b.*": ["--sites", "BIDMC,HK"],
    r"fedshift survey spleen": [],
    r"fedshift survey organ": [],
    r"fedshift survey hippocampus --nnunet": [],
    r"fedshift plans .*": [],
    r"fedshift job \S+ surveys/(spleen|organ|hippocampus)/.*": [
        "--set",
        "schedule.rounds=1",
        "data.samples_per_case=1",
    ],
    r"fedshift job \S+ surveys/.*": [],
    r"fedshift data (check|prepare own) (?!.*--table ).*": [],
    r"fedshift data prepare (msd|hippocampus) .*": [],
    r"fedshift data prepare nnunet (?!.*--preprocessed ).*": [],
    r"fedshift data prepare shapes .*": [],
    r"fedshift job \S+ prostate .*federation\.robust\..*": [],  # of the task's six sites
    r"fedshift (job|pooled|leave-one-out|cross-site)( \S+)? prostate\b.*--protocol .*": SMALL_JOB,
    r"fedshift job \S+ prostate\b.*--budget .*": [word for word in SMALL_RECIPE if word != "schedule.rounds=2"],
    r"fedshift job \S+ prostate\b.*": SMALL_RECIPE,
    r"fedshift job \S+ (our_prostate|clinics)\.yaml": SMALL_RECIPE[2:],
    r"fedshift (job|leave-one-out) \S+ shapes\b.*": SMALL_SHAPES,
    r"fedshift job \S+ pacs\b.*": [],
    r"fedshift data prepare office_caltech .*": ["--out", "prepared", "--size", "32"],
    r"fedshift (leave-one-out|cross-site) .*\boffice_caltech\b.*": [*SMALL_PICTURES, "network.options.hidden=16"],
    r"fedshift pooled .*\bpacs\b.*": SMALL_PICTURES,
    r"fedshift compare benchmarks/.*": ["--dry-run"],  # all but the hours that it takes, and on downloads
    r"fedshift run jobs/first": [],  # under FLARE, as it stands
    r"fedshift run .*--in-process.*": [],
    r"fedshift run jobs/(?!long)\S+": ["--in-process"],  # the same numbers, in seconds
    r"fedshift (report|predict|export|card) runs/.*": [],
    r"fedshift (watch runs/\S+ --text|status runs/\S+)": [],
    r"fedshift leaderboard .*": [],
    r"fedshift compare phantom_methods\.yaml.*": ["--only", "FedAvg", "FedFA"],
}
"""Commands that are run (a pattern for the whole of it), and what is added to them so that they end in seconds."""

PARSED: dict[str, str] = {
    r"fedshift data prepare nnunet .*--preprocessed ": "tests/inference/test_nnunet_export.py runs it, with nnU-Net",
    r"fedshift leave-one-out .* --flare$": "tests/flare/test_leave_one_out.py runs it; of three sites it takes minutes",
    r"make ": "a fresh environment; these are the tests themselves, and what each target runs is tested",
    r"(python3\.11 -m venv|\. fedshift-env|pip install|fedshift-env/bin/pip)": "a fresh environment, a package index",
    r"curl ": "a download",
    r"python benchmarks/": "a quarter of an hour",
    r"fedshift data (check|prepare own) .*--table ": "tests/data_prep/test_own_labels.py runs it",
    r"fedshift job fedavg hippocampus --weights ": "a model; tests/federation/test_adapters.py trains such jobs",
    r"fedshift data prepare brats ": "a download; tests/data_prep/test_brats.py runs it on trees made like it",
    r"fedshift (data fetch|predict prostate\.pt|serve) ": "a PACS; tests/pacs/test_orthanc.py runs them",
    r"fedshift data (check|prepare own) .*\bscans$|fedshift data check scans ": "as it is fetched, likewise",
    r"fedshift drift ": "tests/survey/test_drift.py runs it, on scans by month",
    r"fedshift evaluate ": "tests/cli/test_evaluate.py runs it, on scans with a reader's masks",
    r"fedshift (adapt|predict|card) (MODEL|adapted\.pt) ": "tests/cli/test_adapt.py runs it, on shifted scans",
    r"fedshift postprocess ": "tests/cli/test_postprocess.py runs it, on masks of many parts",
    r"fedshift job --evaluate ": "tests/cli/test_job_evaluate.py runs it, and what follows, on models made there",
    r"fedshift predict calibrated\.pt ": "tests/cli/test_guarantee.py runs it, on scans with unsharp edges",
    r"fedshift report scores ": "tests/cli/test_evaluate.py runs it, of such scores",
    r"fedshift predict BUNDLE ": "tests/inference/test_monai_bundle.py runs it, on a bundle as the model zoo has them",
    r"nvflare provision ": "tests/flare/test_runbook.py types it, in real kits",
    r"fedshift watch \S+$": "it goes on until Ctrl-C; tests/cli/test_watch.py runs it",
    r"fedshift site ": "tests/flare/test_runbook.py types it, in real kits",
    r"fedshift doctor KIT": "tests/cli/test_doctor.py runs it, on kits",
    r"nvflare (cert|package) |\(umask 077|openssl |sha256sum |python3 -m zipfile|cat request/|touch KIT": "tests/flare/"
    "test_own_keys.py types it, with real certificates",
    r"cp (deploy/participant|renewed/)": "tests/flare/test_own_keys.py types it, with real certificates",
    r"fedshift site packages": "tests/cli/test_site_packages.py runs it, on a kit",
    r"cp -r template |cd my-package|python -m pytest$": "tests/repository/test_template.py runs its tests",
    r"fedshift \S+ (jobs/)?fedshift-template": "tests/repository/test_template.py runs it, with the template installed",
    r"fedshift mailbox ": "tests/mailbox/test_page.py types it, in folders that share one directory",
}
"""Commands that are only parsed (how they begin), and what a test machine has not, or where else they run."""

MEANT: dict[str, dict[str, str]] = {
    r"fedshift compare .* --methods mine": {"mine": "fedprox+mixstyle"},
    r"fedshift data prepare office_caltech .*": {"DIR": "office"},
    r"nvflare simulator .*": {"-t 6": "-t 3"},  # it has three sites
    r"python -m monai\.bundle run .*": {"SCANS": "../SCANS", "MASKS": "../bundle_masks"},
    r"fedshift predict runs/fedavg_organ/.*": {"server/simulate_job/": ""},  # runs are in one process here
}
"""What a command's words in capitals stand for, and what fits smaller data."""

SHRUNK: dict[str, dict[str, str]] = {
    "phantom_methods.yaml": {
        "schedule.rounds: 6, data.matrix: 64, network.options.features: 8": "schedule.rounds: 1, data.matrix: 32, "
        "network.options.features: 4, schedule.local_epochs: 1, schedule.precision: fp32",
        "seeds: [0, 1]": "seeds: [0]",
    }
}
"""What is changed in a file that a page has its reader save, to the same end."""

PROGRAMS = r"(?:fedshift|nvflare|make|python|pip|curl|tensorboard)"


# --- what a page has its reader type ------------------------------------------------------------------------


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """Language and content of all fenced blocks."""
    for match in re.finditer(r"^```(\w*)[^\n]*\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE):
        yield match.group(1), match.group(2)


def typed(text: str) -> list[str]:
    """The commands of a page, in their order, without comments.

    In a console they follow ``$``; in other blocks every line is one, but where no language is named there may be
    output too, so there a command begins with a program's name.
    """
    found = []
    for language, content in blocks(text):
        lines = content.replace("\\\n", " ").splitlines()
        if language == "console":
            found += [line[2:] for line in lines if line.startswith("$ ")]
        elif language in ("bash", "sh"):
            found += [line for line in lines if line.strip() and not line.startswith("#")]
        elif not language:
            found += [line for line in lines if re.match(rf"(?:{PROGRAMS} (?!\d)|cd \S+$)", line)]
    return [" ".join(re.sub(r"(^|\s)#\s.*", "", line).split()) for line in found]


def added(command: str) -> list[str] | None:
    """What is added to a command that is run; None if it is not run."""
    return next((more for pattern, more in RUN.items() if re.fullmatch(pattern, command)), None)


def meant(command: str) -> str:
    """A command with its reader's own names."""
    for pattern, names in MEANT.items():
        if re.fullmatch(pattern, command):
            for word, name in names.items():
                assert word in command
                command = command.replace(word, name)
    return command


def without(words: list[str], more: list[str]) -> list[str]:
    """A command without the settings that ``more`` sets to another value, which `--set` would refuse."""
    paths = {word.partition("=")[0] for word in more if "=" in word}
    kept = [word for word in words if "=" not in word or word.partition("=")[0] not in paths]
    return [word for word, after in zip(kept, [*kept[1:], "-"], strict=True) if word != "--set" or "=" in after]


def reason(command: str) -> str | None:
    """Why a command is only parsed."""
    return next((why for pattern, why in PARSED.items() if re.match(pattern, command)), None)


def is_run(command: str) -> bool:
    """A reason against it outweighs a pattern for it."""
    return reason(command) is None and added(command) is not None


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_is_run_or_there_is_a_reason_why_not(page: str) -> None:
    unknown = [c for c in typed(TEXT[page]) if not is_run(c) and reason(c) is None]
    assert not unknown, "put them into RUN or PARSED"


def test_no_pattern_is_left_over() -> None:
    everything = [c for page in PAGES for c in typed(TEXT[page])]
    run = [p for p in (*RUN, *MEANT) if not any(re.fullmatch(p, c) and is_run(c) for c in everything)]
    parsed = [p for p in PARSED if not any(re.match(p, c) for c in everything)]
    assert not run and not parsed


def test_commands_are_found_in_every_kind_of_block() -> None:
    page = (
        "```\nfedshift tasks   # all\nround 1/2\n```\n```console\n$ ls \\\n  a\nb\n```\n```bash\n# why\ncp a b\n```\n"
    )
    assert typed(page + "```yaml\nmake: 1\n```\n") == ["fedshift tasks", "ls a", "cp a b"]


@pytest.mark.parametrize("page", [*PAGES, RUNBOOK])
def test_no_command_hides_where_it_would_not_be_found(page: str) -> None:
    outside = re.sub(r"^```.*?^```$", "", TEXT[page], flags=re.DOTALL | re.MULTILINE)
    hidden = re.findall(rf"^(?: {{4,}}|\$ ){PROGRAMS} .*", outside, flags=re.MULTILINE)
    other = [line for language, text in blocks(TEXT[page]) if language == "text" for line in text.splitlines()]
    assert not hidden + [line for line in other if line.startswith("fedshift ")]


# --- only parsed --------------------------------------------------------------------------------------------


def parse(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends the interpreter, or fails, unless a command's own parser takes it."""
    name, *words = shlex.split(command)
    if name == "fedshift":
        _parser().parse_args(words)
    elif name == "nvflare":
        monkeypatch.setattr("sys.argv", [name, *words])
        nvflare_cli.parse_args(name)
    elif name == "make":
        rules = (ROOT / "Makefile").read_text(encoding="utf-8")
        assert re.search(rf"^{words[0]}:", rules, flags=re.MULTILINE)
    elif name == "python" and words[0].endswith(".py"):
        assert (ROOT / words[0]).is_file()


@pytest.mark.parametrize("command", sorted({c for page in PAGES for c in typed(TEXT[page]) if not is_run(c)}))
def test_a_command_that_is_not_run_can_be_typed(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parse(command, monkeypatch)


def mentioned(text: str) -> Iterator[str]:
    """Our commands in sentences."""
    for command in re.findall(r"`(fedshift\s[a-z-][^`]*)`", re.sub(r"^```.*?^```$", "", text, flags=re.S | re.M)):
        yield " ".join(re.sub(r"…|\(.*", "", command).split())


@pytest.mark.parametrize("command", sorted({c for page in PAGES for c in mentioned(TEXT[page])}))
def test_a_command_that_a_sentence_mentions_exists(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It need not have all that the command requires, and may say NAME."""
    try:
        parse(command, monkeypatch)
    except SystemExit as end:
        printed = capsys.readouterr().err
        placeholder = r"invalid choice: '[A-Z]+'|unknown dataset '[A-Z]+'"
        lacks = rf"arguments are required|expected (?:one|at least one) argument|{placeholder}"
        assert end.code == 0 or re.search(lacks, printed), printed


def test_what_is_installed_for_an_extra_is_an_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = {extra for text in TEXT.values() for extra in re.findall(r"fedshift\[(\w+)\]", text)}
    assert named and named <= project["optional-dependencies"].keys()


# --- run ----------------------------------------------------------------------------------------------------

TYPIST = """
import glob, json, os, runpy, shlex, shutil, subprocess, sys
from fedshift import cli

def expand(word):
    word = os.path.expandvars(os.path.expanduser(word))
    return sorted(glob.glob(word)) or [word]

def enter(command):
    name, *words = [part for word in command for part in expand(word)]
    try:
        if name == "cd":
            return os.chdir(words[0])
        if name == "nvflare" or words[:1] == ["-m"]:
            return subprocess.call([shutil.which(name), *words])
        if name == "python":
            sys.argv = words
            return runpy.run_path(words[0], run_name="__main__") and None
        return cli.main(words)
    except SystemExit as end:
        return end.code

answers = os.fdopen(os.dup(1), "w")
for line in sys.stdin:
    page = json.loads(line)
    os.chdir(page["folder"])
    log = os.open("typed.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    done = 0
    for command in page["commands"]:
        print("$", shlex.join(command), flush=True)
        code = enter(command)
        sys.stdout.flush()
        if code:
            print("exit code", code, flush=True)
            break
        done += 1
    print(done, file=answers, flush=True)
"""
"""Types page after page in one process, as loading torch for each command would take most of the time."""


class Typist:
    """A person with a home and a copy of the checkout, which a page's files are saved in."""

    def __init__(self, folder: Path) -> None:
        self.home, self._checkout = folder / "home", folder / "checkout"
        self.home.mkdir()
        for name in ("custom", "data_prep", "apps"):
            shutil.copytree(ROOT / name, self._checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
        for page in PAGES:
            save_files(page, self._checkout, of_package=True)
        self._process: subprocess.Popen[str] | None = None

    @property
    def phantom(self) -> Path:
        return self.home / ".local" / "share" / "fedshift" / "phantom"

    def type(self, folder: Path, commands: list[list[str]]) -> None:
        """Type commands in a folder. Fails at the first that does not end well."""
        process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps({"folder": str(folder), "commands": commands}) + "\n")
            process.stdin.flush()
            done = process.stdout.readline().strip()
        except BaseException:
            self.end()
            raise
        if not done:
            self.end()
        assert done == str(len(commands)), (folder / "typed.log").read_text(encoding="utf-8")[-6000:]

    def _start(self) -> subprocess.Popen[str]:
        apart = ("FEDSHIFT_DATA", "FEDSHIFT_WEIGHTS", "XDG_DATA_HOME")
        self._process = subprocess.Popen(
            [sys.executable, "-c", TYPIST],
            cwd=self.home,
            env={key: value for key, value in os.environ.items() if key not in apart}
            | {
                "HOME": str(self.home),
                "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
                "PYTHONPATH": os.pathsep.join([str(self._checkout / "custom"), str(self._checkout)]),
                "OMP_NUM_THREADS": "1",
                "COLUMNS": "120",
                "FEDSHIFT_DEVICE": "cpu",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )
        return self._process

    def end(self) -> None:
        """With all that was started: FLARE's processes are in sessions of their own."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            family = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
        except psutil.NoSuchProcess:
            family = []
        for member in family:
            try:
                member.kill()
            except psutil.NoSuchProcess:
                continue
        process.communicate()


def save_files(page: str, folder: Path, *, of_package: bool = False) -> None:
    """The files that a page has its reader save: a block with a title, or after a line that ends with its name.

    Those of the package go to the checkout, the others to where the page's commands are typed.
    """
    for match in re.finditer(
        r'(?:`([\w./]+\.\w+)`:\n\n)?^```\w+(?: title="([^"]+)")?\n(.*?)^```$', TEXT[page], flags=re.S | re.M
    ):
        name, content = match.group(2) or match.group(1), match.group(3)
        if name and bool(re.match("(?:custom|data_prep|apps)/", name)) is of_package:
            for old, new in SHRUNK.get(name, {}).items():
                assert old in content, f"{name} has changed: change SHRUNK too"
                content = content.replace(old, new)
            (folder / name).write_text(content, encoding="utf-8")


def own_scans(folder: Path, *, images: str, masks: str) -> None:
    """Five made-up scans and their masks, in two folders, under the same names."""
    for number in range(5):
        pair = volume(number)
        for made, name in zip(pair, (images, masks), strict=True):
            (folder / name).mkdir(parents=True, exist_ok=True)
            SimpleITK.WriteImage(made, str(folder / name / f"Case{number:02d}.nii.gz"))


def for_own_data(folder: Path, phantom: Path) -> None:
    own_scans(folder, images="scans", masks="masks")
    write_described(folder / "Task04_Hippocampus", classes=("Anterior", "Posterior"), cases=12)
    (spleen := folder / "Task09_Spleen" / "imagesTs").mkdir(parents=True)
    write_described(spleen.parent, classes=("spleen",), cases=6, name="Spleen")
    SimpleITK.WriteImage(volume(7)[0], str(spleen / "spleen_7.nii.gz"))
    for number in range(5):
        image, mask = volume(number)
        for name, made in (
            (f"zones/images/P{number}", image),
            (f"zones/masks/P{number}", zones(mask)),
            (f"bids/sub-{number}/anat/sub-{number}_T2w", image),
            (f"bids/sub-{number}/dwi/sub-{number}_adc", other_sequence(image)),
            (f"bids/derivatives/drawn/sub-{number}/sub-{number}_mask", mask),
        ):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            SimpleITK.WriteImage(made, str(folder / f"{name}.nii.gz"))


def for_own_scans(folder: Path, phantom: Path) -> None:
    """… and photographs of both eyes of three people, with a task for them."""
    for_own_data(folder, phantom)
    named = {"name: discs": "name: vessels", "dataset: discs": "dataset: vessels", "[A, B]": "[CLINIC]"}
    task = PICTURE_TASK
    for old, new in named.items():
        task = task.replace(old, new)
    (folder / "vessels.yaml").write_text(task, encoding="utf-8")
    for file in sorted(write_discs(folder / "CLINIC").glob("*/p?.png")):
        number = int(file.stem[1:])
        file.rename(file.with_name(f"Image_{number // 2:02d}{'LR'[number % 2]}.png"))


def for_a_new_task(folder: Path, phantom: Path) -> None:
    for place in ("north", "south"):
        own_scans(folder, images=f"{place}/images", masks=f"{place}/masks")


def for_dicom(folder: Path, phantom: Path) -> None:
    """Studies of two hospitals with a reader's segmentations, and a new one."""
    for place in ("north", "south"):
        for number in range(4):
            image, mask = volume(number + 10 * (place == "south"))
            patient = folder / place / f"P{number}"
            series = write_slices(patient / "t2", image, seed=f"{place} {number}")
            drawn = SimpleITK.GetArrayFromImage(mask) > 0
            draw_segmentation(patient / "drawn" / "seg.dcm", series, {"Prostate": drawn})
    write_slices(folder / "new_study" / "t2", volume(99)[0], seed="new")


def for_predictions(folder: Path, phantom: Path) -> None:
    """Scans to predict, in three formats."""
    scans = sorted((phantom / "prostate" / "HK" / "volumes").glob("Case0?.nii.gz"))
    read = [SimpleITK.ReadImage(str(scan)) for scan in scans]
    SimpleITK.WriteImage(read[0], str(folder / "SCAN.nii.gz"))
    SimpleITK.WriteImage(read[1], str(folder / "OTHER.nrrd"))
    write_dicom(folder / "DICOM_FOLDER", SimpleITK.Cast(read[2], SimpleITK.sitkInt16))
    (folder / "SCANS").mkdir()
    for scan in scans[:2]:
        shutil.copy(scan, folder / "SCANS" / scan.name)
    data = {site: make_image_site(folder / "classes_data", site) for site in "ABC"}
    run_in_process(small_image_job("fedavg"), data, folder / "runs" / "fedavg_digits")
    for number in range(3):
        write_picture(folder / "PICTURES" / f"{number}.png", number)


def for_the_readme(folder: Path, phantom: Path) -> None:
    """Scans of two hospitals, and a new one."""
    for_a_new_task(folder, phantom)
    SimpleITK.WriteImage(volume(99)[0], str(folder / "NEW_SCAN.nii.gz"))


def for_nnunet(folder: Path, phantom: Path) -> None:
    """Two hospitals' data sets in nnU-Net's layout, and their plans; without what other pages made of that name."""
    shutil.rmtree(phantom.parent / "hippocampus_simulated", ignore_errors=True)
    for place, number in (("north", "004"), ("south", "011")):
        raw = folder / place / "nnUNet_raw" / f"Dataset{number}_Hippocampus"
        write_described(raw, classes=("Anterior", "Posterior"), cases=6, style="nnunet", seed=int(number))
        described = json.loads((raw / "dataset.json").read_text(encoding="utf-8"))
        write_plans(folder / place / "nnunet_plans.json")
        (folder / place / "dataset.json").write_text(json.dumps(described), encoding="utf-8")


def for_pictures(folder: Path, phantom: Path) -> None:
    """Office-Caltech 10 as it is downloaded, in small, with FedBN's lists."""
    write_office(folder / "office")


def for_running(folder: Path, phantom: Path) -> None:
    """Small sites of two tasks where commands look for them, weights in ImageNet's layout, and a committed job cut."""
    for dataset, write, words in (
        ("office_caltech", write_office, []),
        ("office_caltech", write_office, ["--split", "papers"]),
        ("pacs", lambda root: write_tree(root, PACS.sites, PACS.classes, each=4), []),
    ):
        source = folder / "downloads" / dataset
        if not source.is_dir():
            write(source)
        out = ["--source", str(source), "--out", str(phantom.parent), "--size", "64"]
        assert cli.main(["data", "prepare", dataset, *out, *words]) == 0
    net = networks.build("resnet18", {}, in_channels=3, n_classes=1000, seed=0)
    torch.save(net.state_dict(), folder / "resnet18-f37072fd.pth")
    assert cli.main(["job", "fedfa", "prostate", "--protocol", "quick", "--out", str(folder / "jobs"), *SMALL_JOB]) == 0


READY: dict[str, Callable[[Path, Path], None]] = {
    "README.md": for_the_readme,
    "docs/running.md": for_running,
    "docs/data.md": for_own_data,
    "docs/own-scans.md": for_own_scans,
    "docs/how-to-new-task.md": for_a_new_task,
    "docs/pictures-to-classify.md": for_pictures,
    "docs/predict.md": for_predictions,
    "docs/nnunet.md": for_nnunet,
    "docs/how-to-dicom.md": for_dicom,
}
"""What must be there before a page's first command: its reader's own scans."""


@pytest.fixture(scope="module")
def typist(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Typist]:
    """With the phantom, as `MAKE_PHANTOM` makes it at first."""
    folder = tmp_path_factory.mktemp("typist")
    typist = Typist(folder)
    try:
        typist.type(folder, [[*MAKE_PHANTOM, *SMALL_DATA]])
        yield typist
    finally:
        typist.end()


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if any(is_run(c) for c in typed(TEXT[page]))])
def test_the_commands_of_a_page_run(page: str, typist: Typist, tmp_path: Path) -> None:
    for name in ("benchmarks", "deploy"):
        (tmp_path / name).symlink_to(ROOT / name)
    save_files(page, tmp_path)
    READY.get(page, lambda folder, phantom: None)(tmp_path, typist.phantom)
    shorter = [(shlex.split(meant(c)), added(c) or []) for c in typed(TEXT[page]) if is_run(c)]
    commands = [(without(words, more), more) for words, more in shorter]
    typist.type(tmp_path, [[*words, *more] for words, more in commands if words != MAKE_PHANTOM])


# --- the site -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; a broken link, anchor or reference is a warning, and a warning ends it."""
    folder = tmp_path_factory.mktemp("site")
    result = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return folder


@pytest.mark.slow
def test_every_page_says_what_fedshift_is_not(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 20
    said = "Research use only. fedshift is not a medical device"
    assert not [page for page in pages if said not in page.read_text(encoding="utf-8")]


@pytest.mark.slow
def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    loads = re.compile(r"<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)=\"?(?:https?:)?//[^>]*>")
    found = {tag for page in site.rglob("*.html") for tag in loads.findall(page.read_text(encoding="utf-8"))}
    styles = [css.read_text(encoding="utf-8") for css in site.rglob("*.css")]
    assert styles and not found | {url for text in styles for url in re.findall(r"url\(\"?https?:[^)]*", text)}


@pytest.mark.slow
def test_every_command_is_in_the_reference(site: Path) -> None:
    page = (site / "reference" / "commands.html").read_text(encoding="utf-8")
    missing = [prog for prog in progs(_parser()) if f'id="{prog.replace(" ", "-")}"' not in page]
    assert not missing
    assert "--in-process" in page and "--skip-damaged" in page and str(Path.home()) not in page


def progs(parser: Parser) -> Iterator[str]:
    """Of a command and those below it."""
    parser.complete()
    yield parser.prog
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                yield from progs(child)


@pytest.mark.slow
def test_public_names_are_in_the_reference(site: Path) -> None:
    for page, name in (
        ("methods", "fedshift.methods.base.Client.inputs"),
        ("tasks", "fedshift.schema.task.ScheduleSpec"),
        ("results", "fedshift.schema.evaluation.Evaluation"),
        ("running", "fedshift.federation.in_process.run_in_process"),
        ("privacy", "fedshift.schema.policy.Policy"),
    ):
        assert f'id="{name}"' in (site / "reference" / f"{page}.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_the_links_of_a_page_outside_the_site_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    targets = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", text)
    assert targets and not [target for target in targets if not (ROOT / target).exists()]


@pytest.mark.parametrize("page", [*PAGES[1:], RUNBOOK])
def test_lists_and_tables_are_such_in_the_site_too(page: str) -> None:
    """There, unlike on code hosts, they need an empty line before them, and lists in lists four blanks."""
    text = re.sub(r"^```.*?^```$", "", TEXT[page], flags=re.S | re.M)
    before = r"^(?![ |#<-]|\d+\.|\s*$).*\n"
    assert not re.findall(rf"{before}(?:[-*] |\d+\. |\|)", text, flags=re.MULTILINE)
    assert not re.findall(r"^ {1,3}(?:[-*]|\d+\.) ", text, flags=re.MULTILINE)

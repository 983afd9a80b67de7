"""The runbook, typed from its first part to its last: FLARE's own scripts, real kits and processes, simulated scans.

Of `deploy/project.yml` only the port differs, and three of the six sites are not there at first. Whatever the runbook
has its readers type is typed here, or is in `NOT_TYPED` with the reason; what it shows as printed must be printed.
"""

from __future__ import annotations

import os
import pty
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import psutil
import pytest

from data_prep.phantom import make_phantom
from fedshift import cli
from fedshift.flare.kit import is_root
from fedshift.reporting.progress import read_progress

from .console import Console
from .deployed import free_ports, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "deploy" / "RUNBOOK.md").read_text(encoding="utf-8")
ROOTS = "--allow-root" if is_root() else ""
"""Continuous integration runs as root, which no reader should."""
BLOCKS = re.findall(r"^```console\n(.*?)^```$", TEXT, flags=re.DOTALL | re.MULTILINE)
SHELL = {line[2:] for block in BLOCKS for line in block.splitlines() if line.startswith("$ ")}
CONSOLE = {line[2:] for block in BLOCKS for line in block.splitlines() if line.startswith("> ")}
SITES, LATER = ("BIDMC", "HK", "UCL"), "I2CVB"
COORDINATOR, OWNER = "coordinator@coordination.example", "project@coordination.example"
JOB_ID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"

NOT_TYPED = {
    r"python3\.11 -m venv|\. fedshift-env|(?:fedshift-env/bin/)?pip |make wheelhouse|\(cd WHEELS ": "a fresh "
    "environment; CI makes one with `make install`, and tests/repository/test_packaging.py a wheel",
    r"useradd|chown|systemctl|journalctl|cp deploy/systemd": "systemd and root; tests/documents/test_deploy_files.py "
    "has the units",
    r"docker ": "a Docker engine; tests/documents/test_deploy_files.py has the Dockerfile",
}
"""Commands (how they begin), and what a test machine has not."""

SMALL = "network.options.features=4 schedule.batch_size=4"
"""Of 32 and 16: what jobs get besides, so that a round takes a second."""
ROUNDS = {"schedule.rounds=40": "schedule.rounds=30"}
"""Of the trial, which must last until it has been looked at: `nvflare job monitor` asks every ten seconds."""
LEFT_OUT = ("FEDSHIFT_DATA", "FEDSHIFT_WEIGHTS", "XDG_DATA_HOME")


class Typist:
    """All the readers, each in a folder of their own on this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "coordination"
        self.typed: set[str] = set()
        self._logs: dict[str, list[Path]] = {}
        self.job_id = ""

    def environment(self) -> dict[str, str]:
        """With the environment of these tests active."""
        kept = {key: value for key, value in os.environ.items() if key not in LEFT_OUT}
        return kept | {
            "HOME": str(self.folder / "home"),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": os.pathsep.join([str(ROOT / "custom"), str(ROOT)]),
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "200",
        }

    def kit(self, party: str) -> Path:
        """Where a party has unpacked its kit."""
        return self.folder / party / party

    def meant(self, command: str, party: str) -> str:
        """A command with what its words stand for."""
        stands_for = {
            "KIT": str(self.kit(party)),
            "LEAD": str(self.kit(COORDINATOR)),
            "OWNER": str(self.kit(OWNER)),
            "DATA": str(self.folder / "data"),
            "ID": self.job_id,
            "HK": party if party in (*SITES, LATER, "localhost") else "HK",
            **ROUNDS,
        }
        return re.sub(rf"\b({'|'.join(stands_for)})\b", lambda found: stands_for[found[1]], command)

    def type(
        self,
        command: str,
        party: str = "",
        *,
        at: Path | None = None,
        more: str = "",
        answer: str = "",
        code: int | None = 0,
    ) -> str:
        """Type a command of the runbook, and what it asks for: a party at its own machine, or the coordinator.

        It must end with ``code``, if that is not None. What another party has typed of ours is called in this process.
        """
        assert command in SHELL, f"the runbook has no {command}"
        again = command in self.typed and command.startswith("fedshift ")
        self.typed.add(command)
        place = at or (self.folder / party if party else self.home)
        place.mkdir(parents=True, exist_ok=True)
        log = self._log(command)  # no pipe: what `start.sh` starts would hold its end
        if again:
            return self._call(f"{self.meant(command, party or 'HK')} {more}", place, log)
        keyboard, terminal = pty.openpty()
        os.write(keyboard, answer.encode())
        with log.open("wb") as output:
            result = subprocess.run(
                ["bash", "-c", f"{self.meant(command, party or 'HK')} {more}"],
                cwd=place,
                env=self.environment(),
                stdin=terminal,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=600,
                check=False,
            )
        os.close(terminal)
        os.close(keyboard)
        text = log.read_text(encoding="utf-8", errors="replace")
        assert code in (result.returncode, None), (
            f"$ {command} ({party or COORDINATOR}) ended with {result.returncode}:\n{text[-4000:]}"
        )
        return text

    @contextmanager
    def meanwhile(self, command: str) -> Iterator[None]:
        """Have the coordinator type a command in a second window, which must have ended well when the block is left."""
        with ThreadPoolExecutor(1) as window:
            ended = window.submit(self.type, command)
            wait_for(lambda: ended.done() or any(log.exists() for log in self._logs.get(command, [])), 60, command)
            yield
            ended.result()

    def _call(self, command: str, place: Path, log: Path) -> str:
        """A command of ours that must end with 0, without a process of its own."""
        with log.open("w", encoding="utf-8") as output, chdir(place), redirect_stdout(output), redirect_stderr(output):
            ended = cli.main(shlex.split(command)[1:])
        text = log.read_text(encoding="utf-8")
        assert ended == 0, f"$ {command} ended with {ended}:\n{text}"
        return text

    def _log(self, command: str) -> Path:
        logs = self._logs.setdefault(command, [])
        logs.append(self.folder / "logs" / f"{sum(map(len, self._logs.values()))}.log")
        logs[-1].parent.mkdir(exist_ok=True)
        return logs[-1]

    def note(self, command: str, said: str) -> None:
        """What was typed, and printed, elsewhere than in a shell."""
        self.typed.add(command)
        self._log(command).write_text(said, encoding="utf-8")

    def printed(self, command: str) -> list[str]:
        """All lines that a command has printed by now, whoever typed it; blanks count as one."""
        texts = [log.read_text(encoding="utf-8", errors="replace") for log in self._logs.get(command, [])]
        return [" ".join(line.split()) for text in texts for line in text.splitlines()]

    def submitted(self, said: str) -> None:
        """From now on ID is this job's."""
        match = re.search(JOB_ID, said)
        assert match, said
        self.job_id = match[0]

    def until_round(self, number: int) -> None:
        """Wait until a round of the job is open."""
        folder = self.kit("localhost") / self.job_id
        wait_for(lambda: (p := read_progress(folder)) is not None and p.round >= number, 300, f"round {number}")

    def until_connected(self, *sites: str) -> None:
        """Wait for sites as a coordinator would, by looking again."""

        def all_there() -> bool:
            said = self.type("nvflare system status --startup-kit LEAD", code=None)
            return all(re.search(rf"^{site} ", said, flags=re.MULTILINE) for site in sites)

        wait_for(all_there, 300, f"{', '.join(sites)} to connect")

    def end(self) -> None:
        """Everything that works in these folders: the kits' own scripts start FLARE in sessions of its own."""
        for _ in range(50):
            found = [process for process in psutil.process_iter() if self._is_ours(process)]
            for process in found:
                try:
                    process.kill()
                except psutil.NoSuchProcess:
                    continue
            if not found:
                return
            time.sleep(0.1)

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            return any(str(self.folder) in text for text in (process.cwd(), *process.cmdline()))
        except (psutil.Error, FileNotFoundError):
            return False


def project(folder: Path, *, without: tuple[str, ...], port: int) -> None:
    """`deploy/project.yml` as its reader has changed it."""
    lines = (ROOT / "deploy" / "project.yml").read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if not re.search(rf"name: (admin@)?({'|'.join(without)})\b", line, flags=re.I)]
    (folder / "deploy").mkdir(parents=True, exist_ok=True)
    text = "\n".join(kept).replace("8002", str(port))
    (folder / "deploy" / "project.yml").write_text(text, encoding="utf-8")


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Typist]:
    """Everything typed. One fixture: the parts build on each other."""
    book = Typist(tmp_path_factory.mktemp("runbook"))
    try:
        yield run_through(book)
    finally:
        book.end()


def run_through(book: Typist) -> Typist:
    """The runbook's parts in their order; a certificate is replaced, and a site added, before all is shut down."""
    home, (port,) = book.home, free_ports(1)
    make_phantom(book.folder / "data", sites=[*SITES, LATER], cases=4, matrices=(32,))
    # 1 and 2: provision, hand out
    project(home, without=(LATER, "BMC", "RUNMC"), port=port)
    book.type("nvflare provision -p deploy/project.yml")
    book.type("chmod -R go-rwx workspace")
    book.type("ls workspace/fedshift_prostate/prod_00")
    hand_out(book, "prod_00", *SITES, "localhost")
    for person in (COORDINATOR, OWNER):
        shutil.copytree(prod(book, "prod_00") / person, book.kit(person))
    # 3 to 5: what is installed, the data, the kits
    book.type("fedshift --version")
    book.type("fedshift data check DATA/prostate/HK", "HK")
    for site in SITES:
        book.type("fedshift site init KIT --data DATA/prostate/HK", site, more=f"--phantom {ROOTS}")
    book.type("fedshift site init KIT", "localhost", more=ROOTS)
    # 6 to 8: what a job would send, preflight, start
    make = "fedshift job fedfa+fedrdn prostate --protocol quick --sites BIDMC,HK,UCL --production --name trial --set "
    make += "data.matrix=32 schedule.rounds=40 schedule.local_steps=10"
    book.type(make, more=SMALL)
    book.type("fedshift site dry-run KIT jobs/trial")
    book.type("nvflare preflight-check -p KIT", "localhost")
    book.type("KIT/startup/start.sh", "localhost")
    wait_for(lambda: listens(port), 240, "the server")
    book.type("nvflare preflight-check -p KIT", "HK")
    for site in SITES:
        book.type("KIT/startup/start.sh", site)
    book.until_connected(*SITES)
    # 9: submit
    book.submitted(book.type("nvflare job submit -j jobs/trial --startup-kit LEAD"))
    with book.meanwhile('nvflare job monitor ID --metric "best so far" --startup-kit LEAD'):
        book.type("nvflare job list --startup-kit LEAD")
        book.until_round(3)
        book.type("nvflare job stats ID --startup-kit LEAD")
        book.type("nvflare job wait ID --timeout 86400 --startup-kit LEAD")
    book.type("nvflare job logs ID --tail 20 --startup-kit LEAD")
    # 13: take the results
    book.type("nvflare job download ID -o results --startup-kit LEAD")
    book.type("ls results/ID/workspace")
    # 10 and 11: a long job at the console, and its end
    long = shlex.split(make.replace("--name trial", "--name long").replace("rounds=40", "rounds=300"))
    with chdir(home):
        assert cli.main([*long[1:], *SMALL.split()]) == 0
    watch(book)
    # 15: add a site
    project(home, without=("BMC", "RUNMC"), port=port)
    book.type("nvflare provision -p deploy/project.yml", answer="y\n")
    hand_out(book, "prod_01", LATER)
    book.type("fedshift site init KIT --data DATA/prostate/HK", LATER, more=f"--phantom {ROOTS}")
    book.type("KIT/startup/start.sh", LATER)
    # 12: from the last model of the aborted job, with all four, until one is missing
    book.type("nvflare job download ID -o results --startup-kit LEAD")
    book.type("cp results/ID/workspace/last_global_model.pt long_last.pt")
    book.until_connected(*SITES, LATER)
    strict = "federation.min_sites=4 federation.round_timeout=45 federation.grace=4"
    book.type(
        "fedshift job fedavg prostate --protocol quick --sites BIDMC,HK,I2CVB,UCL --production --name four "
        "--weights long_last.pt --set data.matrix=32 schedule.rounds=25",
        more=f"{strict} {SMALL}",
    )
    book.submitted(submit(book, "jobs/four"))
    book.until_round(2)
    # 16: another certificate for HK, which is away long enough for the job to fail
    book.type("cp -p workspace/fedshift_prostate/state/cert.json cert.json.backup")
    forget = next(command for command in SHELL if command.startswith("python3 -c"))
    book.type(forget)
    book.type("nvflare provision -p deploy/project.yml --force")
    book.type("touch KIT/shutdown.fl", "HK")
    book.type("nvflare job wait ID --startup-kit LEAD", code=1)
    book.type("nvflare job download ID -o results --startup-kit LEAD")
    book.type("grep reason results/ID/workspace/progress.json")
    wait_for(lambda: not (book.kit("HK") / "daemon_pid.fl").exists(), 240, "HK to be gone")
    book.type("cp HK/startup/client.crt HK/startup/client.key KIT/startup/", at=prod(book, "prod_02"))
    book.type("fedshift site check KIT", "HK")
    book.type("KIT/startup/start.sh", "HK")
    book.until_connected(*SITES, LATER)
    # 14: shut down
    book.type("nvflare system shutdown all --force --timeout 180 --startup-kit OWNER")
    return book


# --- parts of it --------------------------------------------------------------------------------------------


def prod(book: Typist, number: str) -> Path:
    """Where a run of ``nvflare provision`` has put its kits."""
    return book.home / "workspace" / "fedshift_prostate" / number


def listens(port: int) -> bool:
    """Whether somebody does. What the server's log says may be of the dry run."""
    try:
        socket.create_connection(("localhost", port)).close()
    except OSError:
        return False
    return True


def hand_out(book: Typist, number: str, *parties: str) -> None:
    """Kits, packed by the coordinator and unpacked by their owners."""
    pack = "(umask 077 && tar -czf HK.tgz -C workspace/fedshift_prostate/prod_00 HK)"
    for party in parties:
        if number == "prod_00":
            book.type(pack, party, at=book.home)
            assert (book.home / f"{party}.tgz").stat().st_mode & 0o777 == 0o600, "a kit has a private key"
        else:
            subprocess.run(
                ["bash", "-c", book.meant(pack, party).replace("prod_00", number)], cwd=book.home, check=True
            )
        (book.folder / party).mkdir()
        shutil.move(book.home / f"{party}.tgz", book.folder / party)
        book.type("tar -xpzf HK.tgz", party)


def submit(book: Typist, job: str) -> str:
    """A job that is not the runbook's trial."""
    command = ["nvflare", "job", "submit", "-j", job, "--startup-kit", str(book.kit(COORDINATOR))]
    result = subprocess.run(
        command, cwd=book.home, env=book.environment(), capture_output=True, encoding="utf-8", check=True
    )
    return result.stdout


def curves(book: Typist) -> None:
    """TensorBoard at the server, until it says where it is."""
    command = "tensorboard --logdir KIT/ID/tb_events"
    assert command in SHELL
    words = shlex.split(book.meant(command, "localhost"))
    assert Path(words[2]).is_dir()
    process = subprocess.Popen(
        [*words, "--port", str(free_ports(1)[0])],
        env=book.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
    )
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if "http://localhost:" in line:
            break
    process.kill()
    process.wait()
    book.note(command, said)


def watch(book: Typist) -> None:
    """What the coordinator types into FLARE's console while the long job runs, which is aborted at last."""
    with Console(book.kit(COORDINATOR), book.environment()) as console:

        def do(line: str, *more: str) -> str:
            assert line in CONSOLE, f"the runbook has no {line}"
            answer = console.do(book.meant(line, "HK").replace("/absolute/path/of", str(book.home)), *more)
            book.note(line, answer)
            return answer

        book.note("LEAD/startup/fl_admin.sh", f"{console.question}{COORDINATOR}")
        book.submitted(do("submit_job /absolute/path/of/jobs/long"))
        do("list_jobs")
        book.until_round(4)
        for line in (
            "check_status server",
            "show_stats ID server",
            "show_stats ID client HK",
        ):
            do(line)
        curves(book)
        book.type("fedshift status LEAD --job ID")
        do("abort_job ID", "y")
        ended = book.kit("localhost") / book.job_id
        wait_for(lambda: "FINISHED:ABORTED" in do("list_jobs"), 240, f"the end of the job in {ended}")
        assert console.bye() == 0
        book.note("bye", "")


# --- what must be so ----------------------------------------------------------------------------------------


def test_every_command_was_typed_or_there_is_a_reason_why_not(book: Typist) -> None:
    left = (SHELL | CONSOLE) - book.typed
    assert not [command for command in left if not re.match("|".join(NOT_TYPED), command)]


def test_no_reason_is_left_over() -> None:
    assert not [reason for reason in NOT_TYPED if not any(re.match(reason, command) for command in SHELL)]


def shown() -> list[tuple[str, str]]:
    """Command, and a line that the runbook shows below it."""
    found, command = [], ""
    for block in BLOCKS:
        for line in block.splitlines():
            if line[:2] in ("$ ", "> "):
                command = line[2:]
            elif line.strip() not in ("", "…") and not re.match("|".join(NOT_TYPED), command):
                found.append((command, line))
    return found


def like(line: str) -> re.Pattern[str]:
    """A line as it may be printed elsewhere: other numbers, ids, times and folders, as many blanks as there may be."""
    text = re.sub(JOB_ID, "ID", " ".join(line.split()))
    text = text.removesuffix(" y") if text.endswith("[y/N] y") else text  # the answer is not printed
    text = re.sub(r'^("[\w ]+"): .*', r"\1: …", text)  # what a job is about just then
    parts = []
    for part in re.split(r"(…|~|\b(?:ID|KIT|DATA|LEAD)\b|\b[0-9a-f]{8,}\b|[0-9][0-9a-f:.T+-]*| )", text):
        if part == " ":
            parts.append(r"\s*")
        elif part in ("…", "~", "ID", "KIT", "DATA", "LEAD"):
            parts.append(r".*")
        elif re.match(r"[0-9]|[0-9a-f]{8,}", part):
            parts.append(r"[0-9a-f][0-9a-f:.T+-]*")
        else:
            parts.append(re.escape(part))
    return re.compile("".join(parts))


@pytest.mark.parametrize(("command", "line"), shown())
def test_what_the_runbook_shows_is_printed(book: Typist, command: str, line: str) -> None:
    printed = book.printed(command)
    if command.startswith("ls "):  # in columns at a terminal
        assert set(line.split()) - {"…"} <= set(printed)
    else:
        assert any(like(line).search(said) for said in printed), "\n".join(printed)[-3000:]

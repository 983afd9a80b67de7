"""What encrypted and masked updates cost: bytes and seconds of a round beside the same in clear, and the sum's error.

    python benchmarks/encryption_cost.py --out benchmarks/results/encryption_cost
    # writes encryption_cost.json and encryption_cost.md

Nothing is trained and nothing sent. Made-up updates go through what a site and the server do with them: the site
encrypts or masks, the server checks each, lets it wait on disk and adds them up, and the site decrypts the sum; or the
sites give their shares and the server takes the masks off. Seconds are the process's own (CPU) with one thread, so that
other work on the machine does not count; plain, encrypted and masked take turns.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

import frame
import numpy as np
import torch

from fedshift.federation.encryption.keys import Keys
from fedshift.federation.encryption.masks.server import MaskedCoordinator
from fedshift.federation.encryption.masks.site import SiteMasks
from fedshift.federation.encryption.server import EncryptedCoordinator
from fedshift.federation.encryption.site import SiteEncryption
from fedshift.federation.resolve import resolve
from fedshift.federation.server.coordinator import Coordinator, payload_bytes
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import Broadcast, SiteInfo, Update

CASES = {
    "prostate U-Net, fedavg": ("prostate", "quick", "fedavg", ()),
    "prostate U-Net, fedfa.share=sums": ("prostate", "quick", "fedfa", ("fedfa.share=sums",)),
    "rotated MNIST CNN, fedavg": ("rotated_mnist", None, "fedavg", ()),
}
STEPS = 4
Result = TypeVar("Result")


def main() -> None:
    parser = frame.parser(__doc__, turns=5)
    parser.add_argument("--sites", type=int, nargs="+", default=[3, 6])
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="without its ending")
    args = parser.parse_args()
    torch.set_num_threads(1)
    load = os.getloadavg()[0]
    rows = []
    for what, case in CASES.items():
        for n_sites in args.sites:
            turns = [turn(*case, n_sites) for _ in range(args.turns)]
            row = {key: statistics.median(turn_record[key] for turn_record in turns) for key in turns[0]}
            for name in ("largest_difference", "largest_difference_masked"):
                row[name] = max(turn_record[name] for turn_record in turns)
            rows.append({"what": what, "sites": n_sites, **row})
            print(json.dumps(rows[-1]), flush=True)
    content = {
        "what": f"medians of {args.turns} turns; seconds of CPU time of one thread; bytes of arrays without framing",
        "command": f"python benchmarks/encryption_cost.py {' '.join(sys.argv[1:])}",
        "machine": {
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "load_at_start": load,
            "load_at_end": os.getloadavg()[0],
        },
        "versions": {name: version(name) for name in ("tenseal", "cryptography", "nvflare", "numpy")},
        "keys": "FLARE's HEBuilder's defaults: degree 8192, moduli of 60, 40 and 40 bits, scale of 40 bits",
        "rows": rows,
    }
    frame.write(args.out.with_suffix(".json"), content, frame.page("encryption_cost", **content))


def contexts() -> tuple[Keys, Keys]:
    """A site's keys and the server's, as FLARE makes them."""
    from nvflare.lighter.impl.he import HEBuilder

    builder = HEBuilder()
    builder.initialize(None, None)
    site = Keys(builder.get_serialized_context(is_client=True), where="site")
    return site, Keys(builder.get_serialized_context(), where="server")


def turn(task: str, protocol: str | None, method: str, options: tuple[str, ...], n_sites: int) -> dict[str, float]:
    """One round in clear, one encrypted, and one masked, in which the last site leaves after its update."""
    everyone = resolve(task, method, protocol=protocol, held_out=[]).task.sites[:n_sites]
    common = (*options, f"schedule.local_steps={STEPS}", "federation.min_sites=2")
    plain, sealed, masked = (
        resolve(task, method, protocol=protocol, sites=everyone, held_out=[], options=(*common, *more))
        for more in ((), ("federation.encryption=ckks",), ("federation.encryption=masks",))
    )
    site_keys, server_keys = contexts()
    encryption = SiteEncryption(sealed, site_keys)
    with tempfile.TemporaryDirectory() as folder:
        clear = Coordinator(plain, Path(folder) / "clear")
        blind = EncryptedCoordinator(sealed, Path(folder) / "blind", keys=server_keys)
        first = opened(clear, plain)
        opened(blind, sealed)
        updates = [made(first, clear, site, number) for number, site in enumerate(everyone)]
        encrypted, encrypting = timed(lambda: [encryption.seal(update, first) for update in updates])
        server_clear, server_blind = (
            timed(lambda served=served, sent=sent: combined(served, sent))[1]  # type: ignore[misc]
            for served, sent in ((clear, updates), (blind, encrypted))
        )
        wanted, down = clear.open(2), blind.open(2)
        decrypted, decrypting = timed(lambda: encryption.open(down))
        difference = largest_difference(wanted, decrypted)
        with_masks = masked_round(masked, Path(folder), updates, wanted)
        numbers = sum(value.size for value in first.weights.values())
        return {
            "numbers": numbers,
            "bytes_up": payload_bytes(updates[0]),
            "bytes_up_encrypted": payload_bytes(encrypted[0]),
            "bytes_down": payload_bytes(wanted),
            "bytes_down_encrypted": payload_bytes(down),
            "site_encrypts": encrypting / n_sites,
            "site_decrypts": decrypting,
            "server": server_clear,
            "server_encrypted": server_blind,
            "largest_difference": difference,
            **with_masks,
        }


def largest_difference(wanted: Broadcast, decrypted: Broadcast) -> float:
    """Of a weight."""
    return max(
        float(np.abs(decrypted.weights[key] - value.astype(np.float64)).max())
        for key, value in wanted.weights.items()
        if np.issubdtype(value.dtype, np.floating)
    )


def masked_round(job: JobSpec, folder: Path, updates: list[Update], wanted: Broadcast) -> dict[str, float]:
    """The same round with masks. The last site leaves after its update."""
    server = MaskedCoordinator(job, folder / "masked")
    sites = {u.site: SiteMasks(job, u.site, folder=folder / u.site, run="run", identity=None, least=2) for u in updates}
    first = opened(server, job, key=lambda update: sites[update.site].seal(update, Broadcast(0, 0, {})))
    masked, masking = timed(lambda: [sites[u.site].seal(u, sites[u.site].open(first)) for u in updates])

    def ask() -> Broadcast:
        for update in masked:
            if not server.accept(update):
                raise SystemExit(str(server.rejected))
        question = server.open_unmasking()
        assert question is not None
        return question

    question, checking = timed(ask)
    arrived = updates[:-1] if len(updates) > 2 else updates
    shares, giving = timed(lambda: [sites[update.site].unmask(question) for update in arrived])
    _, closing = timed(lambda: [*map(server.accept, shares), server.close()])
    down = server.open(2)
    return {
        "bytes_up_masked": payload_bytes(masked[0]) + payload_bytes(shares[0]),
        "bytes_down_masked": payload_bytes(down) + payload_bytes(question),
        "site_masks": masking / len(updates) + giving / len(arrived),
        "server_masked": checking + closing,
        "largest_difference_masked": largest_difference(wanted, down),
    }


def opened(server: Coordinator, job: JobSpec, *, key: Callable[[Update], Update] = lambda update: update) -> Broadcast:
    """The first round. ``key`` adds a site's key to its first answer."""
    server.open(0)
    for number, site in enumerate(job.task.sites):
        server.register(SiteInfo(site, "phantom", samples(number), 1, 1, "0" * 64, "case"))
        if not server.accept(key(Update(site, 0, n_samples=samples(number), n_steps=0))):
            raise SystemExit(str(server.rejected))
    server.close()
    return server.open(1)


def samples(number: int) -> int:
    """Of a site: as many as the prostate sites have slices, about."""
    return 150 + 60 * number


def made(first: Broadcast, server: Coordinator, site: str, number: int) -> Update:
    """An update around the first model, with whatever arrays the methods send."""
    rng = np.random.default_rng(number)

    def near(key: str, value: np.ndarray) -> np.ndarray:
        if not np.issubdtype(value.dtype, np.floating):
            return np.asarray(value + STEPS, value.dtype)
        moved = value + rng.normal(0, 0.01, value.shape)
        return np.asarray(np.abs(moved) if key.endswith("running_var") else moved, value.dtype)

    return Update(
        site,
        1,
        n_samples=samples(number),
        n_steps=STEPS,
        weights={key: near(key, value) for key, value in first.weights.items()},
        metrics={"train_loss": 1.0},
        arrays={
            method: {
                name: np.full([int(n) for n in spec.shape], 0.01, spec.dtype) ** (2 if "squared" in name else 1)
                for name, spec in named.items()
            }
            for method, named in server.update_check.specs.items()
            if named
        },
    )


def combined(server: Coordinator, updates: list[Update]) -> None:
    """All that the server does with a round's updates."""
    for update in updates:
        if not server.accept(update):
            raise SystemExit(str(server.rejected))
    server.close()


def timed(work: Callable[[], Result]) -> tuple[Result, float]:
    """What it gives, and seconds of CPU time."""
    started = time.process_time()
    return work(), time.process_time() - started


if __name__ == "__main__":
    main()

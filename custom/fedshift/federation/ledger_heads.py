"""What the server has seen of the sites' privacy ledgers: a file in its kit, for all jobs and surveys.

A ledger that was restored from a backup, or deleted, holds less than what has left its site. The site itself can't see
that: its files agree with each other. So every answer brings the ledger's head, the server keeps the furthest of each
site, and sends it with the tasks; a site whose ledger does not hold it computes nothing (`SiteLedger`). A server that
sends another head can make a site stop, and give no budget back.
"""

from __future__ import annotations

import fcntl
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from fedshift.schema.errors import ConfigError
from fedshift.schema.files import write_private
from fedshift.schema.messages import Broadcast
from fedshift.schema.names import Name
from fedshift.schema.policy import LEDGER_FILE, LedgerHead
from fedshift.schema.strict import Strict, first_fault

log = logging.getLogger("fedshift")

FILE_NAME, LOCK_NAME = "ledger_heads.json", "ledger_heads.lock"


class SiteLedger:
    """A site's ledger in a job or a survey, as far as the server has to do with it.

    ``folder`` is the ``local`` of the site's kit; None where there is no kit, and nothing to compare.
    """

    def __init__(self, site: str, folder: Path | None) -> None:
        self._site, self._folder = site, folder

    def require(self, broadcast: Broadcast) -> None:
        """Before a task that may spend: refuse it if the ledger lacks what the server has seen of it.

        Raises:
            PolicyError: it was restored from a backup, cut or deleted.
        """
        head = broadcast.ledgers.get(self._site)
        if self._folder is not None and head is not None:
            from fedshift.federation.site.privacy.ledger import Ledger  # imports scipy, needed with noise only

            Ledger(self._folder).require(head, site=self._site)

    def head(self) -> LedgerHead | None:
        """Where it ends after the task; None if nothing has left with noise."""
        if self._folder is None or not (self._folder / LEDGER_FILE).is_file():
            return None
        from fedshift.federation.site.privacy.ledger import Ledger

        return Ledger(self._folder).read().head


class _Content(Strict):
    sites: dict[Name, LedgerHead] = {}


class LedgerHeads:
    """The heads in one kit. The processes of several jobs may use them at the same time."""

    def __init__(self, folder: Path) -> None:
        """``folder``: the ``local`` of the server's kit."""
        self.path, self._lock = folder / FILE_NAME, folder / LOCK_NAME

    def all(self) -> dict[str, LedgerHead]:
        """The head of every site whose ledger was seen.

        Raises:
            ConfigError: the file is damaged.
        """
        try:
            return dict(_Content.model_validate_json(self.path.read_text(encoding="utf-8")).sites)
        except FileNotFoundError:
            return {}
        except (ValidationError, UnicodeDecodeError) as error:
            raise ConfigError(
                "file-damaged",
                f"{self.path} is damaged ({first_fault(error)}), and with it what is known of the sites' privacy "
                "ledgers: restore it from a copy, or delete it, after which each site's next answer begins it anew",
            ) from None

    def known(self, sites: Iterable[str]) -> dict[str, LedgerHead]:
        """Those of some sites, as far as they are known."""
        heads = self.all()
        return {site: heads[site] for site in sites if site in heads}

    def keep(self, site: str, head: LedgerHead) -> None:
        """Keep a site's head if it is further than the known one. A full disk costs this head only, and is logged."""
        try:
            with self._locked():
                heads = self.all()
                if site in heads and heads[site].number >= head.number:
                    return
                self._write({**heads, site: head})
        except OSError as error:
            log.error(
                "%s cannot be written (%s): release %d of site %s's privacy ledger is not on record until its next "
                "answer",
                *(self.path, error.strerror, head.number, site),
            )

    def forget(self, site: str) -> LedgerHead:
        """Delete a site's head, which its next answer begins anew. Returns what was known.

        Raises:
            ConfigError: none is known.
        """
        with self._locked():
            heads = self.all()
            if site not in heads:
                raise ConfigError(
                    "unknown-site", f"{self.path} has no ledger of site {site!r}; it has {', '.join(heads) or 'none'}"
                )
            forgotten = heads.pop(site)
            self._write(heads)
        return forgotten

    def _write(self, heads: dict[str, LedgerHead]) -> None:
        write_private(self.path, _Content(sites=heads).model_dump_json(indent=1).encode())

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._lock.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

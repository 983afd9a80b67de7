"""The site's side: answer FLARE's tasks with `fedshift.federation.site.site.Site`.

This module imports little, because FLARE's simulator starts a new process for every task if it has fewer threads than
the job has sites.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from fedshift.data.locate import find_site, read_settings
from fedshift.federation.ledger_heads import SiteLedger
from fedshift.federation.site.site import Site, SiteOptions
from fedshift.federation.survey_answer import site_reference
from fedshift.flare import codec
from fedshift.flare.context import client_is_simulated, deployed_job, local_folder, run_folder, startup_folder
from fedshift.flare.export import hosts
from fedshift.flare.stats import SiteWork, add_stats
from fedshift.flare.workspaces import SITES, take_site_back
from fedshift.schema.components import admit
from fedshift.schema.errors import ConfigError, FedshiftError, PolicyError
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import Answer, Broadcast, Failure
from fedshift.schema.policy import listed_packages
from fedshift.tasks.device import spread
from fedshift.tasks.machine import WORKERS
from flare_armour.patches import require_protection
from flare_armour.patches.server_memory import release
from flare_armour.protected import SiteProtection, allow_usual

if TYPE_CHECKING:
    from fedshift.federation.site.outbound import Encryption
    from fedshift.schema.packages import PackageSpec
    from fedshift.schema.policy import Policy

log = logging.getLogger("fedshift")


class FedshiftExecutor(Executor):
    """Answers the tasks ``statistics``, ``train``, ``unmask`` and ``validate`` for all sites of the client.

    Attributes:
        protection: of this process of the job; a provisioned site makes it when the job starts.
    """

    def __init__(self) -> None:
        """Data are opened at the first task."""
        super().__init__()
        self._sites: dict[str, Site] = {}
        self._job: JobSpec | None = None
        self._encryption: Encryption | None = None
        self._work = SiteWork()
        self.protection = SiteProtection()
        self._update = "the update"

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Do a task for each of this client's sites that the task names. A failure is answered with a sentence."""
        simulated, client = client_is_simulated(fl_ctx), fl_ctx.get_identity_name()
        if not simulated:
            require_protection()
        release()  # memory of the last answer
        if self.protection.gave_up:
            return make_reply(ReturnCode.TASK_ABORTED)
        broadcast = codec.decode_task(shareable)
        hosted = hosts(self._read_job(fl_ctx)).get(client, ()) if simulated else (client,)
        asked = [name for name in hosted if name in broadcast.sites]
        self._work.begin(task_name, broadcast.round)
        self._update = f"the update of round {broadcast.round}"
        answers = [self.answer(task_name, name, broadcast, fl_ctx, abort_signal) for name in asked]
        self._work.end(answers)
        return codec.encode_answers(answers)

    def answer(
        self, task_name: str, name: str, broadcast: Broadcast, fl_ctx: FLContext, abort_signal: Signal
    ) -> Answer:
        """One site's answer to a task. An exception becomes a `Failure`; its details stay in the site's log."""
        failure: Exception
        try:
            return self._do(task_name, name, broadcast, fl_ctx, abort_signal)
        except FedshiftError as error:
            log.error("site %s, task %s: %s", name, task_name, error)
            failure, reason = error, str(error)
        except Exception as error:
            log.exception("site %s, task %s failed", name, task_name)
            failure, reason = error, f"{type(error).__name__} (the site's log has the details)"
        if not client_is_simulated(fl_ctx) and not isinstance(failure, PolicyError):
            # The sentence may name files and folders, which must not leave a hospital.
            reason = f"{type(failure).__name__} (the site's log says more)"
        return Answer(Failure(name, broadcast.round, reason))

    def _do(self, task_name: str, name: str, broadcast: Broadcast, fl_ctx: FLContext, abort_signal: Signal) -> Answer:
        def stop() -> bool:
            return bool(abort_signal.triggered)

        if name not in self._sites:
            self._sites[name] = self._open(name, fl_ctx)
        site = self._sites[name]
        ledger = SiteLedger(name, None if client_is_simulated(fl_ctx) else local_folder(fl_ctx))
        if task_name == codec.STATISTICS:
            site.require_training()
            ledger.require(broadcast)
            return Answer(site.statistics(), site.info(), ledger.head())
        if task_name == codec.TRAIN:
            ledger.require(broadcast)
            return Answer(site.train(broadcast, stop=stop), site.info(), ledger.head())
        if task_name == codec.UNMASK:
            return Answer(site.unmask(broadcast))
        if task_name == codec.VALIDATE:
            return Answer(site.validate(broadcast, stop=stop), site.info())
        raise ConfigError(
            "other-version",
            f"there is no task {task_name!r}: install the server's version of fedshift at this site",
        )

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Answer the console's ``show_stats``; before the first task comes, limit what comes.

        The arrays of a large task are fetched before FLARE's filters see it, and those of a large answer are sent after
        they have.
        """
        if event_type == EventType.START_RUN and client_is_simulated(fl_ctx):
            self.protection = SiteProtection.simulated(fl_ctx)
        elif event_type == EventType.START_RUN:
            from fedshift.federation.message_limits import MessageLimits  # brings torch

            allow_usual()  # for a job that is found to be wrong
            job = self._read_job(fl_ctx)
            self._admit(fl_ctx.get_identity_name(), fl_ctx)
            largest = MessageLimits.from_job(job).task
            self.protection = SiteProtection.begin(fl_ctx, clients=len(hosts(job)), largest_task=largest)
        elif event_type == EventType.BEFORE_TASK_DATA_FILTER:
            self.protection.fetch(fl_ctx.get_prop(FLContextKey.TASK_DATA), "the model")
        elif event_type == EventType.AFTER_TASK_RESULT_FILTER:
            self.protection.send(fl_ctx.get_prop(FLContextKey.TASK_RESULT), self._update)
        elif event_type == EventType.END_RUN:
            self.protection.end()
        add_stats(event_type, fl_ctx, self._work.stats)

    def _read_job(self, fl_ctx: FLContext) -> JobSpec:
        if self._job is None:
            self._job = deployed_job(fl_ctx)
        return self._job

    def _open(self, name: str, fl_ctx: FLContext) -> Site:
        job, local, simulated = self._read_job(fl_ctx), local_folder(fl_ctx), client_is_simulated(fl_ctx)
        packages = self._admit(name, fl_ctx)
        data = find_site(job.task.dataset, name, local=local, simulator=simulated)
        states, settings = run_folder(fl_ctx) / SITES, read_settings(local)
        device, workers = settings.device, None
        if simulated:
            take_site_back(name, states)
            clients = list(hosts(job))
            if settings.devices == 1:
                device = spread(device, clients.index(fl_ctx.get_identity_name()))
            if WORKERS not in os.environ:  # FLARE's own command does not say how many sites work at a time
                workers = len(clients)
        options = SiteOptions(
            states,
            device=device,
            devices=settings.devices,
            job_network=next((site.job_network for site in self._sites.values()), None),
            weights=settings.weights,
            policy=settings.privacy,
            packages=packages,
            ledger=None if simulated else local,
            # With masks an answer stays what it was, also where a GPU would train to another.
            keep_answers=not simulated or job.federation.encryption == "masks",
            workers=workers,
            describe_scans=site_reference,
            share_cases=simulated or (settings.privacy is not None and settings.privacy.case_scores),
            encryption=self._encryption_of(name, fl_ctx, settings.privacy),
        )
        site = Site(job, name, data, options)
        if site.info().kind == "phantom":
            log.warning("site %s trains on the phantom: simulated scans, not patients", name)
        return site

    def _admit(self, name: str, fl_ctx: FLContext) -> Mapping[str, PackageSpec] | None:
        """What the site lists of packages, after those that the job needs were compared with it.

        Raises:
            PolicyError: they do not agree.
        """
        policy, simulated = read_settings(local_folder(fl_ctx)).privacy, client_is_simulated(fl_ctx)
        listed = listed_packages(policy, simulated=simulated)
        admit(self._read_job(fl_ctx).packages, where=f"site {name}", listed=listed)
        return listed

    def _encryption_of(self, name: str, fl_ctx: FLContext, policy: Policy | None) -> Encryption | None:
        """The job's encryption with the keys of this client's kit; None if the job does not encrypt."""
        job = self._read_job(fl_ctx)
        if job.federation.encryption == "masks" and name in job.task.sites:
            from fedshift.flare.kit_keys import site_masks

            folder = run_folder(fl_ctx) / SITES / name
            simulated = client_is_simulated(fl_ctx)
            return site_masks(job, name, folder=folder, fl_ctx=fl_ctx, simulated=simulated, policy=policy)
        if job.federation.encryption == "ckks" and self._encryption is None:
            from fedshift.federation.encryption.kit_keys import SITE_KEYS, read_keys
            from fedshift.federation.encryption.site import SiteEncryption

            self._encryption = SiteEncryption(job, read_keys(startup_folder(fl_ctx), SITE_KEYS))
        return self._encryption

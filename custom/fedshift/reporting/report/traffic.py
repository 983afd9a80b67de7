"""Communication and time per round at each site, and faults."""

from __future__ import annotations

from statistics import fmean

from fedshift.reporting.report.runs import Run
from fedshift.reporting.report.section import Block, Column, Row, Section, Table, paragraph
from fedshift.reporting.report.summary import all_records
from fedshift.reporting.report.wording import seconds, size

MAX_FAULTS = 200


def cost(run: Run) -> Section | None:
    """Bytes and seconds per round at each site; None without rounds."""
    records = run.results.rounds
    if not records:
        return None
    rows: list[Row] = []
    total_up = total_down = 0
    for site in run.trained:
        site_rounds = [record.sites[site] for record in records if site in record.sites and record.sites[site].steps]
        if not site_rounds:
            rows.append([site, "0", "–", "–", "–", "–", "–"])
            continue
        up, down = sum(t.bytes_up for t in site_rounds), sum(t.bytes_down for t in site_rounds)
        total_up, total_down = total_up + up, total_down + down
        rows.append(
            [
                site,
                str(len(site_rounds)),
                f"{fmean(t.steps for t in site_rounds):.0f}",
                size(up / len(site_rounds)),
                size(down / len(site_rounds)),
                seconds(fmean(t.seconds for t in site_rounds)),
                seconds(max(t.seconds for t in site_rounds)),
            ]
        )
    columns = [
        Column("Site", numeric=False),
        Column("Rounds trained"),
        Column("Steps", detail="per round"),
        Column("Sent", detail="per round"),
        Column("Received", detail="per round"),
        Column("Time", detail="mean round"),
        Column("Time", detail="slowest round"),
    ]
    total_seconds = sum(record.seconds for record in records)
    return Section(
        "cost",
        "Bytes and seconds",
        "Means over the rounds in which a site trained. The slowest site determines the time of a round. Times depend "
        "on the machine and its other load.",
        [
            Table(columns, rows),
            paragraph(
                "traffic_total",
                up=size(total_up),
                down=size(total_down),
                rounds=len(records),
                took=seconds(total_seconds),
                each=seconds(total_seconds / len(records)),
            ),
        ],
    )


def faults(run: Run) -> Section | None:
    """Rejected answers, and sites that did not answer; None without faults."""
    rows: list[Row] = []
    for record in all_records(run):
        when = "statistics" if record.round == 0 else f"round {record.round}"
        if record.round > run.results.job.rounds or record in run.results.evaluations:
            when = "evaluation"
        rows += [[when, fault.site, "rejected", fault.key, fault.reason] for fault in record.rejected]
        rows += [[when, site, "absent", "", "no accepted answer in time"] for site in record.absent]
    if not rows:
        return None
    columns = [Column(text, numeric=False) for text in ("When", "Site", "Fault", "Key", "Reason")]
    blocks: list[Block] = [Table(columns, rows[:MAX_FAULTS])]
    if len(rows) > MAX_FAULTS:
        blocks.append(paragraph("more_faults", more=len(rows) - MAX_FAULTS))
    return Section(
        "faults",
        "Faults",
        "Rejected answers do not change the model. A site that is often absent has less influence on it.",
        blocks,
    )
